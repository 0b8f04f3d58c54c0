"""`onCorrupt=deadLetter` in every format: bad messages are stored in another topic before they are acknowledged."""

from __future__ import annotations

import logging
import re
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from spark_mq_source.base_format import BaseFormat
from spark_mq_source.core.columns import VALUE
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import MQSourceError, OptionError, TopicNotFoundError
from tests.formats import Format, schema_of, start_query
from tests.formats.nsq import NsqFormat

PROPERTIES = {"pulsar-native": "properties", "tubemq": "attributes"}
"""The column of a message's properties; NSQ has none."""

COUNT = 60


def value_of(number: int) -> bytes:
    return b"%d" % number if number % 5 else b"\xff%d" % number


GOOD = [str(n) for n in range(COUNT) if n % 5]
BAD = [value_of(n) for n in range(COUNT) if n % 5 == 0]


def letter_options(topic: str) -> dict[str, Any]:
    return {"valueFormat": "string", "onCorrupt": "deadLetter", "deadLetterTopic": topic}


def dead_letters(mq: Format, topic: str, count: int) -> list[dict[str, Any]]:
    """Return the content of a dead letter topic, which has this many messages."""
    more: dict[str, Any] = {"maxRows": count, "createChannel": True} if mq.name == "nsq" else {}
    if mq.name == "tubemq":
        more["lowLatency"] = True  # otherwise they are visible only when they are flushed
    also = f", {PROPERTIES[mq.name]} map<string,string>" if mq.name in PROPERTIES else ""
    rows = mq.read(topic, f"value binary{also}", **more).to_pylist(maps_as_pydicts="strict")
    return [{"value": row["value"], "properties": row.get(PROPERTIES.get(mq.name))} for row in rows]


@pytest.fixture
def topics(mq: Format) -> tuple[str, str]:
    """Return a topic with good and bad messages, and one for dead letters."""
    topic, dead = mq.new_topic(2), mq.new_topic()
    mq.publish(topic, [value_of(n) for n in range(COUNT)])
    return topic, dead


def test_rows_and_dead_letters_are_all_messages(
    mq: Format, topics: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    topic, dead = topics
    with caplog.at_level(logging.WARNING):
        found = mq.read(topic, f"value string, {mq.position_columns}", maxBatchRows=7, **letter_options(dead))
    rows = found.to_pylist()
    assert sorted(row["value"] for row in rows) == sorted(GOOD)
    mq.assert_each_once(rows)
    letters = dead_letters(mq, dead, len(BAD))
    assert sorted(letter["value"] for letter in letters) == sorted(BAD)
    if mq.name in PROPERTIES:
        # Pulsar's names have the partition, as those of its Java client.
        places = [f"{topic}-partition-{n}" for n in range(2)] if mq.name == "pulsar-native" else [topic]
        for letter in letters:
            properties = letter["properties"]
            assert properties["REAL_TOPIC"] in places
            assert properties["ATTEMPT"] == "0"
            assert properties["REASON"].startswith("value: ")
        assert len({letter["properties"]["ORIGIN_MESSAGE_ID"] for letter in letters}) == len(BAD)
    else:
        assert caplog.text.count(f"a dead letter to topic {dead}: REAL_TOPIC {topic}, ORIGIN_MESSAGE_ID ") == len(BAD)


def test_a_repeated_task_repeats_only_dead_letters(mq: Format, topics: tuple[str, str]) -> None:
    topic, dead = topics
    how = letter_options(dead) | {"maxBatchRows": 7}
    if not mq.rows_stay:
        how["maxInFlight"] = 12
    with closing(mq.batches(topic, "value string", **how)) as batches:  # type: ignore[type-var] # a generator
        first = next(batches).num_rows + next(batches).num_rows
    # In NSQ the first batch is finished, and the second one is requeued.
    assert first
    counters, rows = Counters(), []
    schema = schema_of(f"value string, {mq.position_columns}")
    if mq.name == "nsq":
        how |= {"maxRows": 10_000, "idleTimeout": "2s"}
    options = mq.door.fit_read(mq.options(topic, **how), schema)
    for task in mq.door.plan(options, ()):
        for batch in mq.door.read(options, task, schema, counters):
            rows += batch.to_pylist()
    mq.assert_each_once(rows)
    if mq.rows_stay:
        assert sorted(row["value"] for row in rows) == sorted(GOOD)
        assert counters.dead_letters == len(BAD)
    letters = Counter(letter["value"] for letter in dead_letters(mq, dead, len(BAD) + 1))
    assert set(letters) <= set(BAD)
    assert sum(letters.values()) > len(BAD)


def test_a_streams_triggers_store_dead_letters(mq: Format) -> None:
    feed, dead = mq.feed(2), mq.new_topic()
    given = dict(feed.stream) | {name: str(value) for name, value in letter_options(dead).items()}
    query = start_query(mq, given, "value string")
    try:
        feed.publish([value_of(n) for n in range(COUNT)])
        query.until(len(GOOD))
        assert sorted(query.values) == sorted(GOOD)
    finally:
        query.close()
    assert sorted({letter["value"] for letter in dead_letters(mq, dead, len(BAD))}) == sorted(BAD)


def test_a_missing_dead_letter_topic_is_an_error_before_the_query_begins(mq: Format) -> None:
    feed, dead = mq.feed(1), mq.unused_topic()
    given = dict(feed.stream) | {name: str(value) for name, value in letter_options(dead).items()}
    if mq.name == "nsq":
        # NSQ creates a topic when a message is published to it.
        feed.publish([value_of(0)])
        assert mq.read(feed.topic, "value string", maxRows=1, **letter_options(dead)).num_rows == 0
        assert [letter["value"] for letter in dead_letters(mq, dead, 1)] == [value_of(0)]
        return
    missing = rf"^{mq.name}: deadLetterTopic {re.escape(dead)}(: | \()"
    with pytest.raises(TopicNotFoundError, match=missing):
        mq.plan(feed.topic, **letter_options(dead))
    with pytest.raises(TopicNotFoundError, match=missing):
        mq.door.open_stream(mq.door.parse_stream_options(given))
    assert dead not in mq.topics()


def test_options_required_together(mq: Format) -> None:
    topic = mq.new_topic()
    both = "onCorrupt=deadLetter.* and deadLetterTopic go together"
    with pytest.raises(OptionError, match=both):
        mq.options(topic, onCorrupt="deadLetter")
    with pytest.raises(OptionError, match=both):
        mq.options(topic, deadLetterTopic="dead")
    with pytest.raises(OptionError, match="deadLetterTopic: must differ from a topic that is read"):
        mq.options(topic, onCorrupt="deadLetter", deadLetterTopic=topic)


def test_messages_are_kept_if_their_dead_letter_is_not_stored(
    mq: Format, topics: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, dead = topics
    schema = schema_of("value string")
    options = mq.door.fit_read(mq.options(topic, **letter_options(dead)), schema)

    class Refusing:
        def write(self, batch: Any) -> None:
            assert batch.num_rows
            assert VALUE in batch.schema.names

        def flush(self) -> None:
            raise MQSourceError("no room")

        def close(self) -> None:
            pass

    monkeypatch.setattr(type(mq.door), "_dead_letter_writer", lambda *_: Refusing())
    task = mq.door.plan(options, ())[0]
    with pytest.raises(MQSourceError, match=f"^{mq.name}: reading .*: dead letters to topic {dead}: no room$"):
        list(mq.door.read(options, task, schema))
    # Nothing is acknowledged: NSQ requeues delivered messages, so they are delivered again.
    monkeypatch.undo()
    more = {} if mq.rows_stay else {"maxRows": COUNT}
    assert sorted(mq.read(topic, **more).column("value").to_pylist()) == sorted(value_of(n) for n in range(COUNT))


def test_the_options_of_a_preview_send_no_dead_letters(mq: Format) -> None:
    given = {name.lower(): str(value) for name, value in letter_options("dead").items()}
    door = mq.door
    assert isinstance(door, BaseFormat)
    looked = door.parse_look_options(_where(mq) | given)
    assert looked.on_corrupt == "null"


def _where(mq: Format) -> dict[str, str]:
    host, port = mq.service
    name = {"pulsar-native": "serviceurl", "tubemq": "masters", "nsq": "nsqlookupdhttpaddresses"}[mq.name]
    scheme = "pulsar://" if mq.name == "pulsar-native" else ""
    more = {"channel": "c"} if isinstance(mq, NsqFormat) else {}
    return {name: f"{scheme}{host}:{port}", "topic": "t"} | more
