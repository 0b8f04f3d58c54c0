"""The rows of pulsar-spark: its columns instead of ours, and the fields of the value as columns beside them.

Names and types are those of `SchemaUtils.metaDataFields` and `pulsarSourceSchema`, and of `PulsarWriteTask` for writes
(streamnative/pulsar-spark 3.1.1.4 to 3.4.1.3). Message ids have the bytes of 3.1.1; newer releases add to them. A value
without fields is the column `value`; a write takes the only column that is not a struct as the value, whatever its
name.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa

from spark_mq_source.core.columns import CORRUPT, ERROR, VALUE, Column, ColumnTable, ConstantColumn, is_text, text_array
from spark_mq_source.core.columns import record_batch as batch_of
from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.pulsar.offsets import TopicPartition
from spark_mq_source.pulsar.payload.columns import COLUMNS

KEY: Final = "__key"
TOPIC: Final = "__topic"
MESSAGE_ID: Final = "__messageId"
PUBLISH_TIME: Final = "__publishTime"
EVENT_TIME: Final = "__eventTime"

SPARK_COLUMNS: Final = ColumnTable(
    Column(KEY, ("binary",), ("binary", "string")),
    Column(TOPIC, ("string",), ("string",)),
    Column(MESSAGE_ID, ("binary",)),
    Column(PUBLISH_TIME, ("timestamp",)),
    Column(EVENT_TIME, ("timestamp",), ("timestamp", "bigint")),
    Column("__messageProperties", ("map<string,string>",), ("map<string,string>",)),
)
"""The columns beside the value."""

_OURS: Final = {
    KEY: "key",
    TOPIC: "topic",
    MESSAGE_ID: "message_id",
    PUBLISH_TIME: "publish_time",
    EVENT_TIME: "event_time",
    "__messageProperties": "properties",
}
_TIME: Final = pa.timestamp("us", "UTC")
_BESIDE: Final = (*_OURS, CORRUPT, ERROR)
_MESSAGE_ID: Final = arrow_type_of_ddl(COLUMNS.readable["message_id"][0])

_PRIMITIVES: Final = {
    pa.binary(): "raw",
    pa.string(): "string",
    pa.bool_(): "bool",
    pa.int8(): "int8",
    pa.int16(): "int16",
    pa.int32(): "int32",
    pa.int64(): "int64",
    pa.float32(): "float",
    pa.float64(): "double",
    _TIME: "timestamp",
}
"""The `valueFormat` of a value without fields (`SchemaUtils.sqlType2PSchema`)."""


# -- reading


def default_columns(value: pa.DataType) -> pa.Schema:
    """Return the columns that are read by default: the value, or its fields, and those beside it.

    Raises:
        OptionError: a field of the value has the name of another column.

    Example:
        >>> default_columns(pa.struct([("id", pa.int32()), ("key", pa.string())])).names[:4]
        ['id', 'key', '__key', '__topic']
    """
    fields = list(value) if pa.types.is_struct(value) else [pa.field(VALUE, value)]
    clashes = {field.name for field in fields} & set(_BESIDE)
    if clashes:
        raise OptionError(f"columns=pulsar-spark: {', '.join(sorted(clashes))} is also a field of the value")
    beside = [(name, arrow_type_of_ddl(types[0])) for name, types in SPARK_COLUMNS.readable.items()]
    return pa.schema([*fields, *beside])


class SparkRows:
    """Conversion of the rows of a read to pulsar-spark's columns.

    Args:
        schema: the wanted columns, exactly as Spark has them.

    Raises:
        OptionError: a column does not exist, or not with this type.

    Example:
        >>> rows = SparkRows(pa.schema([("a", pa.int32()), ("__key", pa.binary())]), pa.struct([("a", pa.int32())]))
        >>> rows.native
        value: struct<a: int32>
          child 0, a: int32
        key: binary
    """

    def __init__(self, schema: pa.Schema, value: pa.DataType) -> None:
        self._schema = schema
        fields = [field for field in schema if field.name not in _BESIDE]
        SPARK_COLUMNS.check(pa.schema([field for field in schema if field.name in _OURS]))
        self._is_flat = bool(pa.types.is_struct(value))
        known = [VALUE] if not self._is_flat else [field.name for field in value]
        if unknown := [field.name for field in fields if field.name not in known]:
            raise OptionError(f"column {unknown[0]} is unknown (known: {', '.join([*known, *SPARK_COLUMNS.readable])})")
        if self._is_flat and fields:
            fields = [pa.field(VALUE, pa.struct(fields))]
        # All rows of a task have one topic-partition.
        beside = [field for field in schema if field.name in _BESIDE and field.name != TOPIC]
        self.native = pa.schema([*fields, *map(_native, beside)])

    def take(self, batch: pa.RecordBatch, topic_partition: TopicPartition) -> pa.RecordBatch:
        """Return the rows of a batch of `native`, which are all of this topic-partition."""
        values = {name: batch.column(name) for name in batch.schema.names}
        found = {name: values[ours] for name, ours in _OURS.items() if ours in values}
        if MESSAGE_ID in found:
            found[MESSAGE_ID] = _message_ids(found[MESSAGE_ID], topic_partition.partition)
        if TOPIC in self._schema.names:
            type_ = self._schema.field(TOPIC).type
            found[TOPIC] = ConstantColumn(str(topic_partition), type_).take(batch.num_rows)
        if self._is_flat and VALUE in values:
            value = values.pop(VALUE)
            values = dict(zip((field.name for field in value.type), value.flatten(), strict=True)) | {
                name: values[name] for name in (CORRUPT, ERROR) if name in values
            }
        found = values | found
        return batch_of(self._schema, [found[name] for name in self._schema.names], batch.num_rows)


def _native(field: pa.Field) -> pa.Field:
    if field.name == MESSAGE_ID:
        return pa.field(_OURS[MESSAGE_ID], _MESSAGE_ID)
    return field.with_name(_OURS.get(field.name, field.name))


def _message_ids(positions: pa.Array, partition: int) -> pa.Array:
    """Return the message ids as `MessageId.toByteArray` of Pulsar 2.4.2 writes them, the client of pulsar-spark 3.1.1.

    Newer clients (2.10.2 in pulsar-spark 3.2 to 4.0.8) add the size of the batch, 0 without one, and the first chunk of
    a chunked message, which are in no column. They read these ids too.
    """
    tail = b"\x18" + encode_varint(partition) if partition >= 0 else b""
    cells: dict[int, bytes] = {}
    last, head = None, b""
    for row, (ledger, entry, batch) in enumerate(
        zip(*(child.to_pylist() for child in positions.flatten()), strict=True)
    ):
        if (ledger, entry) != last:
            last = ledger, entry
            head = b"\x08" + encode_varint(ledger) + b"\x10" + encode_varint(entry) + tail
        cells[row] = head if batch < 0 else head + b"\x20" + encode_varint(batch)
    return text_array(cells, len(positions), pa.binary())


# -- writing


class SparkWrite:
    """Conversion of rows for pulsar-spark's sink to our rows to write.

    Args:
        has_topic: whether the option `topic` is set: as in pulsar-spark, it takes precedence over `__topic`.

    Attributes:
        value_format: the `valueFormat` as pulsar-spark chooses it.
        definition: the Avro schema of pulsar-spark, with `avro`, so that a topic with its schema takes the rows.

    Raises:
        OptionError: a column cannot be written.

    Example:
        >>> columns = [("a", pa.int32()), ("b", pa.string()), ("__key", pa.string())]
        >>> write = SparkWrite(pa.schema(columns), has_topic=True)
        >>> write.native.names, write.value_format
        (['value', 'key'], 'avro')
        >>> SparkWrite(pa.schema([*columns[1:]]), has_topic=True).value_format
        'string'
    """

    def __init__(self, schema: pa.Schema, *, has_topic: bool) -> None:
        values = [field for field in schema if field.name not in _OURS]
        if not values:
            raise OptionError("columns=pulsar-spark: there is no column for the value")
        self._values = [field.name for field in values]
        self._is_record = len(values) > 1 or pa.types.is_struct(values[0].type)
        self.definition: str | None = None
        if self._is_record:
            self.value_format = "avro"
            self.definition = json.dumps(_avro_type(pa.struct(values), "topLevelRecord", ""), separators=(",", ":"))
        else:
            kind = _in_utc(values[0].type)
            if kind not in _PRIMITIVES:
                raise OptionError(
                    f"columns=pulsar-spark: column {self._values[0]} is {kind}, which cannot be a value by itself: "
                    "cast it, or write it within a struct"
                )
            self.value_format = _PRIMITIVES[kind]
        unwritten = {TOPIC} if has_topic else set()
        self._beside = [name for name in schema.names if name in SPARK_COLUMNS.writable and name not in unwritten]
        SPARK_COLUMNS.check(pa.schema([schema.field(name) for name in self._beside]), written=True)
        self.native = self._native(schema)

    def take(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return our rows."""
        values = [batch.column(name) for name in self._values]
        if self._is_record:
            fields = [batch.schema.field(name) for name in self._values]
            values = [pa.StructArray.from_arrays(values, fields=fields)]
        beside = [_to_write(name, batch.column(name)) for name in self._beside]
        return pa.RecordBatch.from_arrays([*values, *beside], schema=self._native(batch.schema))

    def _native(self, schema: pa.Schema) -> pa.Schema:
        values = [schema.field(name) for name in self._values]
        value = pa.struct(values) if self._is_record else values[0].type
        types = {KEY: pa.binary(), EVENT_TIME: _TIME}
        beside = [pa.field(_OURS[name], types.get(name, schema.field(name).type)) for name in self._beside]
        return pa.schema([pa.field(VALUE, value), *beside])


def _to_write(name: str, column: pa.Array) -> pa.Array:
    if name == KEY:
        # pulsar-spark stores every key as bytes (`keyBytes`); the text of a key would choose another partition.
        return column.view(pa.binary())
    return _event_time(column) if name == EVENT_TIME else column


def _event_time(times: pa.Array) -> pa.Array:
    """Return times to the millisecond; numbers are milliseconds; times up to 1970 become NULL, as in pulsar-spark."""
    import pyarrow.compute as pc  # noqa: PLC0415 - a tenth of what a task imports, and few need it

    if times.type != pa.int64():
        times = times.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    times = pc.if_else(pc.greater(times, 0), times, pa.scalar(None, pa.int64()))
    return times.cast(pa.timestamp("ms", "UTC")).cast(_TIME)


def _in_utc(kind: pa.DataType) -> pa.DataType:
    """Return the type; that of a timestamp with any zone is Spark's, whose Arrow type has the zone of the session."""
    return _TIME if pa.types.is_timestamp(kind) and kind.tz is not None else kind


def _avro_type(kind: pa.DataType, name: str, namespace: str) -> object:
    """Return the Avro type of a column as `SchemaUtils.sqlType2ASchema` makes it."""
    if pa.types.is_struct(kind):
        inside = f"{namespace}.{name}" if namespace else name
        fields = [{"name": one.name, "type": _avro_field(one, one.name, inside)} for one in kind]
        return {"type": "record", "name": name} | ({"namespace": namespace} if namespace else {}) | {"fields": fields}
    if pa.types.is_list(kind):
        return {"type": "array", "items": _avro_field(kind.value_field, name, namespace)}
    if pa.types.is_map(kind) and is_text(kind.key_type):
        return {"type": "map", "values": _avro_field(kind.item_field, name, namespace)}
    if pa.types.is_decimal(kind):
        full = f"{namespace}.{name}.fixed" if namespace else f"{name}.fixed"
        size = ((10**kind.precision - 1).bit_length() + 8) // 8
        fixed = {"type": "fixed", "name": "fixed", "namespace": full.removesuffix(".fixed"), "size": size}
        return fixed | {"logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    kind = _in_utc(kind)
    if kind not in _AVRO_TYPES:
        raise OptionError(f"columns=pulsar-spark: {kind} has no Avro type in pulsar-spark's values: cast column {name}")
    return _AVRO_TYPES[kind]


def _avro_field(field: pa.Field, name: str, namespace: str) -> object:
    kind = _avro_type(field.type, name, namespace)
    return [kind, "null"] if field.nullable else kind


_AVRO_TYPES: Final = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    _TIME: {"type": "long", "logicalType": "timestamp-micros"},
}
