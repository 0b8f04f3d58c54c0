"""The steps that write Arrow values as Avro, derived from the schema and the Arrow type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.errors import OptionError
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.values.avro.defaults import encode_default
from spark_mq_source.values.avro.schema import AvroType, parse_finite
from spark_mq_source.values.avro.types import arrow_type, inner_of, is_number_union, not_null_branches, places_of
from spark_mq_source.values.steps import check_write_step

NO_NULL: Final = "is NULL in a row, which the schema does not allow"
NO_SYMBOL: Final = "has a text in a row that is not a symbol of its enum"
NO_SIZE: Final = "has a value in a row that is not as long as the schema's fixed"
NO_MEMBER: Final = "must have exactly one member in a row, as every union"


class WriteCode(IntEnum):
    """The action of a step that writes; in the order of ``_encode_native.pxd``."""

    CONSTANT = 0  # `data`, regardless of the column
    BOOLEAN = 1
    BYTE = 2  # an integer of this width
    SHORT = 3
    INT = 4
    LONG = 5
    MILLIS = 6  # from microseconds, rounded towards the past as in Spark
    FLOAT = 7
    DOUBLE = 8
    INT_TO_DOUBLE = 9
    FLOAT_TO_DOUBLE = 10
    SIZED = 11  # a text or a binary value after its size
    FIXED = 12  # a binary value of `size` bytes
    DECIMAL = 13  # after its size
    FIXED_DECIMAL = 14  # of `size` bytes
    ENUM = 15
    RECORD = 16
    ARRAY = 17
    MAP = 18
    MEMBERS = 19  # the only field of a struct that is not NULL


@dataclass(frozen=True, slots=True)
class WriteStep:
    """One action that writes a value.

    Attributes:
        column: the field of the enclosing struct that contains the values.
        head: the number of the union's branch.
        null: the bytes of NULL; None if NULL is not allowed.
        shift: the number of digits by which a decimal grows.
    """

    code: WriteCode
    path: str = ""
    column: int = -1
    head: bytes = b""
    null: bytes | None = None
    steps: tuple[WriteStep, ...] = ()
    data: bytes = b""
    size: int = 0
    shift: int = 0
    symbols: tuple[bytes, ...] = ()


def plan_writing(type_: pa.DataType, definition: str, column: str = "value") -> WriteStep:
    """Return the step that writes a value of a column.

    Raises:
        OptionError: the definition is not a schema, or the type does not fit it; names the field.
    """
    step = _write(parse_finite(definition), type_, column)
    check_write_step(step, type_, _READS)
    return step


def _is_time(type_: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(type_) and type_.unit == "us")


_READS: Final[Mapping[WriteCode, Callable[[pa.DataType], bool]]] = {
    WriteCode.CONSTANT: pa.types.is_null,
    WriteCode.BOOLEAN: pa.types.is_boolean,
    WriteCode.BYTE: pa.types.is_int8,
    WriteCode.SHORT: pa.types.is_int16,
    WriteCode.INT: lambda type_: pa.types.is_int32(type_) or pa.types.is_date32(type_),
    WriteCode.LONG: lambda type_: pa.types.is_int64(type_) or _is_time(type_),
    WriteCode.MILLIS: _is_time,
    WriteCode.FLOAT: pa.types.is_float32,
    WriteCode.DOUBLE: pa.types.is_float64,
    WriteCode.INT_TO_DOUBLE: pa.types.is_int32,
    WriteCode.FLOAT_TO_DOUBLE: pa.types.is_float32,
    WriteCode.SIZED: lambda type_: pa.types.is_string(type_) or pa.types.is_binary(type_),
    WriteCode.FIXED: pa.types.is_binary,
    WriteCode.DECIMAL: pa.types.is_decimal128,
    WriteCode.FIXED_DECIMAL: pa.types.is_decimal128,
    WriteCode.ENUM: pa.types.is_string,
    WriteCode.RECORD: pa.types.is_struct,
    WriteCode.ARRAY: pa.types.is_list,
    WriteCode.MAP: pa.types.is_map,
    WriteCode.MEMBERS: pa.types.is_struct,
}


def _write(schema: AvroType, type_: pa.DataType, path: str) -> WriteStep:  # noqa: PLR0911 - a kind each
    if schema.kind == "union":
        return _write_union(schema, type_, path)
    if schema.kind == "null" and pa.types.is_null(type_):
        return WriteStep(WriteCode.CONSTANT)
    if schema.kind == "record" and pa.types.is_struct(type_):
        return _write_record(schema, type_, path)
    if schema.kind == "array" and pa.types.is_list(type_):
        return WriteStep(WriteCode.ARRAY, path, steps=(_write(inner_of(schema), type_.value_type, f"{path}[]"),))
    if schema.kind == "map" and pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        inside = f"{path}{{}}"
        key = WriteStep(WriteCode.SIZED, inside)
        return WriteStep(WriteCode.MAP, path, steps=(key, _write(inner_of(schema), type_.item_type, inside)))
    if schema.logical == "decimal" and pa.types.is_decimal128(type_):
        shift = schema.scale - type_.scale
        if shift >= 0 and type_.precision + shift <= schema.precision:
            code = WriteCode.FIXED_DECIMAL if schema.kind == "fixed" else WriteCode.DECIMAL
            return WriteStep(code, path, size=schema.size, shift=shift)
    if schema.kind not in ("record", "array", "map", "null") and schema.logical != "decimal":
        code_ = _leaf_code(schema, type_)
        if code_ is not None:
            symbols = tuple(symbol.encode() for symbol in schema.symbols)
            return WriteStep(code_, path, size=schema.size, symbols=symbols)
    raise OptionError(f"{path} is {type_}, which cannot be written as {schema!r}: cast it")


def _leaf_code(schema: AvroType, type_: pa.DataType) -> WriteCode | None:
    if schema.kind == "enum":
        return WriteCode.ENUM if pa.types.is_string(type_) else None
    if pa.types.is_timestamp(type_):
        if type_.unit != "us" or not arrow_type(schema).equals(pa.timestamp("us", type_.tz and "UTC")):
            return None
        return WriteCode.MILLIS if schema.logical.endswith("-millis") else WriteCode.LONG
    if arrow_type(schema).equals(type_):
        return _CODES[schema.kind]
    return _WIDER.get((str(type_), str(arrow_type(schema))))


_CODES: Final[Mapping[str, WriteCode]] = {
    "boolean": WriteCode.BOOLEAN,
    "int": WriteCode.INT,
    "long": WriteCode.LONG,
    "float": WriteCode.FLOAT,
    "double": WriteCode.DOUBLE,
    "string": WriteCode.SIZED,
    "bytes": WriteCode.SIZED,
    "fixed": WriteCode.FIXED,
}
_WIDER: Final[Mapping[tuple[str, str], WriteCode]] = {
    ("int8", "int32"): WriteCode.BYTE,
    ("int8", "int64"): WriteCode.BYTE,
    ("int16", "int32"): WriteCode.SHORT,
    ("int16", "int64"): WriteCode.SHORT,
    ("int32", "int64"): WriteCode.INT,
    ("int32", "double"): WriteCode.INT_TO_DOUBLE,
    ("float", "double"): WriteCode.FLOAT_TO_DOUBLE,
}


def _write_union(union: AvroType, type_: pa.DataType, path: str) -> WriteStep:
    heads = [encode_varint(2 * number) for number in range(len(union.branches))]
    null = next((head for head, one in zip(heads, union.branches, strict=True) if one.kind == "null"), None)
    branches = not_null_branches(union)
    if pa.types.is_null(type_) and null is not None:
        return WriteStep(WriteCode.CONSTANT, data=null)
    if pa.types.is_struct(type_) and len(branches) > 1 and all(field.name.startswith("member") for field in type_):
        places = places_of([f"member{n}" for n in range(len(branches))], type_, path)
        steps = []
        for at, (column, field) in places.items():
            head = heads[union.branches.index(branches[at])]
            steps.append(replace(_write(branches[at], field.type, f"{path}.{field.name}"), column=column, head=head))
        return WriteStep(WriteCode.MEMBERS, path, null=null, steps=tuple(steps))
    if is_number_union(union):
        # The wider branch, regardless of its logical type: Spark has only the number.
        at, wide = next((at, one) for at, one in enumerate(union.branches) if one.kind in ("long", "double"))
        return replace(_write(AvroType(wide.kind), type_, path), head=heads[at], null=null)
    fault: OptionError | None = None
    for head, branch in zip(heads, union.branches, strict=True):
        if branch.kind == "null":
            continue
        try:
            return replace(_write(branch, type_, path), head=head, null=null)
        except OptionError as error:
            fault = fault or error
    raise fault or OptionError(f"{path} is {type_}, and but the schema allows only null there")


def _write_record(schema: AvroType, struct: pa.StructType, path: str) -> WriteStep:
    places = places_of([field.name for field in schema.fields], struct, path)
    steps = []
    for at, field in enumerate(schema.fields):
        inside = f"{path}.{field.name}"
        if at in places:
            column, given = places[at]
            steps.append(replace(_write(field.type, given.type, inside), column=column))
        else:
            steps.append(
                WriteStep(
                    WriteCode.CONSTANT, data=_without_column(field.type, field.has_default, field.default, inside)
                )
            )
    return WriteStep(WriteCode.RECORD, path, steps=tuple(steps))


def _without_column(type_: AvroType, has_default: bool, default: Any, path: str) -> bytes:  # noqa: ANN401 - JSON
    try:
        if has_default:
            return encode_default(type_, default)
        if type_.kind in ("null", "union"):
            return encode_default(type_, None)
    except ValueError:
        pass
    raise OptionError(f"{path} is missing, which the schema requires")
