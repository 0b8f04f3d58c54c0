"""Transactions: one for each attempt at a task, begun by the attempt and ended by the driver.

What an attempt has written cannot be seen before its transaction is committed, and never where it is aborted; until
then nothing can be seen that comes behind it on its topic-partitions, whoever wrote it.

The broker does not fence: a SEND with the id of a transaction that has ended gets a receipt like any other, opens it
once more, and hides what comes behind it for good, even what was committed (seen on broker 4.0.8). So no SEND of an
attempt may reach a broker after its transaction has ended, in whatever way:

- An attempt reports to the driver only when it has every receipt, and its producers are closed.
- It gives up well before the broker would end the transaction by itself, if by then anything has no receipt.
- It aborts its transaction only where the broker has confirmed that its producers are closed.

An attempt that is killed cannot abort. Its transaction ends by `transactionTimeout`: nobody else knows that it is.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from spark_mq_source.core.errors import BrokerError, MQSourceError, RequestTimeoutError, UnsupportedFeatureError
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.pulsar.client.client import PulsarClient, unrefused
from spark_mq_source.pulsar.client.session import expect
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.protocol import commands

if TYPE_CHECKING:
    from spark_mq_source.pulsar.options import PulsarOptions


T = TypeVar("T")

logger = logging.getLogger(__name__)

MOST_QUIET_SECONDS: Final = 30.0
"""How long before its time-out nothing may be under way any more with a transaction's id; a quarter of a short one."""

MAX_ENDS_IN_FLIGHT: Final = 500
"""As many as other requests, see `client`."""

MOST_NAMED_TRANSACTIONS: Final = 20
"""How many more an error names beside the first one that failed."""

_ENDED: Final = frozenset({"TransactionNotFound", "InvalidTxnStatus"})


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction's name, and where something of it is.

    Attributes:
        most: the more significant half of its id: the number of its coordinator.
        least: the less significant half.
        topic_partition: one that it wrote to.
        position: of an entry there; None where there is none yet.

    Example:
        >>> str(Transaction(0, 33))
        '(0,33)'
    """

    most: int
    least: int
    topic_partition: TopicPartition | None = None
    position: Position | None = None

    def __str__(self) -> str:
        return f"({self.most},{self.least})"


class TaskTransaction:
    """The transaction of one attempt at a task.

    Args:
        options: of the query.
        client: whose connections it uses.

    Attributes:
        id: its most and its least significant half; None before `join`.
        quiet_from: when nothing may be under way any more with its id, in monotonic seconds.

    Example:
        ::

            transaction = TaskTransaction(options, client)
            most, least = transaction.join(topic_partition)
            ...  # SENDs with its id, each after check_time()
            transaction.abort()  # or report Transaction(most, least), for the driver to commit
    """

    def __init__(self, options: PulsarOptions, client: PulsarClient) -> None:
        self._options = options
        self._client = client
        self.quiet_from = math.inf
        self.id: tuple[int, int] | None = None

    def join(self, topic_partition: TopicPartition) -> tuple[int, int]:
        """Has the transaction write to a topic-partition, and begins it if this is the first; its id.

        Raises:
            UnsupportedFeatureError: the broker has no transactions.
            MQSourceError: no answer in time, or a refusal.
        """
        if self.id is None:
            self.id = self._begin()
        most, least = self.id

        def add() -> None:
            session = self._client.open_coordinator(most)
            added = session.request(
                lambda request_id: commands.AddPartitionToTxn(request_id, least, most, (str(topic_partition),)),
                lambda answer: unrefused(expect(answer, commands.AddPartitionToTxnResponse)),
            )
            self._client.wait_for_one(added, f"ADD_PARTITION_TO_TXN of {topic_partition}")

        self._retrying(add)
        return self.id

    def _begin(self) -> tuple[int, int]:
        coordinators = self._retrying(self._client.fetch_coordinators)
        if not coordinators:
            raise UnsupportedFeatureError(
                "pulsar-native: deliveryGuarantee=transaction needs transactions, which this broker has not: set "
                "transactionCoordinatorEnabled=true in its configuration"
            )
        number = random.randrange(coordinators)  # noqa: S311 - spreads load, hides nothing

        def begin() -> commands.NewTxnResponse:
            # From before it is asked: the broker begins to count later.
            timeout_seconds = self._options.transaction_timeout_ms / 1000
            self.quiet_from = time.monotonic() + timeout_seconds - min(MOST_QUIET_SECONDS, timeout_seconds / 4)
            session = self._client.open_coordinator(number)
            begun = session.request(
                lambda request_id: commands.NewTxn(request_id, self._options.transaction_timeout_ms, number),
                lambda answer: unrefused(expect(answer, commands.NewTxnResponse)),
            )
            return self._client.wait_for_one(begun, "NEW_TXN")

        begun = self._retrying(begin)
        return begun.txnid_most_bits, begun.txnid_least_bits

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(call, deadline=Deadline.after_ms(self._options.send_timeout_ms))

    def check_time(self) -> None:
        """There is time to send with its id, or to wait for a receipt.

        Raises:
            RequestTimeoutError: it will end soon.
        """
        if self.id is not None and time.monotonic() >= self.quiet_from:
            raise RequestTimeoutError(
                f"pulsar-native: transaction ({self.id[0]},{self.id[1]}) ends soon, and the task is not done: raise "
                f"transactionTimeout ({self._options.transaction_timeout_ms} ms) above what the whole job takes"
            )

    def abort(self) -> None:
        """Ends it, and nothing of it can be seen, now or later; only where nothing more can be sent with its id."""
        if self.id is not None:
            _abort(self._client, [Transaction(*self.id)], Deadline.after_ms(self._options.operation_timeout_ms))


def commit_transactions(options: PulsarOptions, transactions: Sequence[Transaction]) -> None:
    """Makes visible what the tasks of a job or micro-batch have written (driver).

    All are ended at once, as nearly as can be; not together: when the driver dies in between, those that are committed
    stay so, and the others end by their time-out.

    Raises:
        MQSourceError: a transaction could not be committed, or nobody knows whether it was.
    """
    with PulsarClient(options) as client:
        failed = _end(client, transactions, commands.TxnAction.COMMIT, Deadline.after_ms(options.send_timeout_ms))
        unclear = {one: error for one, error in failed.items() if not (error.is_ambiguous and _is_visible(client, one))}
    if not unclear:
        return
    for one, error in unclear.items():
        logger.error("pulsar-native: transaction %s %s: %s", one, error.outcome, error.reason)
    transaction, error = next(iter(unclear.items()))
    others = [f"{one} {other.outcome}" for one, other in unclear.items() if one != transaction]
    if len(others) > MOST_NAMED_TRANSACTIONS:
        others[MOST_NAMED_TRANSACTIONS:] = [f"{len(others) - MOST_NAMED_TRANSACTIONS} more are in the driver's log"]
    raise BrokerError(
        f"pulsar-native: {len(transactions) - len(unclear)} of {len(transactions)} transactions are committed, and "
        f"what their tasks have written stays visible; transaction {transaction} {error.outcome}: {error.reason}"
        f"{''.join(f'; {one}' for one in others)} (raise transactionTimeout, {options.transaction_timeout_ms} ms, "
        f"above what the whole job takes, if it has run out)"
    ) from error.reason


def abort_transactions(options: PulsarOptions, transactions: Sequence[Transaction]) -> None:
    """Drops what the tasks of a job or micro-batch have written, but for what is committed already (driver).

    What cannot be aborted ends by its time-out.
    """
    with PulsarClient(options) as client:
        _abort(client, transactions, Deadline.after_ms(options.operation_timeout_ms))


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a transaction could not be ended.

    Attributes:
        reason: the error.
        is_ambiguous: whether it may have been ended all the same.
    """

    reason: MQSourceError
    is_ambiguous: bool

    @property
    def outcome(self) -> str:
        """What has become of the transaction."""
        return "may have been committed, or not" if self.is_ambiguous else "was not committed"


def _abort(client: PulsarClient, transactions: Sequence[Transaction], deadline: Deadline) -> None:
    try:
        failed = _end(client, transactions, commands.TxnAction.ABORT, deadline)
    except MQSourceError as error:
        logger.warning("pulsar-native: transactions are left to their time-out: %s", error)
        return
    for transaction, failure in failed.items():
        logger.info("pulsar-native: transaction %s was not aborted: %s", transaction, failure.reason)


def _end(
    client: PulsarClient, transactions: Sequence[Transaction], action: commands.TxnAction, deadline: Deadline
) -> dict[Transaction, _Failure]:
    """Ends transactions, again and again if that may help; those that could not be, and why."""
    left = dict.fromkeys(transactions)
    unanswered: set[Transaction] = set()
    failed: dict[Transaction, _Failure] = {}

    def attempt() -> None:
        again: MQSourceError | None = None
        # A list of its own, since `left` shrinks on the way.
        asked = list(left)
        for start in range(0, len(asked), MAX_ENDS_IN_FLIGHT):
            for one, error in _end_once(client, asked[start : start + MAX_ENDS_IN_FLIGHT], action):
                if error is None:
                    del left[one]
                elif error.retryable:
                    unanswered.add(one)
                    again = error
                else:
                    # By an END whose answer was lost, or by the time-out.
                    ended = isinstance(error, BrokerError) and error.code_name in _ENDED
                    failed[one] = _Failure(error, is_ambiguous=ended and one in unanswered)
                    del left[one]
        if again is not None:
            raise again

    try:
        retrying(attempt, deadline=deadline)
    except MQSourceError as error:
        failed |= {one: _Failure(error, is_ambiguous=one in unanswered) for one in left}
    return failed


def _end_once(
    client: PulsarClient, transactions: Sequence[Transaction], action: commands.TxnAction
) -> list[tuple[Transaction, MQSourceError | None]]:
    sessions = {number: client.open_coordinator(number) for number in {one.most for one in transactions}}
    answers: list[tuple[Transaction, Future[commands.EndTxnResponse]]] = []
    for one in transactions:
        ended = sessions[one.most].request(
            partial(_end_command, one, action), lambda answer: unrefused(expect(answer, commands.EndTxnResponse))
        )
        answers.append((one, ended))
    outcomes: list[tuple[Transaction, MQSourceError | None]] = []
    for one, answer in answers:
        try:
            client.wait_for_one(answer, f"END_TXN of {one}")
        except MQSourceError as error:
            outcomes.append((one, error))
        else:
            outcomes.append((one, None))
    return outcomes


def _end_command(transaction: Transaction, action: commands.TxnAction, request_id: int) -> commands.EndTxn:
    return commands.EndTxn(request_id, transaction.least, transaction.most, action)


def _is_visible(client: PulsarClient, transaction: Transaction) -> bool:
    """Whether an entry of a transaction can be read, which then was committed; it may not say so of one that was."""
    if transaction.topic_partition is None or transaction.position is None:
        return False
    at, position = transaction.topic_partition, transaction.position
    try:
        found = client.fetch_first_entries({at: position}).get(at)
    except MQSourceError as error:
        logger.info("pulsar-native: transaction %s: nothing can be read of it: %s", transaction, error)
        return False
    return found is not None and (found.ledger_id, found.entry_id) == (position.ledger, position.entry)
