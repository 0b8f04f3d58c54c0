"""Transactions: one per task attempt, begun by the attempt and ended by the driver.

Rows of an attempt become visible when its transaction is committed, and never if it is aborted. Until then, all later
messages of its topic-partitions are invisible too, whatever their producer.

The broker does not fence: a SEND with the id of an ended transaction gets a normal receipt, reopens the transaction,
and hides all later messages for good, even committed ones (seen on broker 4.0.8). So no SEND of an attempt may reach a
broker after the end of its transaction:

- An attempt reports to the driver only after it has all receipts and its producers are closed.
- It fails well before the transaction's timeout, if entries are still pending then.
- It aborts its transaction only after the broker has confirmed that its producers are closed, and has answered an
  entry in each topic-partition. Without the latter, the broker may store the entries after the abort.

A killed attempt cannot abort; its transaction ends by `transactionTimeout`, because only the attempt knew its id.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from spark_mq_source.core.errors import BrokerError, MQSourceError, RequestTimeoutError, UnsupportedFeatureError
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.connections import windows
from spark_mq_source.pulsar.client.session import accepted
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.protocol import commands

if TYPE_CHECKING:
    from spark_mq_source.pulsar.options import PulsarOptions


T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_IDLE_SECONDS: Final = 30.0
"""Time before a transaction's timeout at which no entry may be pending; a quarter of the timeout if that is shorter."""

MAX_NAMED_TRANSACTIONS: Final = 20
"""Maximum number of failed transactions that an error lists after the first one."""

_ENDED: Final = frozenset({"TransactionNotFound", "InvalidTxnStatus"})


@dataclass(frozen=True, slots=True)
class Transaction:
    """A transaction's id, and one entry of it.

    Attributes:
        most: the more significant half of the id: the number of its coordinator.
        position: position of an entry there; None if there is none.

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
    """The transaction of one task attempt.

    Attributes:
        id: None before `join`.
        idle_from: monotonic seconds from which on no entry may be pending with its id.

    Example:
        ::

            transaction = TaskTransaction(options, client)
            begun = transaction.join(topic_partition)
            ...  # SENDs with its id, each after check_time()
            transaction.abort()  # or report `begun`, for the driver to commit
    """

    def __init__(self, options: PulsarOptions, client: PulsarClient) -> None:
        self._options = options
        self._client = client
        self.idle_from = math.inf
        self.id: Transaction | None = None

    def join(self, topic_partition: TopicPartition) -> Transaction:
        """Add a topic-partition to the transaction, which the first call begins; return its id.

        Raises:
            UnsupportedFeatureError: transactions are disabled on the broker.
            MQSourceError: no answer in time, or a refusal.
        """
        if self.id is None:
            self.id = self._begin()
        joined = self.id

        def add() -> None:
            session = self._client.open_coordinator(joined.most)
            command = partial(
                commands.AddPartitionToTxn,
                txnid_least_bits=joined.least,
                txnid_most_bits=joined.most,
                partitions=(str(topic_partition),),
            )
            added = session.request(command, accepted(commands.AddPartitionToTxnResponse))
            self._client.wait(added, f"ADD_PARTITION_TO_TXN of {topic_partition}")

        self._retrying(add)
        return joined

    def _begin(self) -> Transaction:
        coordinators = self._retrying(self._client.fetch_coordinators)
        if not coordinators:
            raise UnsupportedFeatureError(
                "pulsar-native: deliveryGuarantee=transaction needs transactions, which are disabled on this broker: "
                "set transactionCoordinatorEnabled=true in its configuration"
            )
        number = random.randrange(coordinators)  # noqa: S311 - for load balancing, not for security

        def begin() -> commands.NewTxnResponse:
            # Counted from before the request, so that the broker's timeout starts later.
            timeout_seconds = self._options.transaction_timeout_ms / 1000
            self.idle_from = time.monotonic() + timeout_seconds - min(MAX_IDLE_SECONDS, timeout_seconds / 4)
            session = self._client.open_coordinator(number)
            command = partial(commands.NewTxn, txn_ttl_millis=self._options.transaction_timeout_ms, tc_id=number)
            begun = session.request(command, accepted(commands.NewTxnResponse))
            try:
                return self._client.wait(begun, "NEW_TXN")
            except RequestTimeoutError as error:
                # Beyond that limit there is no answer at all (4.0.8, `ServerCnx.handleNewTxn`).
                remedy = (
                    "; if this continues, the broker's maxActiveTransactionsPerCoordinator may be reached: raise it"
                )
                raise error.with_remedy(remedy) from error

        begun = self._retrying(begin)
        return Transaction(begun.txnid_most_bits, begun.txnid_least_bits)

    def _retrying(self, call: Callable[[], T]) -> T:
        return retrying(call, deadline=Deadline.after_ms(self._options.send_timeout_ms))

    def check_time(self) -> None:
        """Check that there is time left to send, or to wait for a receipt.

        Raises:
            RequestTimeoutError: the transaction's timeout is near.
        """
        if self.id is not None and time.monotonic() >= self.idle_from:
            raise RequestTimeoutError(
                f"pulsar-native: transaction {self.id} ends soon, and the task is not done: raise "
                f"transactionTimeout ({self._options.transaction_timeout_ms} ms) above the duration of the whole job"
            )

    def abort(self) -> None:
        """Abort the transaction, so that its rows never become visible. Call only when no more entries can be sent."""
        if self.id is not None:
            _abort(self._client, [self.id], Deadline.after_ms(self._options.operation_timeout_ms))


def commit_transactions(options: PulsarOptions, transactions: Sequence[Transaction]) -> None:
    """Commit the transactions of a job or micro-batch, on the driver.

    The commits are sent together but are not atomic: if the driver dies in between, committed transactions stay, and
    the others end by their timeout.

    Raises:
        MQSourceError: a transaction could not be committed, or its outcome is unknown.
    """
    with PulsarClient(options) as client:
        failed = _end(client, transactions, commands.TxnAction.COMMIT, Deadline.after_ms(options.send_timeout_ms))
        _decide(client, failed, Deadline.after_ms(options.operation_timeout_ms))
        unclear = {one: error for one, error in failed.items() if not (error.is_ambiguous and _is_visible(client, one))}
    if not unclear:
        return
    for one, error in unclear.items():
        logger.error("pulsar-native: transaction %s %s: %s", one, error.outcome, error.reason)
    transaction, error = next(iter(unclear.items()))
    others = [f"{one} {other.outcome}" for one, other in unclear.items() if one != transaction]
    if len(others) > MAX_NAMED_TRANSACTIONS:
        others[MAX_NAMED_TRANSACTIONS:] = [f"{len(others) - MAX_NAMED_TRANSACTIONS} more in the driver's log"]
    raise BrokerError(
        f"pulsar-native: {len(transactions) - len(unclear)} of {len(transactions)} transactions are committed, and the "
        f"rows of their tasks stay visible; transaction {transaction} {error.outcome}: "
        f"{error.reason}{''.join(f'; {one}' for one in others)} (raise transactionTimeout, "
        f"{options.transaction_timeout_ms} ms, above the duration of the whole job, if it has expired)"
    ) from error.reason


def abort_transactions(options: PulsarOptions, transactions: Sequence[Transaction]) -> None:
    """Abort the transactions of a job or micro-batch, except those already committed, on the driver.

    Transactions that cannot be aborted end by their timeout.
    """
    with PulsarClient(options) as client:
        _abort(client, transactions, Deadline.after_ms(options.operation_timeout_ms))


@dataclass(frozen=True, slots=True)
class _Failure:
    """The failure to end a transaction.

    Attributes:
        is_ambiguous: whether the transaction may have ended nevertheless.
    """

    reason: MQSourceError
    is_ambiguous: bool

    @property
    def outcome(self) -> str:
        """The outcome of the commit."""
        return "may have been committed, or not" if self.is_ambiguous else "was not committed"


def _abort(client: PulsarClient, transactions: Sequence[Transaction], deadline: Deadline) -> None:
    try:
        failed = _end(client, transactions, commands.TxnAction.ABORT, deadline)
    except MQSourceError as error:
        logger.warning("pulsar-native: transactions were not aborted and end by their timeout: %s", error)
        return
    for transaction, failure in failed.items():
        logger.info("pulsar-native: transaction %s was not aborted: %s", transaction, failure.reason)


def _end(
    client: PulsarClient, transactions: Sequence[Transaction], action: commands.TxnAction, deadline: Deadline
) -> dict[Transaction, _Failure]:
    """End transactions, with retries; return those that could not be ended, and why."""
    left = dict.fromkeys(transactions)
    unanswered: set[Transaction] = set()
    failed: dict[Transaction, _Failure] = {}

    def command(one: Transaction, *, request_id: int) -> commands.EndTxn:
        return commands.EndTxn(request_id, one.least, one.most, action)

    def attempt() -> None:
        again: MQSourceError | None = None
        # A copy, since `left` shrinks in the loop.
        asked = list(left)
        for window in windows(asked):
            sessions = {number: client.open_coordinator(number) for number in {one.most for one in window}}
            answers = [
                (one, sessions[one.most].request(partial(command, one), accepted(commands.EndTxnResponse)))
                for one in window
            ]
            for one, answer in answers:
                try:
                    client.wait(answer, f"END_TXN of {one}")
                except MQSourceError as error:
                    if error.retryable:
                        unanswered.add(one)
                        again = error
                        continue
                    # Ended by an earlier END_TXN whose answer was lost, or by the timeout.
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


def _decide(client: PulsarClient, failed: dict[Transaction, _Failure], deadline: Deadline) -> None:
    """Abort the transactions whose commit may yet happen, and forget those for which it is too late: they commit.

    A coordinator repeats a commit that it has begun until all topics have it, also after a restart, and refuses to
    abort it (`TransactionMetadataStoreService` of 4.0.8). If the write were repeated, its rows would be visible twice.
    """
    doubtful = [one for one, failure in failed.items() if failure.is_ambiguous]
    kept = _end(client, doubtful, commands.TxnAction.ABORT, deadline)
    for one in doubtful:
        if one not in kept:
            failed[one] = _Failure(failed[one].reason, is_ambiguous=False)
        elif any(f"in {status} status" in str(kept[one].reason) for status in ("COMMITTING", "COMMITTED")):
            logger.warning("pulsar-native: transaction %s will be committed once all of its topics are available", one)
            del failed[one]


def _is_visible(client: PulsarClient, transaction: Transaction) -> bool:
    """Return whether an entry of a transaction is readable, which proves the commit; False proves nothing."""
    if transaction.topic_partition is None or transaction.position is None:
        return False
    at, position = transaction.topic_partition, transaction.position
    try:
        found = client.fetch_first_entries({at: position}).get(at)
    except MQSourceError as error:
        logger.info("pulsar-native: transaction %s: cannot read its entry: %s", transaction, error)
        return False
    return found is not None and (found.ledger, found.entry) == (position.ledger, position.entry)
