"""The steps that write Arrow values as Avro, derived from the schema and the Arrow type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class WriteStep:
    """One action that writes a value.

    Attributes:
        code: the action; ``_encode_native.pxd`` has all codes.
        column: the field of the enclosing struct that contains the values.
        head: the number of the union's branch.
        null: the bytes of NULL; None if NULL is not allowed.
        shift: the number of digits by which a decimal grows.
    """

    code: str
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


_READS: Final[Mapping[str, Callable[[pa.DataType], bool]]] = {
    "CONSTANT": pa.types.is_null,
    "BOOLEAN": pa.types.is_boolean,
    "BYTE": pa.types.is_int8,
    "SHORT": pa.types.is_int16,
    "INT": lambda type_: pa.types.is_int32(type_) or pa.types.is_date32(type_),
    "LONG": lambda type_: pa.types.is_int64(type_) or _is_time(type_),
    "MILLIS": _is_time,
    "FLOAT": pa.types.is_float32,
    "DOUBLE": pa.types.is_float64,
    "INT_TO_DOUBLE": pa.types.is_int32,
    "FLOAT_TO_DOUBLE": pa.types.is_float32,
    "SIZED": lambda type_: pa.types.is_string(type_) or pa.types.is_binary(type_),
    "FIXED": pa.types.is_binary,
    "DECIMAL": pa.types.is_decimal128,
    "FIXED_DECIMAL": pa.types.is_decimal128,
    "ENUM": pa.types.is_string,
    "RECORD": pa.types.is_struct,
    "ARRAY": pa.types.is_list,
    "MAP": pa.types.is_map,
    "MEMBERS": pa.types.is_struct,
}


def _write(schema: AvroType, type_: pa.DataType, path: str) -> WriteStep:  # noqa: PLR0911 - a kind each
    if schema.kind == "union":
        return _write_union(schema, type_, path)
    if schema.kind == "null" and pa.types.is_null(type_):
        return WriteStep("CONSTANT")
    if schema.kind == "record" and pa.types.is_struct(type_):
        return _write_record(schema, type_, path)
    if schema.kind == "array" and pa.types.is_list(type_):
        return WriteStep("ARRAY", path, steps=(_write(inner_of(schema), type_.value_type, f"{path}[]"),))
    if schema.kind == "map" and pa.types.is_map(type_) and pa.types.is_string(type_.key_type):
        inside = f"{path}{{}}"
        key = WriteStep("SIZED", inside)
        return WriteStep("MAP", path, steps=(key, _write(inner_of(schema), type_.item_type, inside)))
    if schema.logical == "decimal" and pa.types.is_decimal128(type_):
        shift = schema.scale - type_.scale
        if shift >= 0 and type_.precision + shift <= schema.precision:
            code = "FIXED_DECIMAL" if schema.kind == "fixed" else "DECIMAL"
            return WriteStep(code, path, size=schema.size, shift=shift)
    if schema.kind not in ("record", "array", "map", "null") and schema.logical != "decimal":
        code_ = _leaf_code(schema, type_)
        if code_ is not None:
            symbols = tuple(symbol.encode() for symbol in schema.symbols)
            return WriteStep(code_, path, size=schema.size, symbols=symbols)
    raise OptionError(f"{path} is {type_}, which cannot be written as {schema!r}: cast it")


def _leaf_code(schema: AvroType, type_: pa.DataType) -> str | None:
    if schema.kind == "enum":
        return "ENUM" if pa.types.is_string(type_) else None
    if pa.types.is_timestamp(type_):
        if type_.unit != "us" or not arrow_type(schema).equals(pa.timestamp("us", type_.tz and "UTC")):
            return None
        return "MILLIS" if schema.logical.endswith("-millis") else "LONG"
    if arrow_type(schema).equals(type_):
        return _CODES[schema.kind]
    return _WIDER.get((str(type_), str(arrow_type(schema))))


_CODES: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "SIZED",
    "bytes": "SIZED",
    "fixed": "FIXED",
}
_WIDER: Final[Mapping[tuple[str, str], str]] = {
    ("int8", "int32"): "BYTE",
    ("int8", "int64"): "BYTE",
    ("int16", "int32"): "SHORT",
    ("int16", "int64"): "SHORT",
    ("int32", "int64"): "INT",
    ("int32", "double"): "INT_TO_DOUBLE",
    ("float", "double"): "FLOAT_TO_DOUBLE",
}


def _write_union(union: AvroType, type_: pa.DataType, path: str) -> WriteStep:
    heads = [encode_varint(2 * number) for number in range(len(union.branches))]
    null = next((head for head, one in zip(heads, union.branches, strict=True) if one.kind == "null"), None)
    branches = not_null_branches(union)
    if pa.types.is_null(type_) and null is not None:
        return WriteStep("CONSTANT", data=null)
    if pa.types.is_struct(type_) and len(branches) > 1 and all(field.name.startswith("member") for field in type_):
        places = places_of([f"member{n}" for n in range(len(branches))], type_, path)
        steps = []
        for at, (column, field) in places.items():
            head = heads[union.branches.index(branches[at])]
            steps.append(replace(_write(branches[at], field.type, f"{path}.{field.name}"), column=column, head=head))
        return WriteStep("MEMBERS", path, null=null, steps=tuple(steps))
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
                WriteStep("CONSTANT", data=_without_column(field.type, field.has_default, field.default, inside))
            )
    return WriteStep("RECORD", path, steps=tuple(steps))


def _without_column(type_: AvroType, has_default: bool, default: Any, path: str) -> bytes:  # noqa: ANN401 - JSON
    try:
        if has_default:
            return encode_default(type_, default)
        if type_.kind in ("null", "union"):
            return encode_default(type_, None)
    except ValueError:
        pass
    raise OptionError(f"{path} is missing, which the schema requires")
