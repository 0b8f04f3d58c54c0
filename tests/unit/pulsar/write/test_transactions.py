"""Transactions against scripted brokers on real sockets: lost answers, refusals, and no answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from spark_mq_source.core.errors import BrokerError
from spark_mq_source.core.options import WRITE
from spark_mq_source.pulsar.client.connections import MAX_REQUESTS_IN_FLIGHT
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol import commands as c
from spark_mq_source.pulsar.write.transactions import (
    Transaction,
    _is_visible,
    abort_transactions,
    commit_transactions,
)
from tests.fix_net import in_turn
from tests.unit.pulsar.client import test_client
from tests.unit.pulsar.client.test_client import Broker, Link
from tests.unit.pulsar.write.test_writer import nothing

TRANSACTIONS = [Transaction(0, number) for number in range(3)]
NOT_READY, INVALID_STATUS, CONFLICT, NOT_FOUND = 6, 21, 23, 24


def loaded(_: Link, command: Any) -> c.TcClientConnectResponse:
    return c.TcClientConnectResponse(command.request_id)


def ended(_: Link, command: Any) -> c.EndTxnResponse:
    return c.EndTxnResponse(command.request_id)


def refused(code: int, message: str = "no") -> Callable[[Link, Any], object]:
    return lambda _, command: c.EndTxnResponse(command.request_id, error=code, message=message)


brokers = test_client.broker


@pytest.fixture
def broker(brokers: Callable[..., Broker]) -> Callable[..., Broker]:
    return lambda answer: brokers({c.TcClientConnectRequest: loaded, c.EndTxn: answer})


def options(broker: Broker, **more: str) -> PulsarOptions:
    given = {"serviceUrl": broker.url, "operationTimeout": "500ms", "sendTimeout": "60s"} | more
    return PulsarOptions.from_spark(given, WRITE)


def test_all_ends_are_requested_before_the_first_is_answered(broker) -> None:
    waiting: list[Any] = []

    def collect(_: Link, command: Any) -> object:
        waiting.append(command)
        return [ended(_, one) for one in waiting] if len(waiting) == len(TRANSACTIONS) else None

    commit_transactions(options(broker(collect)), TRANSACTIONS)
    assert [(one.txnid_least_bits, one.txn_action) for one in waiting] == [(n, c.TxnAction.COMMIT) for n in range(3)]


def test_retryable_requests_are_repeated(broker) -> None:
    at = broker(in_turn(refused(NOT_READY), ended))
    commit_transactions(options(at), TRANSACTIONS)
    assert sorted(one.txnid_least_bits for one in at.of(c.EndTxn)) == [0, 0, 1, 2]


def test_a_transaction_that_ended_without_a_request_was_not_committed(broker) -> None:
    at = broker(in_turn(ended, refused(NOT_FOUND), ended))
    with pytest.raises(
        BrokerError, match=r"2 of 3 transactions are committed.*\(0,1\) was not committed.*TransactionNotFound"
    ):
        commit_transactions(options(at), TRANSACTIONS)


def test_a_transaction_whose_answer_was_lost_may_have_been_committed(broker) -> None:
    at = broker(in_turn(nothing, refused(NOT_FOUND)))
    with pytest.raises(BrokerError, match=r"0 of 1 .*\(0,0\) may have been committed, or not: .*TransactionNotFound"):
        commit_transactions(options(at), TRANSACTIONS[:1])


def test_a_transaction_without_an_answer_may_have_been_committed(broker) -> None:
    at = broker(nothing)
    with pytest.raises(BrokerError, match=r"may have been committed, or not: .*no answer to END_TXN of \(0,0\)"):
        commit_transactions(options(at, sendTimeout="1s"), TRANSACTIONS[:1])


def answered_to_aborts(answer: Callable[[Link, Any], object]) -> Callable[[Link, Any], object]:
    return lambda link, command: answer(link, command) if command.txn_action is c.TxnAction.ABORT else None


def test_a_transaction_that_is_aborted_after_an_unanswered_commit_was_not_committed(broker) -> None:
    at = broker(answered_to_aborts(ended))
    with pytest.raises(BrokerError, match=r"\(0,0\) was not committed: .*no answer to END_TXN of \(0,0\)"):
        commit_transactions(options(at, sendTimeout="1s"), TRANSACTIONS[:1])


@pytest.mark.parametrize("status", ["COMMITTING", "COMMITTED"])
def test_a_commit_that_the_coordinator_has_begun_counts(broker, caplog, status) -> None:
    text = f"Expect Txn `(0,0)` to be in ABORTING status but it is in {status} status"
    at = broker(answered_to_aborts(refused(INVALID_STATUS, text)))
    commit_transactions(options(at, sendTimeout="1s"), TRANSACTIONS[:1])
    assert "transaction (0,0) will be committed once all of its topics are available" in caplog.text


def test_a_transaction_that_is_being_aborted_may_have_been_committed(broker) -> None:
    at = broker(answered_to_aborts(refused(INVALID_STATUS, "but it is in ABORTING status")))
    with pytest.raises(BrokerError, match=r"may have been committed, or not"):
        commit_transactions(options(at, sendTimeout="1s"), TRANSACTIONS[:1])


@pytest.mark.parametrize(("first", "is_visible"), [((7, 3), True), ((7, 4), False), ((8, 3), False), (None, False)])
def test_only_an_entry_of_a_transaction_proves_its_commit(first, is_visible) -> None:
    at, position = TopicPartition("persistent://public/default/t", 0), Position(7, 3)

    class Client:
        def fetch_first_entries(self, starts: object) -> dict[TopicPartition, Position]:
            assert starts == {at: position}
            return {} if first is None else {at: Position(*first)}

    assert _is_visible(Client(), Transaction(0, 1, at, position)) is is_visible


def test_an_abort_ignores_transactions_that_cannot_be_aborted(broker) -> None:
    at = broker(in_turn(refused(NOT_FOUND), refused(CONFLICT), ended))
    abort_transactions(options(at), TRANSACTIONS)
    assert [one.txn_action for one in at.of(c.EndTxn)] == [c.TxnAction.ABORT] * 3


MANY = [Transaction(number % 3, number) for number in range(4 * MAX_REQUESTS_IN_FLIGHT + 60)]


@pytest.mark.parametrize("count", [MAX_REQUESTS_IN_FLIGHT + 60, len(MANY)])
@pytest.mark.parametrize(
    ("end", "action"), [(commit_transactions, c.TxnAction.COMMIT), (abort_transactions, c.TxnAction.ABORT)]
)
def test_each_of_thousands_of_transactions_is_ended_once(broker, count, end, action) -> None:
    at = broker(ended)
    end(options(at), MANY[:count])
    asked = [(one.txnid_most_bits, one.txnid_least_bits, one.txn_action) for one in at.of(c.EndTxn)]
    assert asked == [(one.most, one.least, action) for one in MANY[:count]]


def test_failed_ones_of_thousands_of_transactions_are_named_and_all_others_committed(broker, caplog) -> None:
    lost = {0, MAX_REQUESTS_IN_FLIGHT - 1, MAX_REQUESTS_IN_FLIGHT, len(MANY) - 1} | set(range(700, 740))
    slow = {5, MAX_REQUESTS_IN_FLIGHT + 1, 1100}
    committed: list[int] = []

    def answer(link: Link, command: Any) -> object:
        number = command.txnid_least_bits
        if number in lost:
            return refused(NOT_FOUND)(link, command)
        if number in slow:
            slow.remove(number)
            return refused(NOT_READY)(link, command)
        committed.append(number)
        return ended(link, command)

    with pytest.raises(BrokerError) as caught:
        commit_transactions(options(broker(answer)), MANY)
    assert sorted(committed) == sorted(set(range(len(MANY))) - lost)
    sentence = str(caught.value)
    assert f"{len(MANY) - len(lost)} of {len(MANY)} transactions are committed" in sentence
    assert "(0,0) was not committed: " in sentence
    assert f"({(MAX_REQUESTS_IN_FLIGHT - 1) % 3},{MAX_REQUESTS_IN_FLIGHT - 1}) was not committed" in sentence
    assert "; 23 more in the driver's log" in sentence
    logged = [record.args[0] for record in caplog.records if record.levelname == "ERROR"]
    assert [one.least for one in logged] == sorted(lost)
