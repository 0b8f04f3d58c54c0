from __future__ import annotations

import pytest

from spark_mq_source.core.json_text import load_json_object


def test_an_object_is_parsed() -> None:
    assert load_json_object('{"a": {"b": [1, null]}}') == {"a": {"b": [1, None]}}


@pytest.mark.parametrize(
    ("text", "mistake"),
    [
        ("{", "not JSON: Expecting property name"),
        ("[1]", "expected a JSON object"),
        ('{"a": {"b": 1, "b": 2}}', 'duplicate key "b"'),
        ('{"a": ' + "9" * 5000 + "}", "number has too many digits"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
    ],
)
def test_invalid_json_is_an_error_with_a_message(text: str, mistake: str) -> None:
    with pytest.raises(ValueError, match=mistake):
        load_json_object(text)
