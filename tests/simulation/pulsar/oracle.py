"""Oracles of a cluster: the rows of a range, lost rows, and open connections."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from spark_mq_source.pulsar.offsets import EARLIEST, TopicPartition
from spark_mq_source.pulsar.offsets import Position as OurPosition
from tests.simulation.explore import ViolationError, check_nothing_runs
from tests.simulation.pulsar.broker import Cluster
from tests.simulation.pulsar.ledgers import Position

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        (
            "message_id",
            pa.struct([("ledger_id", pa.int64()), ("entry_id", pa.int64()), ("batch_index", pa.int32())]),
        ),
    ]
)
"""The columns of all reads."""

Row: TypeAlias = tuple[int, int, int, bytes]
"""Ledger, entry, index in the batch (-1 without a batch), value."""


def rows_of(cluster: Cluster, name: str) -> list[Row]:
    """Return every row that was ever visible in a topic-partition, in order, including removed ledgers."""
    return [row for row, _ in _messages(cluster, name)]


def begins_of(cluster: Cluster, name: str) -> dict[Row, Position]:
    """Return the entry with which each message begins: its first chunk, if it has chunks."""
    return dict(_messages(cluster, name))


def gone_rows(cluster: Cluster, name: str) -> set[Row]:
    """Return the rows of messages that begin in a removed ledger."""
    return {row for row, begin in _messages(cluster, name) if begin[0] in cluster.storage[name].removed}


def _messages(cluster: Cluster, name: str) -> Iterator[tuple[Row, Position]]:
    ledger, buffer = cluster.storage[name], cluster.buffers[name]
    chunks: dict[str, tuple[Position, list[bytes]]] = {}
    for (ledger_id, entry_id), entry in sorted(ledger.history.items()):
        if entry.marker is not None:
            continue
        if entry.txn is not None and (entry.txn in buffer.aborted or entry.txn in buffer.ongoing):
            continue
        if entry.chunk is not None:
            uuid, number, count = entry.chunk
            if number == 0:
                chunks[uuid] = (ledger_id, entry_id), []
            begin, parts = chunks.get(uuid, ((-1, -1), []))
            if len(parts) != number:
                continue
            parts.append(entry.values[0])
            if number == count - 1:
                yield (ledger_id, entry_id, -1, b"".join(parts)), begin
                del chunks[uuid]
            continue
        for index, value in enumerate(entry.values):
            yield (ledger_id, entry_id, index if entry.is_batch else -1, value), (ledger_id, entry_id)


def deliverable_rows(cluster: Cluster, name: str) -> list[Row]:
    """Return the rows before the first open transaction."""
    last = cluster.buffers[name].max_read
    return [row for row in rows_of(cluster, name) if row[:2] <= last]


def row_position(row: Row) -> OurPosition:
    """Return the position of a row, in the order of this package."""
    return OurPosition(row[0], row[1], row[2])


def within(rows: Iterable[Row], start: OurPosition, end: OurPosition) -> list[Row]:
    """Return the rows of a range."""
    return [row for row in rows if start < row_position(row) <= end]


def found_rows(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return the rows that were read."""
    return [
        (
            row["message_id"]["ledger_id"],
            row["message_id"]["entry_id"],
            row["message_id"]["batch_index"],
            row["value"],
        )
        for row in rows
    ]


def check_range(
    cluster: Cluster,
    at: TopicPartition,
    start: OurPosition,
    end: OurPosition,
    found: Sequence[Row],
    *,
    may_lose: bool,
    is_first: bool = False,
    is_wanted: Callable[[Row], bool] = lambda _: True,
) -> None:
    """Check that the rows read from a range are the expected ones, in order.

    Args:
        cluster: the cluster that was read.
        at: the topic-partition.
        start: the position before the range.
        end: the last position of the range.
        found: the rows that were read.
        may_lose: whether rows that were removed, or skipped for a reader, may be missing (`failOnDataLoss=false`).
        is_first: whether the query begins with the range.
        is_wanted: whether a row is requested.

    Raises:
        ViolationError: they are not.
    """
    name = str(at)
    ledger = cluster.storage[name]
    expected = [row for row in within(rows_of(cluster, name), start, end) if is_wanted(row)]
    # Uncounted entries are stored twice: readers get them, but cannot begin among them; an object store has none.
    left_out = ledger.uncounted - {row[:2] for row in found}
    expected = [row for row in expected if row[:2] not in left_out]
    gone, begins = gone_rows(cluster, name), begins_of(cluster, name)
    if start == EARLIEST or is_first:
        # A chunked message whose first chunk is before the topic's first entry is passed over.
        expected = [
            row
            for row in expected
            if row in found or begins[row] == row[:2] or not (row in gone or begins[row] <= ledger.taken)
        ]
    if list(found) == expected:
        return
    if start == EARLIEST:
        # "Earliest" is the first entry at the time of the read: entries that were removed before, or skipped for the
        # consumer that determined it, are not requested.
        missing = expected[: len(expected) - len(found)]
        if list(found) == expected[len(missing) :] and all(row in gone or row[:2] <= ledger.taken for row in missing):
            return
    if may_lose:
        lost = {row for row in expected if row in gone or (ledger.unseen_moves > 1 and row[:2] <= ledger.taken)}
        kept = [row for row in expected if row not in lost]
        if [row for row in found if row not in lost] == kept and is_part(found, expected):
            return
    raise ViolationError(f"{at} ({start}, {end}]: {difference(found, expected)}")


def is_part(found: Sequence[Row], expected: Sequence[Row]) -> bool:
    """Return whether rows are among others, in their order and as often."""
    rest = iter(expected)
    return all(row in rest for row in found)


def difference(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Return the missing rows, the excess rows, and whether the order is wrong, for a message."""
    missing = [row for row in expected if row not in found]
    extra = [row for row in found if row not in expected]
    twice = sorted({row for row in found if list(found).count(row) > list(expected).count(row) > 0})
    parts = [f"{len(found)} rows where {len(expected)} are true"]
    parts += [f"missing {missing[:8]}"] if missing else []
    parts += [f"wrong {extra[:8]}"] if extra else []
    parts += [f"too often {twice[:8]}"] if twice else []
    if not (missing or extra or twice):
        parts.append("in another order")
    return "; ".join(parts)


def check_nothing_leaks(cluster: Cluster) -> None:
    """Check that some seconds after a run its processes have no open connection.

    Raises:
        ViolationError: they have.
    """
    world = cluster.world
    world.rest(80.0)  # a broker takes a minute to detect a half-open connection
    for broker in cluster.brokers:
        for connection in broker.connections:
            if connection.stream.process.alive and not connection.stream.muted:
                raise ViolationError(
                    f"{connection.stream.process} still has a connection to {broker.address}, with "
                    f"{len(connection.consumers)} consumers and {len(connection.producers)} producers:\n"
                    f"{world.places()}"
                )
    check_nothing_runs(world)
