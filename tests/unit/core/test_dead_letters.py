"""Dead letters, from the batch with the bad messages to a writer that stores them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.columns import CORRUPT_COLUMNS, Column, ColumnTable
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.dead_letters import DeadLetters
from spark_mq_source.core.errors import ServiceNotReadyError
from spark_mq_source.values.encodings import Encoding, TypedRead
from spark_mq_source.values.rows import TypedRows, typed_batches

TABLE = ColumnTable(
    Column("key", ("binary",), ("binary",)),
    Column("value", ("binary", "string"), ("binary",)),
    Column("topic", ("string",)),
    Column("shard", ("int",)),
    Column("id", ("bigint",)),
    Column("tags", ("map<string,string>",), ("map<string,string>",)),
    Column("schema_version", ("binary",), by_default=False),
    *CORRUPT_COLUMNS,
    position=("shard", "id"),
    properties="tags",
)
WITHOUT_PROPERTIES = ColumnTable(*TABLE.columns, position=TABLE.position)
TEXT = TypedRead(Encoding("string"), Encoding("string"))
VALUE = pa.schema([("value", pa.string())])


class Writer:
    """A writer that stores its rows."""

    def __init__(self, counters: Counters) -> None:
        self.counters = counters
        self.letters: list[dict[str, Any]] = []
        self.flushed = 0
        self.is_closed = False
        self.error: Exception | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        if self.error is not None:
            raise self.error
        self.letters += batch.to_pylist(maps_as_pydicts="strict")
        self.counters.wait_seconds += 2.0

    def flush(self) -> None:
        self.flushed = len(self.letters)

    def close(self) -> None:
        self.is_closed = True


class Reading:
    """A task that reads batches of messages."""

    def __init__(self, schema: pa.Schema, typed: TypedRead = TEXT, table: ColumnTable = TABLE, **how: Any) -> None:
        self.writers: list[Writer] = []
        self.counters = Counters()
        self.letters = DeadLetters("mq: reading task 1", "dead", self._open, table, counters=self.counters, **how)
        self.stage = TypedRows(
            schema, typed, table, on_corrupt="deadLetter", raw_errors=("_corrupt", "_error"), dead_letters=self.letters
        )

    def _open(self, counters: Counters) -> Writer:
        self.writers.append(Writer(counters))
        return self.writers[-1]

    def batches(self, *batches: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
        def raw(schema: pa.Schema) -> Iterator[pa.RecordBatch]:
            for messages in batches:
                rows = [{"topic": "t", "shard": 3, "id": n, "tags": {}} | one for n, one in enumerate(messages)]
                yield pa.RecordBatch.from_pylist(rows, schema=schema)

        return typed_batches(self.stage, raw, "task 1")

    @property
    def stored(self) -> list[dict[str, Any]]:
        return [letter for writer in self.writers for letter in writer.letters[: writer.flushed]]


def test_dead_letters_are_stored_before_their_batch_is_passed_on() -> None:
    reading = Reading(VALUE)
    rows = reading.batches([{"value": b"a"}], [{"value": b"\xff"}, {"value": b"b"}], [{"value": b"\xfe"}])
    assert next(rows).to_pylist() == [{"value": "a"}]
    assert not reading.writers
    assert next(rows).to_pylist() == [{"value": "b"}]
    assert [letter["value"] for letter in reading.stored] == [b"\xff"]
    assert next(rows).to_pylist() == []
    assert [letter["value"] for letter in reading.stored] == [b"\xff", b"\xfe"]
    assert list(rows) == []
    (writer,) = reading.writers
    assert writer.is_closed
    assert (reading.counters.dead_letters, reading.counters.wait_seconds) == (2, 4.0)


def test_a_dead_letter_has_its_origin_and_reason() -> None:
    reading = Reading(VALUE, attempt=2)
    version = (7).to_bytes(8, "big")
    message = {"value": b"\xff", "key": b"k", "tags": {"trace": "1"}, "schema_version": version}
    assert [batch.num_rows for batch in reading.batches([message])] == [0]
    (letter,) = reading.stored
    reason = letter["tags"].pop("REASON")
    assert reason.startswith("value: ")
    assert letter == {
        "value": b"\xff",
        "key": "k",  # as text, which clients receive as text
        "tags": {
            "trace": "1",
            "REAL_TOPIC": "t",
            "ORIGIN_MESSAGE_ID": "3:0",
            "ORIGIN_SCHEMA_VERSION": "7",
            "ATTEMPT": "2",
        },
    }


def test_a_dead_letter_of_a_dead_letter_keeps_the_first_origin() -> None:
    reading = Reading(VALUE)
    tags = {"REAL_TOPIC": "first", "ORIGIN_MESSAGE_ID": "0:1", "REASON": "old", "ATTEMPT": "3"}
    list(reading.batches([{"value": b"\xff", "tags": tags}]))
    found = reading.stored[0]["tags"]
    assert (found["REAL_TOPIC"], found["ORIGIN_MESSAGE_ID"], found["ATTEMPT"]) == ("first", "0:1", "0")
    assert found["REASON"] != "old"


def test_a_bad_key_makes_the_whole_message_a_dead_letter() -> None:
    reading = Reading(pa.schema([("key", pa.string())]))
    list(reading.batches([{"value": b"fine", "key": b"\xff"}, {"value": None, "key": b"\xfe"}]))
    assert [(letter["value"], letter["key"]) for letter in reading.stored] == [(b"fine", b"\xff"), (None, b"\xfe")]
    assert reading.stored[0]["tags"]["REASON"].startswith("key: ")


@pytest.mark.parametrize("value", ["binary", "string"])
def test_the_dead_letter_of_a_corrupt_message_has_its_bytes(value: str) -> None:
    schema = pa.schema([("value", getattr(pa, value)()), ("_error", pa.string())])
    reading = Reading(schema, TypedRead())
    corrupt = {"value": None, "_error": "the checksum does not match", "_corrupt": b"\x00\xff"}
    (batch,) = reading.batches([{"value": b"a"}, corrupt])
    assert [row["_error"] for row in batch.to_pylist()] == [None]
    assert [letter["value"] for letter in reading.stored] == [b"\x00\xff"]
    assert reading.stored[0]["tags"]["REASON"] == "the checksum does not match"


def test_without_properties_the_origin_of_a_dead_letter_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    reading = Reading(VALUE, table=WITHOUT_PROPERTIES)
    with caplog.at_level(logging.WARNING):
        list(reading.batches([{"value": b"\xff"}]))
    assert set(reading.stored[0]) == {"value", "key"}
    assert "mq: reading task 1: a dead letter to topic dead: REAL_TOPIC t, ORIGIN_MESSAGE_ID 3:0, REASON value: " in (
        caplog.text
    )


def test_a_refused_dead_letter_ends_the_task() -> None:
    reading = Reading(VALUE)
    rows = reading.batches([{"value": b"\xff"}], [{"value": b"\xfe"}])
    next(rows)
    reading.writers[0].error = ServiceNotReadyError("mq: b1: no")
    with pytest.raises(ServiceNotReadyError, match=r"^mq: reading task 1: dead letters to topic dead: mq: b1: no$"):
        next(rows)
    assert reading.writers[0].is_closed


def test_an_abandoned_task_closes_the_writer() -> None:
    reading = Reading(VALUE)
    rows = reading.batches([{"value": b"\xff"}], [{"value": b"a"}])
    next(rows)
    rows.close()  # type: ignore[attr-defined] # a generator
    assert reading.writers[0].is_closed


PAYLOADS = st.one_of(st.none(), st.binary(max_size=3), st.text(max_size=3).map(str.encode))
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"key": PAYLOADS, "value": PAYLOADS}),
        st.fixed_dictionaries({"_error": st.just("corrupt"), "_corrupt": st.binary(max_size=3)}),
    )
)


def _text(payload: bytes | None) -> str | None:
    return None if payload is None else payload.decode()


def _is_text(payload: bytes | None) -> bool:
    try:
        _text(payload)
    except UnicodeDecodeError:
        return False
    return True


@given(st.lists(MESSAGES, max_size=4))
def test_rows_and_dead_letters_are_all_messages_in_order(batches: list[list[dict[str, Any]]]) -> None:
    number = iter(range(10_000))
    batches = [[message | {"id": next(number)} for message in batch] for batch in batches]
    reading = Reading(pa.schema([("key", pa.string()), ("value", pa.string()), ("id", pa.int64())]))
    rows = [row for batch in reading.batches(*batches) for row in batch.to_pylist()]
    good, bad = [], []
    for message in (one for batch in batches for one in batch):
        is_good = "_error" not in message and _is_text(message["key"]) and _is_text(message["value"])
        (good if is_good else bad).append(message)
    assert rows == [{"key": _text(one["key"]), "value": _text(one["value"]), "id": one["id"]} for one in good]
    assert [(one["value"], one["key"], one["tags"]["ORIGIN_MESSAGE_ID"]) for one in reading.stored] == [
        (
            one.get("value", one.get("_corrupt")),
            _text(one.get("key")) if _is_text(one.get("key")) else one["key"],
            f"3:{one['id']}",
        )
        for one in bad
    ]
    assert reading.counters.dead_letters == len(bad)
