"""Reads messages for `peek` and `tail`, as rows."""

from __future__ import annotations

import heapq
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from queue import Empty, Queue
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_mq_source.cli.formats import FORMATS
from spark_mq_source.cli.text import microseconds_of
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.sql_types import arrow_schema_of

if TYPE_CHECKING:
    from spark_mq_source.base_format import AnyFormat
    from spark_mq_source.cli.sources import Source
    from spark_mq_source.core.ports import Tail

Row = Mapping[str, Any]
Read = Callable[[Any], Iterator[pa.RecordBatch]]

_AHEAD: Final = 16
"""The number of batches that wait to be printed, before their tasks wait too."""

_WAKE_SECONDS: Final = 0.5
"""The time after which the wait for rows looks for Ctrl-C: one just before a wait begins does not end it."""


def peeked(source: Source, names: Iterable[str], rows: int) -> Generator[Row, None, None]:
    """Yield the rows of a batch read of these columns, task by task; unused messages return to the broker.

    Args:
        source: a batch is limited to `rows` rows unless its options set another limit, so that the read does not wait
            for further messages.
        names: the columns.
        rows: the number of rows that the caller will take.

    Raises:
        MQSourceError: the broker cannot be reached or refuses, or a message cannot be decoded.
    """
    format_ = source.format
    given = format_.parse_look_options({"maxbatchrows": str(rows), **source.options})
    options, read = _reading(format_, given, names)
    for task in format_.plan_look(options):
        with closing(read(task)) as batches:  # type: ignore[type-var] # generators
            for batch in batches:
                yield from _rows_of(batch)


def tailed(source: Source, names: Iterable[str], last: int | None, *, follow: bool) -> Generator[Row, None, None]:
    """Yield the last rows of each partition, then new rows if `follow`.

    Args:
        source: `startingOffsets` and `endingOffsets` have no effect.
        names: the columns.
        last: the number of rows of each partition; None for 10, or for 0 if the broker keeps no past messages.
        follow: whether to continue until the caller closes the generator.

    Raises:
        OptionError: `last` is set, but the broker keeps no past messages.
        MQSourceError: the broker cannot be reached or refuses, or a message cannot be decoded.
    """
    format_ = source.format
    options, read = _reading(format_, format_.parse_tail_options(source.options), names)
    time = FORMATS[source.name].time
    with closing(format_.open_inspector(options)) as inspector:
        tails = inspector.tails()
        found = [_newest(tail, read, 10 if last is None else last) for tail in tails]
        if None in found and (last is not None or not follow):
            raise OptionError(
                f"{source.name} keeps no past messages: pass --follow without --last to print those that are published "
                "from now on, or use peek to see those that wait in a channel"
            )
        # Each partition keeps its order, regardless of its times.
        yield from heapq.merge(*(rows or () for rows in found), key=lambda row: microseconds_of(row[time]))
        if follow:
            yield from _followed(tails, read)


def _reading(
    format_: AnyFormat,
    options: Any,  # noqa: ANN401 - the format's own
    names: Iterable[str],
) -> tuple[Any, Read]:
    """Return the options of a read of these columns, and the read."""
    columns, typed = format_.columns_of_look(options)
    known = format_.columns.readable
    schema = arrow_schema_of({name: known[name][0] for name in names})
    for at, name in enumerate(schema.names):
        if name in columns.names:
            schema = schema.set(at, columns.field(name))
    fitted = format_.fit_read(options, schema, typed)
    return fitted, lambda task: format_.read(fitted, task, schema)


def _newest(tail: Tail[Any], read: Read, wanted: int) -> Iterable[Row] | None:
    """Read the newest messages of a partition, starting further back while there are too few."""
    messages = wanted
    while wanted:
        found = tail.newest(messages)
        if found is None:
            return None
        task, is_whole = found
        rows: deque[Row] = deque((row for batch in read(task) for row in _rows_of(batch)), maxlen=wanted)
        if len(rows) == wanted or is_whole:
            return rows
        # Some are filtered out, belong to another partition of the same store, or mark transactions.
        messages *= 4
    return ()


def _followed(tails: Sequence[Tail[Any]], read: Read) -> Iterator[Row]:
    """Yield the rows of all tails as they arrive; each is read in a thread that ends with the process or an error."""
    found: Queue[pa.RecordBatch | Exception] = Queue(_AHEAD)

    def run(tail: Tail[Any]) -> None:
        try:
            for task in tail.following():
                for batch in read(task):
                    found.put(batch)
        except Exception as error:  # noqa: BLE001 - raised where the rows are taken
            found.put(error)

    for tail in tails:
        threading.Thread(target=run, args=(tail,), name="tail", daemon=True).start()
    while True:
        try:
            one = found.get(timeout=_WAKE_SECONDS)
        except Empty:
            continue
        if isinstance(one, Exception):
            raise one
        yield from _rows_of(one)


def _rows_of(batch: pa.RecordBatch) -> list[Row]:
    """Return the rows of a batch; times and dates that Python does not have are their numbers in Spark."""
    try:
        return batch.to_pylist()  # type: ignore[no-any-return]
    except OverflowError:
        columns = [[_plain(cell) for cell in column] for column in batch.columns]
        return [dict(zip(batch.schema.names, cells, strict=True)) for cells in zip(*columns, strict=True)]


def _plain(cell: pa.Scalar) -> object:
    try:
        return cell.as_py()
    except OverflowError:
        if isinstance(cell, pa.StructScalar):
            return {name: _plain(part) for name, part in cell.items()}
        if isinstance(cell, pa.MapScalar):
            return [tuple(_plain(part) for part in pair.values()) for pair in cell.values]
        if isinstance(cell, pa.ListScalar):
            return [_plain(part) for part in cell.values]
        return cell.value
