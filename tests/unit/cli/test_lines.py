"""Format strings like kcat's."""

from __future__ import annotations

import contextlib
from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.cli.formats import FORMATS
from spark_mq_source.cli.lines import TOKENS, Line, default_line
from spark_mq_source.core.errors import OptionError
from spark_mq_source.formats import load_format

TIME = datetime(2026, 11, 22, 21, 16, 14, 294_000, timezone.utc)
ROWS = {
    "pulsar-native": {
        "key": b"UA",
        "value": b'{"number":1}',
        "topic": "persistent://public/default/flights",
        "partition": 1,
        "message_id": {"ledger_id": 309, "entry_id": 0, "batch_index": 2},
        "publish_time": TIME,
        "event_time": None,
        "properties": [("day", "1"), ("käse", "ja")],
    },
    "tubemq": {
        "value": b'{"number":1}',
        "topic": "flights",
        "broker_id": 1,
        "partition": 0,
        "message_id": 28,
        "message_time": TIME,
        "message_type": "UA",
        "attributes": [("day", "1")],
    },
    "nsq": {
        "value": b'{"number":1}',
        "topic": "flights",
        "channel": "spark",
        "message_id": "18a4e7b5fed6a000",
        "timestamp": TIME,
        "attempts": 3,
        "nsqd": "localhost:4150",
    },
}


def line_of(template: str, format_name: str = "pulsar-native", **how: bool) -> Line:
    return Line(template, FORMATS[format_name], list(load_format(format_name).columns.readable), **how)


def printed(template: str, format_name: str = "pulsar-native", **columns: object) -> str:
    return line_of(template, format_name).of(ROWS[format_name] | columns)


@pytest.mark.parametrize("name", FORMATS)
def test_the_rows_of_this_file_are_those_of_the_format(name: str):
    assert tuple(ROWS[name]) == load_format(name).columns.default


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("pulsar-native", '1 309:0:2 2026-11-22T21:16:14.294Z UA {"number":1}\n'),
        ("tubemq", '1:0 28 2026-11-22T21:16:14.294Z UA {"number":1}\n'),
        ("nsq", 'localhost:4150 18a4e7b5fed6a000 2026-11-22T21:16:14.294Z {"number":1}\n'),
    ],
)
def test_a_line_shows_position_time_key_and_value_by_default(name: str, line: str):
    assert printed(default_line(FORMATS[name], with_topic=False), name) == line
    topic = ROWS[name]["topic"]
    assert printed(default_line(FORMATS[name], with_topic=True), name) == f"{topic} {line}"


EVERY = "|".join(f"%{letter}" for letter in TOKENS)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "pulsar-native",
            "persistent://public/default/flights|1|309:0:2|2026-11-22T21:16:14.294Z|1795382174294|UA|2|day=1,käse=ja|"
            '{"number":1}|12',
        ),
        ("tubemq", 'flights|1:0|28|2026-11-22T21:16:14.294Z|1795382174294|UA|2|day=1|{"number":1}|12'),
        (
            "nsq",
            'flights|localhost:4150|18a4e7b5fed6a000|2026-11-22T21:16:14.294Z|1795382174294|NULL|-1||{"number":1}|12',
        ),
    ],
)
def test_every_token_has_a_meaning_in_every_format(name: str, line: str):
    assert printed(EVERY, name) == line


def test_null_is_visible_and_not_empty():
    assert printed("%k %K|%s %S", key=None, value=None) == "NULL -1|NULL -1"
    assert printed("%k %K|%s %S", key=b"", value=b"") == " 0| 0"
    assert printed("%d %T", "tubemq", message_time=None) == "NULL -1"


def test_a_time_that_python_lacks_is_its_microseconds():
    assert printed("%d %T", publish_time=253_402_300_800_000_000) == "253402300800000000 253402300800000"


def test_a_topic_without_partitions_has_a_dash_for_one():
    assert printed("%p %{partition}", partition=-1) == "- -1"


def test_lengths_are_in_bytes():
    assert printed("%K %S", key="käse".encode(), value=b"\xff\xff") == "5 2"
    assert printed("%K", "tubemq", message_type="käse") == "5"


def test_a_struct_is_compact_json():
    assert printed("%s %S", value={"number": 1, "late": None}) == '{"number":1,"late":null} 24'


def test_any_column_can_be_named_and_is_read():
    line = line_of("%{properties} %{event_time} %{sequence_id}")
    assert line.columns == ["properties", "event_time", "sequence_id"]
    assert line.of(ROWS["pulsar-native"] | {"sequence_id": 7}) == '[["day","1"],["käse","ja"]] NULL 7'
    assert line_of("%t").columns == []


def test_escapes_are_those_of_kcat():
    assert printed(r"%%\t\n\r\\\x41\x00%%s") == "%\t\n\r\\A\x00%s"


@pytest.mark.parametrize(
    ("template", "why"),
    [
        ("%q", "unknown '%q'; expected %t, %p, %o, "),
        ("100%", "unknown '%'; expected"),
        ("\\", "unknown '\\\\\\\\'; expected"),
        (r"\q", "unknown '\\\\\\\\q'; expected"),
        (r"\xff", "unknown '\\\\\\\\x'; expected"),
        ("%{nope}", "no column nope; expected one of key, value, topic"),
        ("%{deliver_at}", "no column deliver_at"),
        ("%{key", "unknown '%{'"),
    ],
)
def test_an_unknown_token_or_column_is_an_error_that_lists_the_known_ones(template: str, why: str):
    with pytest.raises(OptionError, match=rf"^--format: {why}".replace("{", r"\{")):
        line_of(template)


def test_colors_are_printed_only_on_request():
    row = ROWS["pulsar-native"] | {"value": None}
    template = default_line(FORMATS["pulsar-native"], with_topic=True)
    assert "\x1b" not in line_of(template).of(row)
    colored = line_of(template, in_color=True).of(row)
    assert "\x1b[32mUA\x1b[0m" in colored
    assert colored.endswith("\x1b[35mNULL\x1b[0m\n")
    assert line_of("%s", in_color=True).of(ROWS["nsq"]) == '{"number":1}'


def test_hexadecimal_on_request():
    assert line_of("%k %s", as_hex=True).of(ROWS["pulsar-native"] | {"value": b"\x01\xff"}) == "5541 01ff"


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_can_be_printed(text: str):
    assert printed(text.replace("\\", "\\\\").replace("%", "%%")) == text


@given(st.text(st.sampled_from(r"%\{}xstpo09nk ")))
def test_a_format_string_is_printed_or_refused(template: str):
    with contextlib.suppress(OptionError):
        line = line_of(template)
        assert line.of(ROWS["pulsar-native"]) or not template
