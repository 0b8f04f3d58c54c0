"""Encoding of rows as payloads: selects the encoders of keys and values, and encodes batches.

Encoders are deterministic: equal values give equal bytes, in every attempt of a task, in batches of any size, and in
both implementations. Exactly-once writes rely on this.
"""

from __future__ import annotations

import base64
import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq_source.core.columns import KEY, VALUE, ConstantColumn, fixed_cells
from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.values.encodings import PRIMITIVES, Encoding, TypedWrite, is_avro_definition

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from spark_mq_source.core.columns import ColumnTable

_OF_STRUCTS: Final = ("json", "avro", "protobuf")


ValueEncoder: TypeAlias = Callable[[pa.Array], pa.Array]
"""Encodes the values of one column as text or binary; NULL becomes NULL. UnwritableRowError: a value does not fit."""


def with_definitions(write: TypedWrite, columns: pa.Schema) -> TypedWrite:
    """Add schemas, derived from the columns' types, to encodings without one.

    Raises:
        OptionError: the encoding cannot represent a column.

    Example:
        >>> columns = pa.schema([("value", pa.struct([("a", pa.int32())]))])
        >>> with_definitions(TypedWrite(Encoding("avro")), columns).value.definition
        '{"type":"record","name":"Value","fields":[{"name":"a","type":["null","int"],"default":null}]}'
    """
    made = replace(
        write, value=_with_definition(write.value, columns, VALUE), key=_with_definition(write.key, columns, KEY)
    )
    BatchEncoder(made, columns)
    return made


def _with_definition(encoding: Encoding | None, columns: pa.Schema, column: str) -> Encoding | None:
    if encoding is None or encoding.name not in _OF_STRUCTS or column not in columns.names:
        return encoding
    type_ = columns.field(column).type
    if not pa.types.is_struct(type_):
        raise OptionError(
            f"column {column} is {type_}, expected a struct with {column}Format={encoding.name}, such as struct(*)"
        )
    from spark_mq_source.values.struct_schema import derive_definition  # noqa: PLC0415 - for writes that encode

    if encoding.name == "protobuf":
        return encoding
    definition = encoding.definition
    if definition and not is_avro_definition(definition):
        definition = derive_definition(arrow_type_of_ddl(definition), encoding.name, column)
    if not definition and (encoding.has_schema or encoding.name == "avro"):
        definition = derive_definition(type_, encoding.name, column)
    return replace(encoding, definition=definition)


def encoder_for(encoding: Encoding, type_: pa.DataType, column: str = VALUE) -> ValueEncoder:
    """Return the encoder of a column of this type; see `with_definitions` for the encoding.

    Raises:
        OptionError: the column does not fit the encoding; all problems in one sentence.
    """
    if encoding.name in PRIMITIVES:
        from spark_mq_source.values.primitives import PrimitiveEncoder  # noqa: PLC0415 - as above

        return PrimitiveEncoder(encoding.name, type_, column).encode
    if encoding.name == "json":
        return _json_encoder(encoding, type_, column)
    if encoding.is_packed:
        from spark_mq_source.values.inlong.encode import InlongEncoder  # noqa: PLC0415 - as above

        return InlongEncoder(encoding, type_, column).encode
    if encoding.name == "protobuf":
        from spark_mq_source.values.protobuf.encode import protobuf_encoder  # noqa: PLC0415 - as above

        return protobuf_encoder(type_, base64.b64decode(encoding.definition), encoding.message, column)
    from spark_mq_source.values.avro.encode import avro_encoder  # noqa: PLC0415 - as above

    return avro_encoder(type_, encoding.definition, column)


def _json_encoder(encoding: Encoding, type_: pa.DataType, column: str) -> ValueEncoder:
    from spark_mq_source.values.json.encode import json_texts  # noqa: PLC0415 - as above
    from spark_mq_source.values.struct_schema import check_rows, check_struct  # noqa: PLC0415 - as above

    try:
        json_texts(pa.array([], type_))
    except TypeError as error:
        raise OptionError(f"column {column} cannot be written as JSON: {error}") from None
    schema = check_struct(type_, encoding.definition, column) if encoding.definition else None

    def encode(values: pa.Array) -> pa.Array:
        if schema is not None:
            check_rows(values, schema, column)
        return json_texts(values, text_times=encoding.text_times)

    return encode


class BatchEncoder:
    """Encoder of the columns of batches.

    Raises:
        OptionError: a column does not fit its encoding.

    Example:
        >>> batch = pa.record_batch({"value": pa.array([{"a": 1}, None])})
        >>> write = with_definitions(TypedWrite(Encoding("json")), batch.schema)
        >>> BatchEncoder(write, batch.schema).encode(batch).column("value").to_pylist()
        ['{"a":1}', None]
    """

    def __init__(self, write: TypedWrite, columns: pa.Schema, table: ColumnTable | None = None) -> None:
        self._write = write
        self._table = table
        self.columns = columns
        self._encoders: Mapping[str, ValueEncoder] = {
            side: encoder_for(encoding, columns.field(side).type, side)
            for side, encoding in write.encodings.items()
            if encoding is not None and side in columns.names
        }
        if write.is_pair and KEY not in columns.names:
            raise OptionError("keyFormat is set, but there is no column key: add one, or remove keyFormat")

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with encoded keys and values; an inline pair is the value, and then there is no key column.

        Raises:
            UnwritableRowError: a value does not fit its schema.
        """
        columns = {name: batch.column(name) for name in batch.schema.names}
        for name, encode in self._encoders.items():
            try:
                columns[name] = encode(columns[name])
            except UnwritableRowError as error:
                shown = self._write.encodings[name]
                raise error.within(f"writing column {name} as {shown and shown.name}") from error
        if self._write.value is not None and self._write.value.is_packed and self._table is not None:
            from spark_mq_source.values.inlong.encode import message_columns  # noqa: PLC0415 - as above

            columns = message_columns(batch.column(VALUE), self._table) | columns
        if self._write.is_inline:
            columns[VALUE] = _pairs(columns.pop(KEY).cast(pa.binary()), columns[VALUE].cast(pa.binary()))
        elif self._write.is_pair:
            # The message's key is the bytes in base64, as for pairs of the Java client.
            columns[KEY] = columns[KEY].cast(pa.binary())
        return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def _pairs(keys: pa.Array, values: pa.Array) -> pa.Array:
    """Join keys and values, each after its int32 length, -1 for NULL (`KeyValue.encode` in the Java client)."""
    empty = ConstantColumn("", pa.string()).take(1).view(pa.binary())[0]
    parts = [one for side in (keys, values) for one in (_lengths(side), pc.fill_null(side, empty))]
    return pc.binary_join_element_wise(*parts, empty)


def _lengths(values: pa.Array) -> pa.Array:
    numbers = array("i", pc.fill_null(pc.binary_length(values), ConstantColumn(-1, pa.int32()).take(1)[0]).to_pylist())
    if sys.byteorder == "little":
        numbers.byteswap()
    return fixed_cells(numbers, len(numbers))


def encoded_rows(
    write: TypedWrite | None, batches: Iterator[pa.RecordBatch], table: ColumnTable | None = None
) -> Iterator[pa.RecordBatch]:
    """Yield the batches with encoded columns.

    Raises:
        OptionError: a column does not fit the schema.
        UnwritableRowError: a value does not fit the schema.
    """
    if write is None:
        yield from batches
        return
    encoder = None
    for batch in batches:
        # The compiled encoders read arrays of the types that they were made for.
        if encoder is None or batch.schema != encoder.columns:
            encoder = BatchEncoder(write, batch.schema, table)
        yield encoder.encode(batch)
