"""Functions named by options: their look-up, and errors that name the option and show no secret."""

from __future__ import annotations

import sys

import pytest

from spark_mq_source.core.errors import AuthenticationError, OptionError
from spark_mq_source.core.user_functions import call_function, load_function, parse_function


@pytest.mark.parametrize("text", ["function", "a b:c", "a:", ":f", "a:b:c", "a..b:f", ""])
def test_a_name_has_a_module_and_a_function(text):
    with pytest.raises(ValueError, match="expected module:function"):
        parse_function(text)


def test_a_function_may_be_an_attribute_of_a_class():
    assert load_function("keyReader", "json:JSONDecoder.decode").__name__ == "decode"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("json:no_such_function", "has no attribute 'no_such_function'"),
        ("json:decoder.nothing", "has no attribute 'nothing'"),
        ("fails_at_import:f", "the module fails with RuntimeError"),
    ],
)
def test_a_function_that_cannot_be_imported_is_an_error_with_a_remedy(tmp_path, monkeypatch, name, why):
    (tmp_path / "fails_at_import.py").write_text("raise RuntimeError('a-secret')")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    words = rf"keyReader='{name}' cannot be imported on this machine \(.*{why}"
    with pytest.raises(OptionError, match=words) as caught:
        load_function("keyReader", name)
    assert "every executor" in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_an_object_that_is_no_function_is_an_error():
    with pytest.raises(OptionError, match="keyReader='sys:path' is not a function, but list"):
        load_function("keyReader", "sys:path")


def test_a_function_that_fails_shows_only_the_class_of_its_error():
    with pytest.raises(AuthenticationError, match="authPlugin='json:loads' failed with JSONDecodeError") as caught:
        call_function("authPlugin", "json:loads", "{a-secret")
    assert "a-secret" not in str(caught.value)
    assert caught.value.__suppress_context__
