"""The writer against scripted brokers on real sockets, for behaviour that real brokers rarely show."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import (
    BrokerError,
    LocalProtocolError,
    MQSourceError,
    RemoteProtocolError,
    ReplayError,
    RequestTimeoutError,
    ServiceNotReadyError,
    UnsupportedFeatureError,
)
from spark_mq_source.core.options import WRITE
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.offsets import Position
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.write.writer import PulsarWriter
from tests.fix_net import in_turn
from tests.protobuf import pulsar as pb
from tests.unit.pulsar.client import test_client
from tests.unit.pulsar.client.test_client import Broker, Link

TOPIC = "persistent://public/default/t"
ATTEMPT = TaskAttempt("job")
UNKNOWN_ERROR, PERSISTENCE_ERROR, CHECKSUM_ERROR, NOT_ALLOWED = 0, 2, 9, 22


def opened(_: Link, command: Any) -> c.ProducerSuccess:
    return c.ProducerSuccess(command.request_id, "made-up-1")


def stored(_: Link, send: Any) -> c.SendReceipt:
    return c.SendReceipt(send.producer_id, send.sequence_id, c.MessageId(7, send.sequence_id))


def closed(_: Link, command: Any) -> c.Success:
    return c.Success(command.request_id)


USUAL = {c.Producer: opened, c.Send: stored, c.CloseProducer: closed}


brokers = test_client.broker


@pytest.fixture
def broker(brokers: Callable[..., Broker]) -> Callable[..., Broker]:
    return lambda answers=None: brokers(USUAL | (answers or {}))


@pytest.fixture
def writer(closing: Callable[[PulsarWriter], PulsarWriter]) -> Callable[..., PulsarWriter]:
    def make(broker: Broker, **options: Any) -> PulsarWriter:
        given = {"serviceUrl": broker.url, "topic": "t", "sendTimeout": "60s", "batching": "false"} | options
        return closing(PulsarWriter(PulsarOptions.from_spark(given, WRITE), ATTEMPT))

    return make


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary())})


def nothing(_: Link, __: Any) -> None:
    return None


def refused(code: int) -> Callable[[Link, Any], object]:
    return lambda _, send: c.SendError(send.producer_id, send.sequence_id, code, "no")


def duplicate(_: Link, send: Any) -> object:
    return c.SendReceipt(send.producer_id, send.sequence_id, c.MessageId(-1, -1))


def close_producer(_: Link, send: Any) -> object:
    return c.CloseProducer(send.producer_id, -1)


def cut(link: Link, _: Any) -> None:
    link.peer.sock.shutdown(socket.SHUT_RDWR)


def opened_with(last_sequence_id: int) -> Callable[[Link, Any], object]:
    return lambda _, command: c.ProducerSuccess(command.request_id, "made-up-1", last_sequence_id)


def sent(broker: Broker) -> list[int]:
    return [send.sequence_id for send in broker.of(c.Send)]


def write(made: PulsarWriter, *values: bytes) -> None:
    made.write(rows(*values))
    made.flush()


def test_rows_are_sent_and_acknowledged(broker, writer) -> None:
    at = broker()
    write(writer(at), b"a", b"b")
    assert sent(at) == [0, 1]
    (producer,) = at.of(c.Producer)
    assert (producer.topic, producer.producer_name, producer.epoch, producer.user_provided_producer_name) == (
        TOPIC,
        None,
        0,
        False,
    )


def test_sequence_ids_continue_from_the_broker_s_and_messages_have_the_schema_version(broker, writer) -> None:
    at = broker({c.Producer: lambda _, command: c.ProducerSuccess(command.request_id, "p", 41, b"\0\1")})
    write(writer(at), b"a")
    (send,) = at.of(c.Send)
    assert send.sequence_id == 42
    body = bytes(send.body)
    metadata = pb.MessageMetadata.FromString(body[10 : 10 + int.from_bytes(body[6:10], "big")])
    assert (metadata.producer_name, metadata.sequence_id, metadata.schema_version) == ("p", 42, b"\0\1")


def test_a_producer_closed_by_the_broker_is_reopened_and_sends_unacknowledged_entries_again(broker, writer) -> None:
    at = broker({c.Send: in_turn(stored, nothing, close_producer, stored)})
    made = writer(at)
    write(made, b"a", b"b", b"c")
    assert sent(at) == [0, 1, 2, 1, 2]
    sends = at.of(c.Send)
    assert [bytes(send.body) for send in sends[3:]] == [bytes(send.body) for send in sends[1:3]]
    first, second = at.of(c.Producer)
    assert (second.producer_name, second.epoch, second.producer_id) == ("made-up-1", 1, first.producer_id)
    assert len(at.of(c.Lookup)) == 2
    # The broker has closed it already.
    assert at.of(c.CloseProducer) == []


@pytest.mark.parametrize(
    ("answers", "values", "numbers", "producers"),
    [
        ((stored, cut, stored), [b"a", b"b", b"c"], [1, 2], 2),
        ((refused(PERSISTENCE_ERROR), stored), [b"a"], [0, 0], 2),
        # An entry that was refused when it was sent again may be stored.
        ((close_producer, refused(PERSISTENCE_ERROR), duplicate), [b"a"], [0, 0, 0], 3),
        ((close_producer, duplicate), [b"a"], [0, 0], 2),
    ],
    ids=["a lost connection", "refused", "closed, and then refused", "closed, and then a duplicate"],
)
def test_unacknowledged_entries_are_sent_again_by_a_new_producer(
    broker, writer, answers, values, numbers, producers
) -> None:
    at = broker({c.Send: in_turn(*answers)})
    write(writer(at), *values)
    assert sent(at)[-len(numbers) :] == numbers
    assert len(at.of(c.Producer)) == producers


@pytest.mark.parametrize(
    "answers",
    [
        (duplicate,),
        (refused(PERSISTENCE_ERROR), duplicate),
        # A broker with deduplication refuses it for now, after it has stored later entries.
        (refused(CHECKSUM_ERROR), refused(UNKNOWN_ERROR), duplicate),
    ],
    ids=["sent once", "refused", "damaged and refused"],
)
def test_an_entry_dropped_as_a_duplicate_that_cannot_be_stored_is_lost(broker, writer, answers) -> None:
    made = writer(broker({c.Send: in_turn(*answers)}))
    with pytest.raises(
        LocalProtocolError, match=r"sequence id 0 as a duplicate although it is not stored.*'made-up-1'"
    ):
        write(made, b"a")


def test_an_entry_that_was_damaged_is_sent_again_once(broker, writer) -> None:
    at = broker({c.Send: in_turn(refused(CHECKSUM_ERROR), stored)})
    made = writer(at)
    write(made, b"a")
    assert sent(at) == [0, 0]
    made = writer(broker({c.Send: refused(CHECKSUM_ERROR)}))
    made.write(rows(b"a"))
    with pytest.raises(BrokerError, match=r"writing to .*/t from sequence id 0 on: .*sequence id 0: .*ChecksumError"):
        made.flush()


def test_a_damaged_chunk_is_not_sent_again_behind_those_that_follow_it(broker, writer) -> None:
    at = broker({c.Send: in_turn(stored, refused(CHECKSUM_ERROR), stored)})
    made = writer(at, chunking="true")
    with pytest.raises(BrokerError, match=r"sequence id 1: .*ChecksumError"):
        write(made, b"x" * (11 << 20))
    assert sent(at).count(1) == 1


def test_a_batch_that_was_damaged_is_named_by_its_last_message(broker, writer) -> None:
    def damaged(_: Link, send: Any) -> object:
        return c.SendError(send.producer_id, send.highest_sequence_id, CHECKSUM_ERROR, "no")

    at = broker({c.Send: in_turn(damaged, stored)})
    write(writer(at, batching="true"), b"a", b"b", b"c")
    assert sent(at) == [0, 0]


def test_a_permanently_refused_entry_fails_at_once(broker, writer) -> None:
    at = broker({c.Send: in_turn(stored, refused(NOT_ALLOWED))})
    made = writer(at)
    made.write(rows(b"a", b"b"))
    with pytest.raises(
        BrokerError, match=rf"{TOPIC} from sequence id 1 on: {at.server.address}.*NotAllowedError \(22\)"
    ):
        made.flush()
    assert len(at.of(c.Producer)) == 1


def columns(values: list[bytes], **more: list[Any]) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(values, pa.binary()), **more})


@pytest.mark.parametrize(("pending", "largest"), [("2m", 83_886), ("16", 16_384), ("1g", 1 << 20)])
def test_batches_of_many_partitions_are_smaller(brokers, writer, pending, largest) -> None:
    at = brokers(USUAL, partitions=100)
    made = writer(at, batching="true", maxPendingBytes=pending)
    count = (1 << 20) // 1000 + 1
    made.write(columns([bytes(1000)] * count, partition=pa.array([7] * count, pa.int32())))
    made.flush()
    assert largest - 1100 < len(at.of(c.Send)[0].body) < largest + 100


@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_incomplete_batches_of_many_topics_are_sent_before_they_fill_the_memory(broker, writer, guarantee) -> None:
    at = broker({c.Producer: opened_with(0)})
    made = writer(at, batching="true", maxPendingBytes="1100", deliveryGuarantee=guarantee, producerName="flights")
    made.write(columns([bytes(1000)] * 4, topic=["a", "b", "c", "a"]))
    assert made._counters.entries == 0
    made.write(columns([bytes(1000)], topic=["a"]))
    # With exactly-once, no other topic's rows may end a batch.
    assert made._counters.entries == (3 if guarantee == "at-least-once" else 0)


def test_a_write_waits_longer_for_a_silent_broker_than_other_connections(broker, writer) -> None:
    made = writer(broker(), keepAliveInterval="50s", operationTimeout="8s")
    write(made, b"a")
    connection = made._open[0].session.connection
    assert connection.next_timer() - connection._last_received == 50.0


def closed_and_refused(link: Link, send: Any) -> object:
    return [close_producer(link, send), refused(PERSISTENCE_ERROR)(link, send)]


@pytest.mark.parametrize(
    "refuse", [refused(PERSISTENCE_ERROR), closed_and_refused], ids=["open", "closed before the refusal"]
)
def test_a_producer_that_opens_but_whose_entries_are_refused_ends_after_send_timeout(broker, writer, refuse) -> None:
    at = broker({c.Send: in_turn(*[refuse] * 500, stored)})
    made = writer(at, sendTimeout="300ms")
    made.write(rows(b"a"))
    with pytest.raises(
        ServiceNotReadyError,
        match=rf"{TOPIC} from sequence id 0 on: no receipt within sendTimeout \(300 ms\): .*PersistenceError \(2\): no",
    ):
        made.flush()
    assert len(sent(at)) < 20, "it pauses before it opens the producer again"


def test_a_receipt_ends_the_time_for_opening_a_producer_again(broker, writer) -> None:
    at = broker({c.Send: in_turn(close_producer, stored)})
    made = writer(at)
    write(made, b"a")
    assert len(at.of(c.Producer)) == 2
    assert made._open[0].reopened_at is None


def test_receipts_out_of_order_are_an_error(broker, writer) -> None:
    def later(_: Link, send: Any) -> object:
        return c.SendReceipt(send.producer_id, send.sequence_id, c.MessageId(7, 5))

    made = writer(broker({c.Send: in_turn(nothing, later)}))
    made.write(rows(b"a", b"b"))
    with pytest.raises(RemoteProtocolError, match="the receipt of sequence id 1 came before that of 0"):
        made.flush()


@pytest.mark.parametrize("answers", [(duplicate,), (stored, duplicate)], ids=["at once", "behind the first"])
def test_a_chunk_dropped_as_a_duplicate_of_its_message_is_an_unsupported_feature(broker, writer, answers) -> None:
    made = writer(broker({c.Send: in_turn(*answers)}), chunking="true", **EXACTLY_ONCE)
    with pytest.raises(UnsupportedFeatureError, match=r"dropped a chunk of a message .* chunking=false"):
        write_and_finish(made, rows(b"x" * (11 << 20)))


def requested_names(broker: Broker) -> list[str | None]:
    return [command.producer_name for command in broker.of(c.Producer)]


def test_entries_whose_refusal_may_be_lost_are_sent_again_under_a_new_name(broker, writer) -> None:
    # The broker has stored the second entry, and does not report whether it refused the first.
    at = broker({c.Producer: in_turn(opened, opened_with(1), opened_with(-1)), c.Send: in_turn(nothing, cut, stored)})
    made = writer(at)
    write(made, b"a", b"b")
    assert sent(at) == [0, 1, 0, 1]
    assert requested_names(at) == [None, "made-up-1", None]


def test_a_refused_entry_is_sent_again_under_a_new_name(broker, writer) -> None:
    def stored_the_second(link: Link, send: Any) -> object:
        return [c.SendError(send.producer_id, 0, CHECKSUM_ERROR, "no"), stored(link, send)]

    at = broker(
        {
            c.Producer: in_turn(opened, opened_with(1), opened_with(-1)),
            c.Send: in_turn(nothing, stored_the_second, stored),
        }
    )
    made = writer(at)
    write(made, b"a", b"b")
    assert sent(at) == [0, 1, 0]
    assert requested_names(at) == [None, "made-up-1", None]


@pytest.mark.parametrize("last", [-1, 0])
def test_entries_without_stored_successors_are_sent_again_under_the_same_name(broker, writer, last) -> None:
    at = broker({c.Producer: in_turn(opened, opened_with(last)), c.Send: in_turn(nothing, cut, stored)})
    made = writer(at)
    write(made, b"a", b"b")
    assert sent(at) == [0, 1, 0, 1]
    assert requested_names(at) == [None, "made-up-1"]


def test_no_refusal_is_lost_if_the_broker_closes_the_producer(broker, writer) -> None:
    at = broker(
        {c.Producer: in_turn(opened, opened_with(1)), c.Send: in_turn(nothing, close_producer, duplicate, duplicate)}
    )
    made = writer(at)
    write(made, b"a", b"b")
    assert requested_names(at) == [None, "made-up-1"]


def test_a_final_refusal_is_not_hidden_by_a_retryable_one(broker, writer) -> None:
    """Both a batch and a chunk behind it were damaged."""

    def both(link: Link, send: Any) -> object:
        first = c.SendError(send.producer_id, 0, CHECKSUM_ERROR, "no")
        return [first, c.SendError(send.producer_id, send.sequence_id, CHECKSUM_ERROR, "no")]

    at = broker({c.Send: in_turn(nothing, both, stored)})
    with pytest.raises(MQSourceError, match="Checksum"):
        write_and_finish(writer(at, chunking="true"), rows(b"a", b"x" * (11 << 20)))
    assert sent(at).count(0) == 1


def test_a_producer_without_an_answer_is_requested_on_another_connection(broker, writer) -> None:
    at = broker({c.Producer: in_turn(nothing, opened)})
    write(writer(at, operationTimeout="500ms"), b"a")
    # Closing the first connection closes the producer too: no CLOSE_PRODUCER is needed.
    assert [sum(isinstance(command, c.Producer) for command in link.requests) for link in at.links] == [1, 1]


def test_a_producer_that_ends_without_pending_entries_is_no_error(broker, writer) -> None:
    def store_and_close(_: Link, send: Any) -> object:
        return [stored(_, send), c.CloseProducer(send.producer_id, -1)]

    at = broker({c.Send: store_and_close})
    made = writer(at)
    write(made, b"a")
    made.flush()
    assert len(at.of(c.Producer)) == 1
    write(made, b"b")
    assert sent(at)[-1] == 1
    assert len(at.of(c.Producer)) == 2


def test_a_refused_producer_fails_with_the_topic(broker, writer) -> None:
    made = writer(broker({c.Producer: lambda _, command: c.Error(command.request_id, 18, "Incompatible schema")}))
    with pytest.raises(MQSourceError, match=rf"writing to {TOPIC}: .*IncompatibleSchema \(18\)"):
        made.write(rows(b"a"))


def test_producer_names_have_the_given_prefix_and_are_unique(broker, writer) -> None:
    at = broker()
    for _ in range(2):
        made = writer(at, producerName="flights")
        write(made, b"a")
    names = [producer.producer_name for producer in at.of(c.Producer)]
    assert all(name.startswith("flights-0-") for name in names)
    assert len(set(names)) == 2


class Transactions:
    """The answers of a broker with transactions, and how each transaction ended."""

    def __init__(self) -> None:
        self.ended: list[c.TxnAction] = []
        self.answers = {
            c.PartitionedMetadata: lambda _, command: c.PartitionedMetadataResponse(
                command.request_id, int("transaction_coordinator" in command.topic)
            ),
            c.TcClientConnectRequest: lambda _, command: c.TcClientConnectResponse(command.request_id),
            c.NewTxn: lambda _, command: c.NewTxnResponse(command.request_id, 7, 0),
            c.AddPartitionToTxn: lambda _, command: c.AddPartitionToTxnResponse(command.request_id, 7, 0),
            c.EndTxn: self._end,
        }

    def _end(self, _: Link, command: Any) -> c.EndTxnResponse:
        self.ended.append(command.txn_action)
        return c.EndTxnResponse(command.request_id)


TRANSACTION = {"deliveryGuarantee": "transaction"}


def test_a_transaction_that_cannot_begin_names_the_limit_that_has_no_error_of_its_own(broker, writer) -> None:
    made = writer(
        broker(Transactions().answers | {c.NewTxn: nothing}),
        operationTimeout="100ms",
        sendTimeout="100ms",
        **TRANSACTION,
    )
    with pytest.raises(RequestTimeoutError, match=r"no answer to NEW_TXN .*maxActiveTransactionsPerCoordinator"):
        made.write(rows(b"a"))


@pytest.mark.parametrize("lose", [close_producer, cut, refused(PERSISTENCE_ERROR)], ids=["closed", "cut", "refused"])
def test_a_transaction_repeats_no_entry_without_deduplication(broker, writer, lose) -> None:
    transactions = Transactions()
    at = broker(transactions.answers | {c.Send: in_turn(stored, lose, stored)})
    with pytest.raises(
        MQSourceError,
        match=rf"writing to {TOPIC} from sequence id 1 on: it is unknown whether 1 pending entries.*"
        r"attempt is aborted.*set-deduplication --enable public/default",
    ) as caught:
        write_and_finish(writer(at, **TRANSACTION), rows(b"a"), rows(b"b"))
    assert caught.value.__cause__ is not None
    assert sent(at) == [0, 1]
    assert transactions.ended == [c.TxnAction.ABORT]


def write_and_finish(made: PulsarWriter, *batches: pa.RecordBatch) -> Any:
    """Do the same as `Writer.write_all`, with a writer that stays open."""
    try:
        for batch in batches:
            made.write(batch)
            made.flush()
        return made.finish().transaction
    except MQSourceError as error:
        made.__exit__(type(error), error, None)
        raise


@pytest.mark.parametrize("lose", [close_producer, cut, refused(PERSISTENCE_ERROR)], ids=["closed", "cut", "refused"])
@pytest.mark.parametrize("again", [stored, duplicate], ids=["stored", "duplicate"])
def test_a_transaction_continues_if_the_broker_deduplicates(broker, writer, lose, again) -> None:
    transactions = Transactions()
    at = broker(
        transactions.answers
        | {c.Send: in_turn(stored, lose, again), c.Producer: in_turn(opened_with(-1), opened_with(0))}
    )
    transaction = write_and_finish(writer(at, **TRANSACTION), rows(b"a"), rows(b"b"))
    assert sent(at) == [0, 1, 1]
    # The position of the first entry: the broker does not report that of a duplicate.
    assert transaction.position == Position(7, 1 if again is stored else 0)
    assert transactions.ended == []


def test_a_transaction_fails_if_a_refusal_may_be_lost(broker, writer) -> None:
    transactions = Transactions()
    at = broker(
        transactions.answers
        | {c.Producer: in_turn(opened_with(-1), opened_with(1)), c.Send: in_turn(nothing, cut, stored)}
    )
    with pytest.raises(MQSourceError, match="may have refused an entry, and would take it for a duplicate"):
        write_and_finish(writer(at, **TRANSACTION), rows(b"a", b"b"))
    assert sent(at) == [0, 1, 0, 1], "sent again only to abort"
    assert transactions.ended == [c.TxnAction.ABORT]


def test_an_abort_waits_for_entries_that_the_broker_may_have_set_aside(broker, writer) -> None:
    transactions = Transactions()
    at = broker(transactions.answers | {c.Send: in_turn(nothing, stored)})
    made = writer(at, **TRANSACTION)
    made.write(rows(b"a"))
    made.__exit__(OSError, OSError(), None)
    _, second = [link for link in at.links if any(isinstance(one, c.Producer) for one in link.requests)]
    order = [type(one) for one in second.requests if isinstance(one, c.Producer | c.Send | c.CloseProducer | c.EndTxn)]
    assert order[:3] == [c.Producer, c.Send, c.CloseProducer]
    assert sent(at) == [0, 0]
    assert transactions.ended == [c.TxnAction.ABORT]


@pytest.mark.parametrize("lose", [close_producer, cut, refused(PERSISTENCE_ERROR)], ids=["closed", "cut", "refused"])
def test_an_abort_is_not_sent_while_the_entries_are_not_answered(broker, writer, caplog, lose) -> None:
    transactions = Transactions()
    at = broker(transactions.answers | {c.Send: lose})
    made = writer(at, operationTimeout="1s", **TRANSACTION)
    made.write(rows(b"a"))
    made.__exit__(OSError, OSError(), None)
    assert sent(at)[:2] == [0, 0]
    assert transactions.ended == []
    assert "a transaction was not aborted and ends by its timeout" in caplog.text


def test_a_transaction_repeats_entries_that_are_certainly_not_stored(broker, writer) -> None:
    transactions = Transactions()
    at = broker(transactions.answers | {c.Send: in_turn(refused(CHECKSUM_ERROR), stored)})
    assert write_and_finish(writer(at, **TRANSACTION), rows(b"a")) is not None
    assert sent(at) == [0, 0]


def test_a_transaction_repeats_no_chunk_even_with_deduplication(broker, writer) -> None:
    transactions = Transactions()
    at = broker(transactions.answers | {c.Producer: opened_with(5), c.Send: in_turn(stored, close_producer, stored)})
    with pytest.raises(MQSourceError, match="for messages in chunks a transaction must not send them again"):
        write_and_finish(writer(at, chunking="true", **TRANSACTION), rows(b"x" * (11 << 20)))
    assert sent(at).count(7) == 1
    assert transactions.ended == [c.TxnAction.ABORT]


def test_a_transaction_that_ends_soon_does_not_wait_for_receipts(broker, writer) -> None:
    transactions = Transactions()
    at = broker(transactions.answers | {c.Send: nothing})
    made = writer(at, **TRANSACTION, transactionTimeout="1s", sendTimeout="10m")
    with pytest.raises(RequestTimeoutError, match=r"ends soon.*raise transactionTimeout \(1000 ms\)"):
        write_and_finish(made, rows(b"a"))
    # The connection with the entry in flight was closed, and the producer's name taken over.
    first, *others = [link for link in at.links if any(isinstance(one, c.Producer) for one in link.requests)]
    assert sent(at) == [0]
    assert [type(one) for one in first.requests].count(c.EndTxn) == 0
    assert len(others) == 1
    assert made._counters.reconnects == 0, "it gave up only after the connection was lost"
    assert transactions.ended == [], "there was no time to send the entry again"


def test_a_transaction_sends_nothing_after_its_quiet_time(broker, writer) -> None:
    transactions = Transactions()
    at = broker(transactions.answers)
    made = writer(at, **TRANSACTION, transactionTimeout="100s")
    began = time.monotonic()
    write(made, b"a")
    # A quarter of the timeout before its end, and at most 30 s.
    assert began + 75 <= made._transaction.idle_from <= time.monotonic() + 75
    made._transaction.idle_from = time.monotonic()
    with pytest.raises(RequestTimeoutError, match="ends soon"):
        write_and_finish(made, rows(b"b"))
    assert sent(at) == [0]
    assert transactions.ended == [c.TxnAction.ABORT]


EXACTLY_ONCE = {"deliveryGuarantee": "exactly-once", "producerName": "flights"}


def test_only_the_last_chunk_of_a_stored_message_is_sent_again(broker, writer) -> None:
    value = b"x" * (11 << 20)
    first = broker({c.Producer: opened_with(0), c.Send: stored})
    write_and_finish(writer(first, chunking="true", **EXACTLY_ONCE), rows(b"a", value, b"b"))
    assert len(sent(first)) == 5
    before, *_, message, behind = sent(first)
    again = broker({c.Producer: opened_with(behind), c.Send: duplicate})
    write_and_finish(writer(again, chunking="true", **EXACTLY_ONCE), rows(b"a", value, b"b"))
    assert sent(again) == [before, message, behind]


def test_a_chunk_is_not_sent_alone_if_its_message_was_lost(broker, writer) -> None:
    """A broker reports the ids of entries that it has passed to its storage, where they may fail."""
    value = b"x" * (11 << 20)
    first = broker({c.Producer: opened_with(0), c.Send: stored})
    write_and_finish(writer(first, chunking="true", **EXACTLY_ONCE), rows(value))
    message = sent(first)[-1]
    again = broker({c.Producer: in_turn(opened_with(message), opened_with(0)), c.Send: in_turn(close_producer, stored)})
    with pytest.raises(
        BrokerError, match=rf"lacks the message of sequence id {message}, which it had reported as stored"
    ):
        write_and_finish(writer(again, chunking="true", **EXACTLY_ONCE), rows(value))
    assert sent(again) == [message]


def test_a_replay_with_fewer_rows_than_an_earlier_attempt_has_stored_fails(broker, writer) -> None:
    first = broker({c.Producer: opened_with(0), c.Send: stored})
    write_and_finish(writer(first, **EXACTLY_ONCE), rows(b"a", b"b"))
    again = broker({c.Producer: opened_with(sent(first)[-1]), c.Send: duplicate})
    with pytest.raises(ReplayError, match="this attempt has 1 rows, an earlier one has stored 2"):
        write_and_finish(writer(again, **EXACTLY_ONCE), rows(b"a"))


class Deduplicating:
    """A topic that deduplicates one producer; the test decides the other answers to SEND.

    It drops an entry whose sequence id is not above the highest stored one, and does not record refused entries.
    """

    def __init__(self, upset: Callable[[int, Link, Any], object]) -> None:
        self.values: list[bytes] = []
        self.highest = -1
        self._upset = upset
        self.answers = {c.Producer: self._open, c.Send: self._store}

    def _open(self, _: Link, command: Any) -> object:
        return c.ProducerSuccess(command.request_id, command.producer_name, self.highest)

    def _store(self, link: Link, send: Any) -> object:
        row = (send.sequence_id >> 16) - 1
        answer = self._upset(row, link, send)
        if answer is not None:
            return answer
        if send.sequence_id <= self.highest:
            return duplicate(link, send)
        self.highest = send.sequence_id
        body = bytes(send.body)
        self.values.append(body[10 + int.from_bytes(body[6:10], "big") :])
        return stored(link, send)


@pytest.mark.parametrize("code", [CHECKSUM_ERROR, NOT_ALLOWED, PERSISTENCE_ERROR])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_an_entry_refused_amid_others_is_stored_once_and_in_order(broker, writer, code, times) -> None:
    """The broker stores entries behind it, so none may follow: no sequence id shows the gap to the next attempt."""
    left = [code] * times

    def refuse(row: int, link: Link, send: Any) -> object:
        return refused(left.pop())(link, send) if row == 5 and left else None

    topic = Deduplicating(refuse)
    at = broker(topic.answers)
    values = [b"%d" % number for number in range(10)]
    for _ in range(4):
        try:
            write_and_finish(writer(at, **EXACTLY_ONCE), rows(*values))
        except BrokerError:
            assert topic.values == values[:5]
        else:
            break
    assert topic.values == values


def test_an_entry_whose_refusal_is_lost_with_the_connection_is_stored_once(broker, writer) -> None:
    lost = [5]

    def lose(row: int, link: Link, send: Any) -> object:
        if row not in lost:
            return None
        lost.remove(row)
        cut(link, send)
        return []

    topic = Deduplicating(lose)
    values = [b"%d" % number for number in range(10)]
    write_and_finish(writer(broker(topic.answers), **EXACTLY_ONCE), rows(*values))
    assert topic.values == values


def test_an_entry_that_is_not_stored_must_not_be_dropped_as_a_duplicate(broker, writer) -> None:
    def open_(_: Link, command: Any) -> object:
        return c.ProducerSuccess(command.request_id, "", -1 if command.epoch == 0 else 1 << 40)

    made = writer(broker({c.Producer: open_, c.Send: duplicate}), **EXACTLY_ONCE)
    with pytest.raises(LocalProtocolError, match="as a duplicate although it is not stored"):
        made.write(rows(b"a"))
