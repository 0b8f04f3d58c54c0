"""Retry letters and dead letters of one queue task: topics, counts and batches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import TooManyAttemptsError
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.options import OnMaxRedeliver
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.read import decoding
from spark_mq_source.pulsar.read import letters as module
from spark_mq_source.pulsar.read.letters import DELAY_TIME, RECONSUMETIMES, QueueLetters, times_put_off
from spark_mq_source.pulsar.read.queue_log import log_batch
from tests.unit.pulsar.payload.test_messages import Reversal, batch, encrypted, entry, single

TOPIC = "persistent://public/default/t"
DEAD, RETRY = f"{TOPIC}-s-DLQ", f"{TOPIC}-s-RETRY"


class Writer:
    """A writer that records the value and the properties of each letter, batch by batch."""

    def __init__(self) -> None:
        self.batches: list[list[tuple[bytes, dict[str, str]]]] = []
        self.closed = 0

    def write(self, letters: pa.RecordBatch) -> None:
        self.batches.append([(row["value"], dict(row["properties"])) for row in letters.to_pylist()])

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def writers() -> dict[str, Writer]:
    return {DEAD: Writer(), RETRY: Writer()}


def letters_of(writers: dict[str, Writer], **options: Any) -> QueueLetters:
    chosen = {
        "subscription": "s",
        "dead_letter_topic": None,
        "nack_delay_ms": 1000,
        "nack_max_delay_ms": 4000,
        "max_redeliver_count": 2,
        "on_max_redeliver": OnMaxRedeliver.DEAD_LETTER,
        "on_encrypted": "fail",
        "crypto_private_keys": None,
        "crypto_key_reader": None,
        "max_message_bytes": 1 << 20,
        "max_pending_chunk_bytes": 1 << 20,
    } | options
    opened: Any = lambda topic, _: writers[topic]  # noqa: E731 - one line
    return QueueLetters(
        SimpleNamespace(**chosen),  # type: ignore[arg-type] # the attributes that the letters use
        TopicPartition(TOPIC, -1),
        "pulsar-native: t",
        opened,
        counters=Counters(),
    )


def logged(*bodies: bytes) -> pa.RecordBatch:
    messages = [c.Message(1, 7, number, 0, (), memoryview(body)) for number, body in enumerate(bodies)]
    return log_batch(messages, [1] * len(messages))


def put_off_before(times: int | None, value: bytes = b"v") -> bytes:
    properties = [] if times is None else [{"key": RECONSUMETIMES, "value": str(times)}]
    return entry(value, properties=properties)


@pytest.mark.parametrize(
    ("text", "times"),
    [("0", 0), ("3", 3), ("9" * 9, 999_999_999), ("9" * 10, 0), ("", 0), ("-1", 0), ("many", 0), ("٣", 0)],
)
def test_a_count_must_be_a_number_of_at_most_nine_digits(text: str, times: int) -> None:
    assert times_put_off({RECONSUMETIMES: text}) == times


def test_a_message_is_put_off_up_to_the_limit_and_then_given_up(writers: dict[str, Writer]) -> None:
    letters_of(writers).put_off(logged(*(put_off_before(n, b"%d" % (n or 0)) for n in (None, 1, 2, 3))))
    (retried,) = writers[RETRY].batches
    assert [(value, found[RECONSUMETIMES], found[DELAY_TIME]) for value, found in retried] == [
        (b"0", "1", "1000"),
        (b"1", "2", "2000"),
    ]
    (dead,) = writers[DEAD].batches
    assert [value for value, _ in dead] == [b"2", b"3"]


def test_the_letter_of_an_encrypted_message_is_decrypted(
    writers: dict[str, Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "decryptor_of", lambda _: Reversal())
    letters_of(writers).give_up(logged(encrypted(b"terces")), ["r"])
    assert [[value for value, _ in one] for one in writers[DEAD].batches] == [[b"secret"]]


def test_no_retry_letter_is_sent_if_all_messages_are_given_up(writers: dict[str, Writer]) -> None:
    letters_of(writers).put_off(logged(put_off_before(2), put_off_before(7)))
    assert (len(writers[DEAD].batches), writers[RETRY].batches) == (1, [])


def test_without_a_limit_a_message_is_always_put_off(writers: dict[str, Writer]) -> None:
    letters_of(writers, max_redeliver_count=0).put_off(logged(put_off_before(1000)))
    assert [[found[RECONSUMETIMES] for _, found in one] for one in writers[RETRY].batches] == [["1001"]]
    assert writers[DEAD].batches == []


def test_the_first_message_beyond_the_limit_ends_the_read_before_anything_is_sent(writers: dict[str, Writer]) -> None:
    letters = letters_of(writers, on_max_redeliver=OnMaxRedeliver.FAIL)
    with pytest.raises(TooManyAttemptsError, match="message 7:1 was put off 2 times, and maxRedeliverCount is 2;"):
        letters.put_off(logged(put_off_before(1), put_off_before(2), put_off_before(3)))
    assert [one.batches for one in writers.values()] == [[], []]


def test_messages_of_an_entry_are_given_up_for_its_reason_in_batches(
    writers: dict[str, Writer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 3)
    entries = [batch(*[single(b"%d" % n)] * 2) for n in range(3)]
    letters_of(writers).give_up(logged(*entries, put_off_before(1, b"3")), ["r0", "r1", "r2", "r3"])
    # A batch ends with the entry that fills it: the second entry has the fourth row, the fourth entry the sixth.
    assert [[value for value, _ in one] for one in writers[DEAD].batches] == [
        [b"0", b"0", b"1", b"1"],
        [b"2", b"2", b"3"],
    ]


def test_a_batch_ends_at_the_limit_itself(writers: dict[str, Writer], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_ROWS", 2)
    letters_of(writers).give_up(logged(*(put_off_before(0, b"%d" % n) for n in range(4))), ["r"] * 4)
    assert [[value for value, _ in one] for one in writers[DEAD].batches] == [[b"0", b"1"], [b"2", b"3"]]
    # The first row has at least this many bytes, and less than two rows have.
    monkeypatch.setattr(module, "_MAX_BYTES", 1)
    letters_of(writers).give_up(logged(put_off_before(0, b"4"), put_off_before(0, b"5")), ["r"] * 2)
    assert [[value for value, _ in one] for one in writers[DEAD].batches[2:]] == [[b"4"], [b"5"]]


def test_both_writers_are_closed(writers: dict[str, Writer]) -> None:
    letters = letters_of(writers)
    letters.put_off(logged(put_off_before(0), put_off_before(2)))
    letters.close()
    assert [one.closed for one in writers.values()] == [1, 1]
