"""Values as one line of text that a terminal can show."""

from __future__ import annotations

import json
import unicodedata
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.cli.text import as_json, as_text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "NULL"),
        (b"", ""),
        ("käse".encode(), "käse"),
        (b"\xff\x00", r"\xff\x00"),
        ("line\nline\ttab\x1b[31m\x7f\x9b\u2028", r"line\nline\ttab\x1b[31m\x7f\x9b\u2028"),
        (r"C:\new", r"C:\new"),
        (-1, "-1"),
        (True, "true"),
        (datetime(2026, 11, 22, 21, 16, 14, 294_999, timezone.utc), "2026-11-22T21:16:14.294Z"),
        (datetime(2026, 11, 22, 21, 16, tzinfo=timezone(timedelta(hours=2))), "2026-11-22T19:16:00.000Z"),
        (datetime(2026, 11, 22, 21, 16, 14, 294_999), "2026-11-22T21:16:14.294"),
        ({"ledger": 309, "entry": 0, "batch": -1}, "309:0"),
        ({"ledger_id": 309, "entry_id": 0, "batch_index": 12}, "309:0:12"),
        ({"ledger": 309, "entry": -1, "batch": -1}, "before 309:0"),
        ({"ledger": -1, "entry": -1, "batch": -1}, "none"),
        ({"carrier": "UA", "delays": [1, None], "raw": b"\xff"}, '{"carrier":"UA","delays":[1,null],"raw":"ff"}'),
        ([("k", "v")], '[["k","v"]]'),
    ],
)
def test_values_as_text(value: object, text: str):
    assert as_text(value) == text


def test_only_bytes_are_hexadecimal_on_request():
    assert as_text(b"ab", as_hex=True) == "6162"
    assert as_text("ab", as_hex=True) == "ab"
    assert as_text({"a": b"ab"}, as_hex=True) == '{"a":"6162"}'
    assert json.loads(as_json({"a": b"ab", "b": b"\xff"}, as_hex=True)) == {"a": "6162", "b": "ff"}
    assert json.loads(as_json({"a": b"ab", "b": b"\xff"})) == {"a": "ab", "b": "ff"}


@given(
    st.binary()
    | st.text(st.characters(codec="utf-8"))
    | st.dictionaries(st.text(st.characters(codec="utf-8")), st.binary())
)
def test_a_message_cannot_break_the_line_or_control_the_terminal(value: object):
    text = as_text(value)
    assert not {"Cc", "Zl", "Zp", "Cs"} & {unicodedata.category(each) for each in text}
    assert text.splitlines() in ([text], [])


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Zl", "Zp"])))
def test_text_without_control_characters_is_unchanged(text: str):
    assert as_text(text) == as_text(text.encode()) == text
