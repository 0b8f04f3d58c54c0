from __future__ import annotations

import warnings
from types import ModuleType

import pytest

from spark_mq_source.core import implementation as module
from spark_mq_source.core.errors import UnsupportedFeatureError
from spark_mq_source.core.implementation import Implementation, require_compiled
from spark_mq_source.nsq.payload import _messages_python


def hide_native(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> ModuleType:
        raise ImportError(f"{name} is hidden")

    monkeypatch.setattr(module, "import_module", refuse)


def test_the_twin_can_be_requested() -> None:
    chosen = Implementation(_messages_python, "python")
    assert (chosen.name, chosen.module) == ("python", _messages_python)


def test_a_compiled_module_may_have_another_name() -> None:
    name = "spark_mq_source.nsq.payload._absent"
    assert Implementation(_messages_python, "python", compiled=name).module is _messages_python
    with pytest.raises(ImportError, match=f"the compiled loop cannot be loaded: No module named '{name}'"):
        Implementation(_messages_python, "native", compiled=name)
    found = Implementation(_messages_python, "native", compiled="spark_mq_source.nsq.payload._encode_native")
    assert (found.name, found.module.__name__) == ("native", "spark_mq_source.nsq.payload._encode_native")


def test_the_compiled_module_is_used_if_it_exists() -> None:
    native = pytest.importorskip("spark_mq_source.nsq.payload._messages_native", exc_type=ImportError)
    for asked in ("", "native"):
        chosen = Implementation(_messages_python, asked)
        assert (chosen.name, chosen.module) == ("native", native)


def test_the_environment_chooses_if_no_argument_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_MQ_SOURCE_IMPL", "python")
    assert Implementation(_messages_python).name == "python"
    monkeypatch.setenv("SPARK_MQ_SOURCE_IMPL", "nativ")
    with pytest.raises(ImportError, match="SPARK_MQ_SOURCE_IMPL=nativ: expected native or python"):
        Implementation(_messages_python)


def test_without_a_compiled_module_the_twin_runs_and_logs_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_native(monkeypatch)
    chosen = Implementation(_messages_python, "")
    assert chosen.name == "python"
    with pytest.warns(RuntimeWarning, match="without its compiled loops, several times slower .*_native is hidden"):
        chosen.load()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        chosen.load()
        Implementation(_messages_python, "python").load()
    with pytest.raises(ImportError, match="the compiled loop cannot be loaded"):
        Implementation(_messages_python, "native")


LOOP = "spark_mq_source.values.avro._decode_native"


def test_a_compiled_module_without_a_twin_is_loaded() -> None:
    native = pytest.importorskip(LOOP, exc_type=ImportError)
    assert require_compiled("Avro", "decode") is native


@pytest.mark.parametrize(
    ("environment", "reason"),
    [("", f"{LOOP} is hidden"), ("python", "SPARK_MQ_SOURCE_IMPL=python excludes it")],
)
def test_a_compiled_module_without_a_twin_that_cannot_be_loaded_is_an_error(
    monkeypatch: pytest.MonkeyPatch, environment: str, reason: str
) -> None:
    hide_native(monkeypatch)
    monkeypatch.setenv("SPARK_MQ_SOURCE_IMPL", environment)
    with pytest.raises(UnsupportedFeatureError) as raised:
        require_compiled("Avro", "decode")
    assert str(raised.value) == (
        f"typed columns of Avro need the compiled module {LOOP}, which cannot be loaded ({reason}): install a wheel of "
        "spark-mq-source for this Python and platform, or reinstall with a C compiler, or read them as binary and "
        "decode them with Spark's from_avro"
    )
