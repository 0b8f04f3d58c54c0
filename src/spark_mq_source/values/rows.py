"""Rows with typed columns from the messages of a task: between a format's batches of bytes and Spark's columns.

A batch of messages becomes one batch of rows. The messages of one schema version are decoded together; a batch rarely
has several versions. Messages that cannot be decoded are treated by the option `onCorrupt`, like messages that are
corrupt as a whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import pyarrow as pa

from spark_mq_source.core.columns import (
    CORRUPT,
    ERROR,
    KEY,
    SCHEMA_VERSION,
    VALUE,
    int_array,
    record_batch,
    text_array,
    version_name,
)
from spark_mq_source.core.errors import CorruptMessageError, OptionError
from spark_mq_source.core.implementation import Implementation
from spark_mq_source.core.options import INT32_MAX
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.values import _pairs_python
from spark_mq_source.values.encodings import Encoding, KeyValueEncoding, TypedRead, decoder_for, type_of

if TYPE_CHECKING:
    from collections.abc import Collection

    from spark_mq_source.core.columns import ColumnTable
    from spark_mq_source.core.dead_letters import DeadLetters
    from spark_mq_source.values.decoder import ValueDecoder
    from spark_mq_source.values.inlong.decode import InlongDecoder

logger = logging.getLogger(__name__)

SchemaLookup: TypeAlias = Callable[[bytes], Encoding | KeyValueEncoding | None]
"""Returns the encoding of a schema version in the registry; None if unknown. ValueError: it cannot be decoded."""

_NO_VERSION: Final = b""
_splitting: Final = Implementation(_pairs_python)


# -- the columns


def columns_of(columns: ColumnTable, typed: TypedRead | None) -> pa.Schema:
    """Return the columns that are read by default.

    Raises:
        OptionError: a field of the value has the name of another column, or the value has no fields for columns.
        ValueError: the definition of an encoding cannot be used.

    Example:
        >>> from spark_mq_source.core.columns import Column, ColumnTable
        >>> table = ColumnTable(Column("value", ("binary",)), Column("topic", ("string",)))
        >>> columns_of(table, TypedRead(Encoding("json", "a int, b string"), flatten=True)).names
        ['a', 'b', 'topic']
    """
    fields = [pa.field(name, arrow_type_of_ddl(columns.readable[name][0])) for name in columns.default]
    if typed is None:
        return pa.schema(fields)
    types = {name: type_of(encoding) for name, encoding in typed.encodings.items()}
    fields = [field.with_type(types.get(field.name, field.type)) for field in fields]
    if not typed.flatten:
        return pa.schema(fields)
    value = types.get(VALUE)
    if value is None or not pa.types.is_struct(value):
        raise OptionError(f"flatten: the value is {value or 'binary'}, which has no fields to be columns")
    # The columns of records replace those of their message.
    replaced = {VALUE, *(field.name for field in value if typed.is_packed)}
    beside = [field for field in fields if field.name not in replaced]
    clashes = sorted({field.name.lower() for field in beside} & {field.name.lower() for field in value})
    if clashes:
        raise OptionError(
            f"flatten: {', '.join(clashes)} would be a field of the value and a column of the message: name the "
            f"columns that you need by .schema(), or read the struct with flatten=false"
        )
    return pa.schema([*value, *beside])


def decoded_names(columns: ColumnTable, typed: TypedRead, names: Sequence[str]) -> set[str]:
    """Return the decoded ones of these columns: their types depend on the encoding, not on the format's table."""
    found = set(typed.encodings)
    if typed.flatten:
        found.discard(VALUE)
        records = {field.name for field in type_of(typed.value)} if typed.is_packed else ()
        found.update(name for name in names if name == VALUE or name in records or name not in columns.readable)
    return found


# -- decoding of batches


@dataclass(frozen=True, slots=True)
class _PartDecoder:
    """The decoding of keys or values of one schema version.

    Attributes:
        decoder: None for bytes that stay unchanged.
        problem: the reason why no message of this version can be decoded.
    """

    decoder: ValueDecoder | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class _Version:
    sides: Mapping[str, _PartDecoder]
    is_inline: bool


@dataclass(slots=True)
class _Group:
    """The decoded keys and values of messages of one version, and their errors, by row in the group.

    If messages give several values, `parents` has the message of each one, and `messages` how many were decoded.
    """

    arrays: dict[str, pa.Array]
    reasons: dict[int, str]
    parents: pa.Array | None = None
    messages: int = 0


class TypedRows:
    """Decoder of the batches of one task.

    Args:
        schema: the wanted columns, exactly as Spark has them.
        on_corrupt: the treatment of messages that cannot be decoded: `fail`, `skip`, `null` or `deadLetter`.
        lookup: queries the registry for a version.
        raw_errors: those of the columns `_corrupt` and `_error` that the batches of messages have already.
        dead_letters: stores the messages that cannot be decoded, with `deadLetter`.

    Attributes:
        raw_schema: the columns that the batches of messages must have.
        undecodable: the number of messages so far that could not be decoded.

    Raises:
        OptionError: the columns do not fit the encodings; names the field.
    """

    def __init__(
        self,
        schema: pa.Schema,
        typed: TypedRead,
        columns: ColumnTable,
        *,
        on_corrupt: str = "fail",
        lookup: SchemaLookup | None = None,
        raw_errors: Collection[str] = (),
        dead_letters: DeadLetters | None = None,
        max_rows: int = INT32_MAX,
    ) -> None:
        self._schema = schema
        self._max_rows = max_rows
        self._taken = 0
        self._properties = columns.properties
        self._typed = typed
        self._position = columns.position
        self._on_corrupt = on_corrupt
        self._lookup = lookup
        self._dead_letters = dead_letters
        self._versions: dict[bytes, _Version] = {}
        self._flat = [
            name for name in schema.names if typed.flatten and name in decoded_names(columns, typed, [name]) - {KEY}
        ]
        self._wanted = self._requested_types()
        self.undecodable = 0
        self.first_reason = ""
        # Created here, so that an error is raised on the driver, before the tasks.
        self._versions[_NO_VERSION] = self._planned_version()
        self.raw_schema = self._raw_schema(columns, raw_errors)

    def _requested_types(self) -> dict[str, pa.DataType]:
        schema, names = self._schema, self._schema.names
        wanted = {name: schema.field(name).type for name in self._typed.encodings if name in names}
        if self._typed.flatten:
            wanted.pop(VALUE, None)
            if self._flat:
                wanted[VALUE] = pa.struct([schema.field(name) for name in self._flat])
        if CORRUPT in names or ERROR in names:
            # These columns need the value decoded, to find out whether it can be.
            for name, encoding in self._typed.encodings.items():
                wanted.setdefault(name, type_of(encoding))
        if self._typed.is_packed:
            # Also without a column of them, records are the rows.
            wanted.setdefault(VALUE, pa.struct([]))
        return wanted

    def _planned_version(self) -> _Version:
        sides = {}
        for name, type_ in self._wanted.items():
            encoding = self._typed.encodings[name]
            try:
                sides[name] = _PartDecoder(_decoder(encoding, type_, encoding))
            except ValueError as error:
                raise OptionError(f"column {name}: {error}" if name not in self._flat else str(error)) from error
        return _Version(sides, self._typed.is_inline)

    def _raw_schema(self, columns: ColumnTable, raw_errors: Collection[str]) -> pa.Schema:
        decoded = decoded_names(columns, self._typed, self._schema.names) | {CORRUPT, ERROR}
        fields = {field.name: field for field in self._schema if field.name not in decoded}
        if self._wanted:
            needed = set(self._wanted)
            if self._typed.is_inline or self._typed.by_version:
                # Keys can be in the payloads of one version and beside those of another one: a broker does not compare
                # that (4.0.8, KeyValueSchemaCompatibilityCheck).
                needed.add(VALUE)
            fields |= {name: pa.field(name, pa.binary()) for name in sorted(needed)}
            if self._typed.by_version:
                fields.setdefault(SCHEMA_VERSION, pa.field(SCHEMA_VERSION, pa.binary()))
            for name in (*self._position, *([self._properties] if self._typed.is_packed else ())):
                fields.setdefault(name, pa.field(name, arrow_type_of_ddl(columns.readable[name][0])))
        fields |= {field.name: field for field in self._schema if field.name in raw_errors}
        if self._dead_letters is not None:
            for name in (*self._dead_letters.columns, *raw_errors):
                fields.setdefault(name, pa.field(name, arrow_type_of_ddl(columns.readable[name][0])))
        return pa.schema(list(fields.values()))

    def close(self) -> None:
        """Close the dead letters at the end of the task."""
        if self._dead_letters is not None:
            self._dead_letters.close()

    def rows(self, raw: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a batch of messages; in several batches if messages have too many.

        Raises:
            CorruptMessageError: as for `take`.
            MQSourceError: likewise.
        """
        at = 0
        while not at or at < raw.num_rows:
            batch = self.take(raw.slice(at))
            at += self._taken or 1
            yield from (batch.slice(n, self._max_rows) for n in range(0, batch.num_rows or 1, self._max_rows))

    def take(self, raw: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows of a batch of messages, or of its first ones if messages have too many rows.

        Raises:
            CorruptMessageError: a message cannot be decoded, and `on_corrupt` is `fail`.
            MQSourceError: the dead letter topic did not accept a message.
        """
        group = self._decode(raw) if self._wanted else _Group({}, {})
        raw = raw if group.parents is None else raw.slice(0, group.messages)
        rows = self._taken = raw.num_rows
        if self._dead_letters is not None:
            group.reasons |= _corrupt_reasons(raw)
            if group.reasons:
                self._dead_letters.send(raw, group.reasons)
        arrays = dict(zip(raw.schema.names, raw.columns, strict=True)) | group.arrays
        if group.reasons:
            self._note(raw, group.reasons)
        for name, cells in ((ERROR, group.reasons), (CORRUPT, self._payloads_of(raw, group.reasons))):
            if name in self._schema.names:
                arrays[name] = _with_cells(arrays.get(name), cells, rows, self._schema.field(name).type)
        messages: Sequence[int] = range(rows)
        if group.parents is not None:
            names = {*self._schema.names, VALUE} & arrays.keys()
            arrays = {name: arrays[name] if name == VALUE else arrays[name].take(group.parents) for name in names}
            messages = group.parents.to_pylist()
        if self._flat:
            arrays.update(zip(self._flat, arrays[VALUE].flatten(), strict=True))
        batch = record_batch(self._schema, [arrays[name] for name in self._schema.names], len(messages))
        if group.reasons and self._on_corrupt in ("skip", "deadLetter"):
            kept = (row for row, message in enumerate(messages) if message not in group.reasons)
            return batch.take(int_array(kept, pa.int32()))
        return batch

    def _note(self, raw: pa.RecordBatch, reasons: Mapping[int, str]) -> None:
        first = min(reasons)
        if self._on_corrupt == "fail":
            raise CorruptMessageError(
                f"{self._place(raw, first)}{reasons[first]}; correct the producer, or set onCorrupt=skip, "
                f"null or deadLetter to continue without such messages"
            )
        if not self.undecodable:
            self.first_reason = f"{self._place(raw, first)}{reasons[first]}"
        self.undecodable += len(reasons)

    def _place(self, raw: pa.RecordBatch, row: int) -> str:
        """Return a message's position and schema version, for errors."""
        cells = {name: raw.column(name)[row].as_py() for name in self._position}
        if len(cells) == 1:
            (cell,) = cells.values()
            numbers = cell.values() if isinstance(cell, Mapping) else [cell]
            place = "message " + ":".join(str(number) for number in numbers if number != -1)
        else:
            place = ", ".join(f"{name} {cell}" for name, cell in cells.items())
        if self._typed.by_version:
            version = raw.column(SCHEMA_VERSION)[row].as_py()
            place += " without a schema version" if version is None else f", schema version {version_name(version)}"
        return f"{place}: "

    def _payloads_of(self, raw: pa.RecordBatch, reasons: Mapping[int, str]) -> dict[int, Any]:
        if CORRUPT not in self._schema.names:
            return {}
        # The bytes of the faulty side; for an inline pair, the whole payload.
        sides = {
            row: KEY if reason.startswith(f"{KEY}: ") and not self._is_inline(raw, row) else VALUE
            for row, reason in reasons.items()
        }
        return {row: raw.column(side)[row].as_py() for row, side in sides.items()}

    def _is_inline(self, raw: pa.RecordBatch, row: int) -> bool:
        version = raw.column(SCHEMA_VERSION)[row].as_py() if self._typed.by_version else None
        return self._version(version or _NO_VERSION).is_inline

    # -- decoding of columns

    def _decode(self, raw: pa.RecordBatch) -> _Group:
        groups = self._by_version(raw)
        if len(groups) == 1:
            return self._decode_group(groups[0][0], raw)
        decoded = [self._decode_group(version, raw.take(int_array(rows, pa.int32()))) for version, rows in groups]
        order = [row for _, rows in groups for row in rows]
        back = [0] * raw.num_rows
        for at, row in enumerate(order):
            back[row] = at
        places = int_array(back, pa.int32())
        arrays = {name: pa.concat_arrays([one.arrays[name] for one in decoded]).take(places) for name in self._wanted}
        reasons = {
            rows[row]: reason
            for (_, rows), one in zip(groups, decoded, strict=True)
            for row, reason in one.reasons.items()
        }
        return _Group(arrays, reasons)

    def _by_version(self, raw: pa.RecordBatch) -> list[tuple[bytes, list[int]]]:
        """Return the versions of the messages, each with its rows; without rows if there is only one version."""
        if not self._typed.by_version:
            return [(_NO_VERSION, [])]
        import pyarrow.compute as pc  # noqa: PLC0415 - for reads with versions

        versions = raw.column(SCHEMA_VERSION)
        if versions.null_count == len(versions):
            return [(_NO_VERSION, [])]
        first = versions[0]
        if not versions.null_count and pc.all(pc.equal(versions, first)).as_py():
            return [(first.as_py(), [])]
        rows: dict[bytes, list[int]] = {}
        for row, version in enumerate(versions.to_pylist()):
            rows.setdefault(version or _NO_VERSION, []).append(row)
        return list(rows.items())

    def _decode_group(self, version: bytes, raw: pa.RecordBatch) -> _Group:
        found = self._version(version)
        names = raw.schema.names
        payloads = {name: raw.column(name) for name in (KEY, VALUE) if name in names}
        reasons: dict[int, str] = {}
        if found.is_inline:
            payloads, reasons = self._split_pairs(payloads[VALUE])
        arrays = {}
        parents, messages = None, 0
        for name, type_ in self._wanted.items():
            side, payload = found.sides[name], payloads[name]
            if side.problem:
                # A NULL needs no schema.
                bad = {row: side.problem for row in range(len(payload)) if payload[row].is_valid}
                arrays[name] = pa.nulls(len(payload), type_)
            elif side.decoder is None:
                bad, arrays[name] = {}, payload
            else:
                if self._typed.is_packed and name == VALUE:
                    decoded = cast("InlongDecoder", side.decoder).decode(payload, raw.column(self._properties))
                    parents, messages = decoded.parents, decoded.payloads
                else:
                    decoded = side.decoder.decode(payload)
                arrays[name] = decoded.values
                bad = {row: f"{name}: {reason}" for row, reason in decoded.reasons.items()}
            reasons |= {row: reason for row, reason in bad.items() if row not in reasons}
        if parents is not None:
            # The messages behind those are decoded again, with their keys.
            reasons = {row: reason for row, reason in reasons.items() if row < messages}
        return _Group(arrays, reasons, parents, messages)

    def _split_pairs(self, payloads: pa.Array) -> tuple[dict[str, pa.Array], dict[int, str]]:
        decoded = _splitting.load().PairDecoder().decode(payloads)
        reasons = {row: f"{VALUE}: {reason}" for row, reason in decoded.reasons.items()}
        return dict(zip((KEY, VALUE), decoded.values.flatten(), strict=True)), reasons

    def _version(self, version: bytes) -> _Version:
        found = self._versions.get(version)
        if found is None:
            found = self._versions[version] = self._build_version(version)
        return found

    def _build_version(self, version: bytes) -> _Version:
        lookup = self._lookup
        name = f"schema version {version_name(version)}"
        try:
            registered = None if lookup is None else lookup(version)
        except ValueError as error:
            return self._unusable(f"{name}: {error}")
        if registered is None:
            return self._unusable(f"{name} is not in the registry")
        encodings: dict[str, Encoding | None]
        is_inline = False
        if isinstance(registered, KeyValueEncoding):
            encodings, is_inline = {KEY: registered.key, VALUE: registered.value}, registered.is_inline
        else:
            encodings = {VALUE: registered}
        sides = {}
        for side, type_ in self._wanted.items():
            planned = self._typed.encodings[side]
            try:
                sides[side] = _PartDecoder(_decoder(encodings.get(side, planned), type_, planned))
            except ValueError as error:
                sides[side] = _PartDecoder(problem=f"{side}: {name} does not fit: {error}")
        return _Version(sides, is_inline)

    def _unusable(self, problem: str) -> _Version:
        sides = {side: _PartDecoder(problem=f"{side}: {problem}") for side in self._wanted}
        return _Version(sides, self._typed.is_inline)


def typed_batches(
    stage: TypedRows, raw: Callable[[pa.Schema], Iterator[pa.RecordBatch]], task: object
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task batch by batch; log how many messages could not be decoded.

    Raises:
        CorruptMessageError: a message cannot be decoded, and `onCorrupt` is `fail`.
        MQSourceError: the dead letter topic did not accept a message.
    """
    batches = raw(stage.raw_schema)
    try:
        for batch in batches:
            yield from stage.rows(batch)
    finally:
        try:
            if isinstance(batches, Generator):
                batches.close()
        finally:
            stage.close()
        if stage.undecodable:
            logger.warning(
                "%s: %d messages could not be decoded; the first: %s", task, stage.undecodable, stage.first_reason
            )


def _decoder(writer: Encoding | None, wanted: pa.DataType, reader: Encoding | None) -> ValueDecoder | None:
    if writer is not None:
        return decoder_for(writer, wanted, reader)
    if wanted != pa.binary():
        raise ValueError(f"it is not encoded, so it is binary, not {wanted}")
    return None


def _corrupt_reasons(raw: pa.RecordBatch) -> dict[int, str]:
    """Return by row the reasons why messages are corrupt as a whole."""
    if ERROR not in raw.schema.names or raw.column(ERROR).null_count == raw.num_rows:
        return {}
    return {row: reason for row, reason in enumerate(raw.column(ERROR).to_pylist()) if reason is not None}


def _with_cells(array: pa.Array | None, cells: Mapping[int, Any], rows: int, type_: pa.DataType) -> pa.Array:
    """Return a column with these cells; other cells stay as they are."""
    if not cells:
        return pa.nulls(rows, type_) if array is None else array
    below = {} if array is None else dict(enumerate(array.to_pylist()))
    return text_array({**below, **cells}, rows, type_)
