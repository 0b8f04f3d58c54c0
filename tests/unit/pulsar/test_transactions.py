"""Transactions against scripted brokers on real sockets: answers that are lost, refused, or never come."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_mq_source.core.errors import BrokerError
from spark_mq_source.core.options import WRITE
from spark_mq_source.pulsar import commands as c
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.transactions import Transaction, abort_transactions, commit_transactions
from tests.unit.pulsar.test_client import Broker, Link
from tests.unit.pulsar.test_writer import in_turn, nothing

TRANSACTIONS = [Transaction(0, number) for number in range(3)]
NOT_READY, CONFLICT, NOT_FOUND = 6, 23, 24


def loaded(_: Link, command: Any) -> c.TcClientConnectResponse:
    return c.TcClientConnectResponse(command.request_id)


def ended(_: Link, command: Any) -> c.EndTxnResponse:
    return c.EndTxnResponse(command.request_id)


def refused(code: int) -> Callable[[Link, Any], object]:
    return lambda _, command: c.EndTxnResponse(command.request_id, error=code, message="no")


@pytest.fixture
def broker() -> Iterator[Callable[..., Broker]]:
    with contextlib.ExitStack() as stack:

        def start(answer: Callable[[Link, Any], object]) -> Broker:
            started = Broker({c.TcClientConnectRequest: loaded, c.EndTxn: answer})
            stack.callback(started.stop)
            return started

        yield start


def options(broker: Broker, **more: str) -> PulsarOptions:
    given = {"serviceUrl": broker.url, "operationTimeout": "500ms", "sendTimeout": "10s"} | more
    return PulsarOptions.from_spark({name.lower(): value for name, value in given.items()}, WRITE)


def test_all_ends_are_asked_for_before_the_first_is_answered(broker) -> None:
    waiting: list[Any] = []

    def collect(_: Link, command: Any) -> object:
        waiting.append(command)
        return [ended(_, one) for one in waiting] if len(waiting) == len(TRANSACTIONS) else None

    commit_transactions(options(broker(collect)), TRANSACTIONS)
    assert [(one.txnid_least_bits, one.txn_action) for one in waiting] == [(n, c.TxnAction.COMMIT) for n in range(3)]


def test_what_may_pass_is_asked_for_again(broker) -> None:
    at = broker(in_turn(refused(NOT_READY), ended))
    commit_transactions(options(at), TRANSACTIONS)
    assert sorted(one.txnid_least_bits for one in at.of(c.EndTxn)) == [0, 0, 1, 2]


def test_one_that_has_ended_unasked_was_not_committed(broker) -> None:
    at = broker(in_turn(ended, refused(NOT_FOUND), ended))
    with pytest.raises(
        BrokerError, match=r"2 of 3 transactions are committed.*\(0,1\) was not committed.*TransactionNotFound"
    ):
        commit_transactions(options(at), TRANSACTIONS)


def test_one_whose_answer_was_lost_may_have_been_committed(broker) -> None:
    at = broker(in_turn(nothing, refused(NOT_FOUND)))
    with pytest.raises(BrokerError, match=r"0 of 1 .*\(0,0\) may have been committed, or not: .*TransactionNotFound"):
        commit_transactions(options(at), TRANSACTIONS[:1])


def test_one_that_is_never_answered_may_have_been_committed(broker) -> None:
    at = broker(nothing)
    with pytest.raises(BrokerError, match=r"may have been committed, or not: .*no answer to END_TXN of \(0,0\)"):
        commit_transactions(options(at, sendTimeout="1s"), TRANSACTIONS[:1])


def test_an_abort_leaves_what_cannot_be_aborted(broker) -> None:
    at = broker(in_turn(refused(NOT_FOUND), refused(CONFLICT), ended))
    abort_transactions(options(at), TRANSACTIONS)
    assert [one.txn_action for one in at.of(c.EndTxn)] == [c.TxnAction.ABORT] * 3
