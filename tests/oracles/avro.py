"""Oracles of Avro values: fastavro, and a reference for resolution, projection and Spark's types.

The reference reads a payload with closures, value by value, from the schemas as JSON. Where both read a payload, the
whole of it by the writer's schema, fastavro checks the reference; where only the reference knows the expected value
(another reader's schema, a part of the fields), it stands alone.

fastavro accepts payloads that no writer writes and the reference refuses. These differences are allowed: it takes a
negative index of a branch or symbol from the end, any byte for a boolean, an int of more than 32 bits, a negative
length, a number of more than ten bytes, a decimal of more digits than its precision, and any number of empty items.

A value is a cell, as `cells` gives those of an Arrow array: a struct is a tuple, a map a list of pairs, a time or a
float the integer of its bits, a decimal its unscaled integer.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Any

import fastavro
import pyarrow as pa

from tests.oracles.arrays import cells, laid_out
from tests.oracles.fields import put_varint

__all__ = ["cells", "laid_out"]

Schema = Any
"""Parsed JSON in which names are replaced by their types; see `expanded`."""

MAX_EMPTY_ITEMS = 1024
PROMOTIONS = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
LOGICAL = {
    "date": pa.date32(),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
}
PLAIN = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "enum": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
}
WIDER = [(pa.int32(), pa.int64()), (pa.int32(), pa.float64()), (pa.float32(), pa.float64())]


class MismatchError(Exception):
    """No value can be read with these schemas and this type."""


class RefusedError(Exception):
    """The payload contains no valid value."""


# -- schemas and types


def expanded(schema: Schema, named: dict[str, Schema] | None = None) -> Schema:
    """Return a schema in which each name is replaced by the type of that name."""
    named = {} if named is None else named
    if isinstance(schema, list):
        return [expanded(branch, named) for branch in schema]
    if isinstance(schema, str):
        return named.get(schema, schema)
    found = dict(schema)
    if "name" in schema:
        named[schema["name"]] = found
    for part in ("items", "values"):
        if part in schema:
            found[part] = expanded(schema[part], named)
    if "fields" in schema:
        found["fields"] = [{**field, "type": expanded(field["type"], named)} for field in schema["fields"]]
    return found


def kind_of(schema: Schema) -> str:
    return "union" if isinstance(schema, list) else schema if isinstance(schema, str) else schema["type"]


def logical_of(schema: Schema) -> str:
    return schema.get("logicalType", "") if isinstance(schema, dict) else ""


def not_null(union: Schema) -> list[Schema]:
    return [branch for branch in union if kind_of(branch) != "null"]


def is_number(union: Schema) -> bool:
    return sorted(map(kind_of, not_null(union))) in (["int", "long"], ["double", "float"])


def is_empty(schema: Schema) -> bool:
    kind = kind_of(schema)
    if kind == "record":
        return all(is_empty(field["type"]) for field in schema["fields"])
    return kind == "null" or (kind == "fixed" and schema["size"] == 0)


def spark_type(schema: Schema) -> pa.DataType:  # noqa: PLR0911 - a kind each
    """Return the type of Spark's ``from_avro``, in Arrow."""
    kind = kind_of(schema)
    if kind == "union":
        branches = not_null(schema)
        if len(branches) < 2:
            return spark_type(branches[0]) if branches else pa.null()
        if is_number(schema):
            return pa.int64() if kind_of(branches[0]) in ("int", "long") else pa.float64()
        return pa.struct([(f"member{n}", spark_type(branch)) for n, branch in enumerate(branches)])
    if kind == "record":
        return pa.struct([(field["name"], spark_type(field["type"])) for field in schema["fields"]])
    if kind == "array":
        return pa.list_(spark_type(schema["items"]))
    if kind == "map":
        return pa.map_(pa.string(), spark_type(schema["values"]))
    if logical_of(schema) == "decimal":
        return pa.decimal128(schema["precision"], schema.get("scale", 0))
    return LOGICAL.get(logical_of(schema), PLAIN[kind])


def fits(schema: Schema, wanted: pa.DataType) -> bool:
    """Return whether a column of a type can have the values of a schema."""
    kind = kind_of(schema)
    if kind == "union" and len(not_null(schema)) == 1:
        return fits(not_null(schema)[0], wanted)
    if kind == "record" or (kind == "union" and not_null(schema) and not is_number(schema)):
        types = members_of(schema)
        return (
            pa.types.is_struct(wanted)
            and len({field.name for field in wanted}) == wanted.num_fields
            and all(field.name in types and fits(types[field.name], field.type) for field in wanted)
        )
    if kind == "array":
        return pa.types.is_list(wanted) and fits(schema["items"], wanted.value_type)
    if kind == "map":
        return pa.types.is_map(wanted) and wanted.key_type == pa.string() and fits(schema["values"], wanted.item_type)
    own = spark_type(schema)
    if pa.types.is_decimal128(own) and pa.types.is_decimal128(wanted):
        return wanted.scale >= own.scale and wanted.precision - wanted.scale >= own.precision - own.scale
    return own == wanted or (own, wanted) in WIDER


def members_of(schema: Schema) -> dict[str, Schema]:
    """Return the fields of a record, or those of the struct that represents a union."""
    if kind_of(schema) == "record":
        return {field["name"]: field["type"] for field in schema["fields"]}
    return {f"member{n}": branch for n, branch in enumerate(not_null(schema))}


# -- the reference


class Payload:
    """A payload with the position of the next byte."""

    def __init__(self, data: bytes, empty_items: int = 0) -> None:
        self.data = data
        self.at = 0
        self.empty_items = empty_items

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.data) - self.at:
            raise RefusedError
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            if self.at == len(self.data):
                raise RefusedError
            byte = self.data[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                value &= 2**64 - 1
                return value >> 1 ^ -(value & 1)
        raise RefusedError

    def blocks(self, inner: Schema, *, skips: bool = False) -> Iterable[None]:
        """Yield once for each item; blocks of a known size are passed over if items are skipped."""
        while count := self.number():
            size = None
            if count < 0:
                count, size = -count, self.number()
                if size < 0:
                    raise RefusedError
            if is_empty(inner):
                self.empty_items += count
                if self.empty_items > MAX_EMPTY_ITEMS:
                    raise RefusedError
            elif count > len(self.data) - self.at:
                raise RefusedError
            if skips and size is not None:
                self.take(size)
            else:
                for _ in range(count):
                    yield


Read = Callable[[Payload], Any]


def reader_of(writer: Schema, reader: Schema, wanted: pa.DataType) -> Read:
    """Return a function that reads a cell.

    Raises:
        MismatchError: no value can be read with these schemas and this type.
    """
    if not fits(reader, wanted):
        raise MismatchError
    return _read(writer, reader, wanted)


def read_cells(read: Read, payloads: Iterable[bytes]) -> list[Any]:
    """Return a cell for each payload; `RefusedError` itself for one that is refused."""
    cells: list[Any] = []
    for payload in payloads:
        try:
            cells.append(read(Payload(payload)))
        except RefusedError:
            cells.append(RefusedError)
    return cells


def _refuse(_: Payload) -> Any:
    raise RefusedError


def _one_of(branches: Sequence[Read], payload: Payload) -> Any:
    number = payload.number()
    if not 0 <= number < len(branches):
        raise RefusedError
    return branches[number](payload)


def _read(writer: Schema, reader: Schema, wanted: pa.DataType) -> Read:
    kind, own = kind_of(writer), kind_of(reader)
    if kind == "union":
        branches: list[Read] = []
        for branch in writer:
            try:
                branches.append(_read(branch, reader, wanted))
            except MismatchError:
                branches.append(_refuse)
        if all(read is _refuse for read in branches):
            raise MismatchError
        return lambda payload: _one_of(branches, payload)
    if own == "union":
        return _read_as_branch(writer, reader, wanted)
    if kind != own and own not in PROMOTIONS.get(kind, ()):
        raise MismatchError
    if kind == "record":
        return _read_record(writer, reader, wanted)
    if kind == "array":
        item = _read(writer["items"], reader["items"], wanted.value_type)
        return lambda payload: [item(payload) for _ in payload.blocks(writer["items"])]
    if kind == "map":
        key, item = _read("string", "string", pa.string()), _read(writer["values"], reader["values"], wanted.item_type)
        return lambda payload: [(key(payload), item(payload)) for _ in payload.blocks("string")]
    return _read_leaf(writer, reader, wanted)


def _read_as_branch(writer: Schema, union: Schema, wanted: pa.DataType) -> Read:
    branch = _branch_for(writer, union)
    others = not_null(union)
    if kind_of(branch) == "null":
        return lambda _: None
    if len(others) == 1 or is_number(union):
        return _read(writer, branch, wanted)
    name = f"member{next(at for at, other in enumerate(others) if other is branch)}"
    slots = [field.name for field in wanted]
    if name not in slots:
        skip = _skip(writer)
        return lambda payload: (skip(payload), (None,) * len(slots))[1]
    slot = slots.index(name)
    read = _read(writer, branch, wanted[slot].type)
    before, after = (None,) * slot, (None,) * (len(slots) - slot - 1)
    return lambda payload: (*before, read(payload), *after)


def _branch_for(writer: Schema, union: Schema) -> Schema:
    """Return the branch that Java's library chooses."""
    kind = kind_of(writer)
    alike = [branch for branch in union if kind_of(branch) == kind]
    if kind not in ("record", "enum", "fixed"):
        if alike:
            return alike[0]
    else:
        name = writer["name"]
        aliased = [branch for branch in alike if name in branch.get("aliases", ())]
        named = aliased or [branch for branch in alike if branch["name"] == name]
        if len(aliased) > 1:
            raise MismatchError
        if named:
            return named[0]
        able = [branch for branch in alike if _can_read(writer, branch)]
        short = [one for one in able if one["name"].rpartition(".")[2] == name.rpartition(".")[2]]
        if able:
            return (short[-1:] or able)[0]
    for branch in union:
        if kind_of(branch) in PROMOTIONS.get(kind, ()):
            return branch
    raise MismatchError


def _can_read(writer: Schema, reader: Schema) -> bool:
    try:
        _read(writer, reader, spark_type(reader))
    except MismatchError:
        return False
    return True


def _read_record(writer: Schema, reader: Schema, wanted: pa.StructType) -> Read:
    written = [field["name"] for field in writer["fields"]]
    # By Java's rule each alias renames a field of the writer, but only if the alias is needed.
    sources = {
        field["name"]: [field["name"]]
        if field["name"] in written
        else [alias for alias in dict.fromkeys(field.get("aliases", ())) if alias in written]
        for field in reader["fields"]
    }
    renamed = [one for name, found in sources.items() if found != [name] for one in found]
    reads: dict[str, tuple[int, Read]] = {}
    missing: list[tuple[int, Read]] = []
    for slot, column in enumerate(wanted):
        field = next(one for one in reader["fields"] if one["name"] == column.name)
        found = sources[column.name]
        if found == [column.name] and column.name in renamed:
            found = []
        if not found:
            missing.append((slot, _read_default(field, column.type)))
        elif len(found) > 1 or (found != [column.name] and renamed.count(found[0]) > 1):
            raise MismatchError
        else:
            kind = writer["fields"][written.index(found[0])]["type"]
            reads[found[0]] = slot, _read(kind, field["type"], column.type)
    steps = [reads.get(field["name"]) or (-1, _skip(field["type"])) for field in writer["fields"]] + missing

    def read(payload: Payload) -> Any:
        cells = [None] * wanted.num_fields
        for slot, step in steps:
            cell = step(payload)
            if slot >= 0:
                cells[slot] = cell
        return tuple(cells)

    return read


def _read_default(field: Schema, wanted: pa.DataType) -> Read:
    if "default" not in field:
        raise MismatchError
    data = encoded_default(field["type"], field["default"])
    read = _read(field["type"], field["type"], wanted)
    return lambda _: read(Payload(data, -(2**62)))


def encoded_default(schema: Schema, value: Any) -> bytes:
    """Return the bytes that fastavro writes for a default; that of a union belongs to its first branch."""
    if isinstance(schema, list):
        return b"\0" + encoded_default(schema[0], value)
    out = io.BytesIO()
    fastavro.schemaless_writer(
        out, fastavro.parse_schema(schema), value.encode("latin-1") if schema == "bytes" else value
    )
    return out.getvalue()


def _family(logical: str) -> str:
    for family in ("timestamp", "time"):
        if logical.endswith((f"{family}-millis", f"{family}-micros")):
            return family
    return logical


def _read_leaf(writer: Schema, reader: Schema, wanted: pa.DataType) -> Read:  # noqa: PLR0911 - a kind each
    kind, own = kind_of(writer), kind_of(reader)
    logical, as_logical = logical_of(writer), logical_of(reader)
    if kind in ("int", "long"):
        most = 2**31 if kind == "int" else 2**63
        if pa.types.is_floating(wanted):
            bits = float_bits if pa.types.is_float32(wanted) else double_bits
            return lambda payload: bits(_checked(payload.number(), most))
        if logical and as_logical and _family(logical) != _family(as_logical):
            raise MismatchError
        if pa.types.is_timestamp(wanted):
            factor = 1000 if (logical or as_logical).endswith("-millis") else 1
        else:
            factor = 1000 if logical == "time-millis" and as_logical == "time-micros" else 1
        return lambda payload: _checked(_checked(payload.number(), most) * factor, 2**63)
    if kind == "float":
        if pa.types.is_float32(wanted):
            return lambda payload: int.from_bytes(payload.take(4), "little")
        return lambda payload: double_bits(struct.unpack("<f", payload.take(4))[0])
    if kind == "fixed" and writer["size"] != reader["size"]:
        raise MismatchError
    if as_logical == "decimal":
        if logical == "decimal" and writer.get("scale", 0) != reader.get("scale", 0):
            raise MismatchError
        most, factor = 10 ** reader["precision"], 10 ** (wanted.scale - reader.get("scale", 0))
        take: Read = _sized if kind != "fixed" else lambda payload: payload.take(writer["size"])
        return lambda payload: _decimal(take(payload), most) * factor
    if own == "enum":
        default = reader.get("default")
        symbols = [
            one if one in reader["symbols"] else default if default in reader["symbols"] else None
            for one in writer["symbols"]
        ]
        return lambda payload: _symbol(symbols, payload.number())
    return {
        "null": lambda _: None,
        "boolean": lambda payload: _symbol((False, True), payload.take(1)[0]),
        "double": lambda payload: int.from_bytes(payload.take(8), "little"),
        "string": lambda payload: _text(_sized(payload)),
        "bytes": _sized,
        "fixed": lambda payload: payload.take(writer["size"]),
    }[own]


def _sized(payload: Payload) -> bytes:
    return payload.take(payload.number())


def _checked(number: int, most: int) -> int:
    if not -most <= number < most:
        raise RefusedError
    return number


def _decimal(data: bytes, most: int) -> int:
    value = int.from_bytes(data, "big", signed=True)
    if not data or abs(value) >= most:
        raise RefusedError
    return value


def _symbol(symbols: Sequence[Any], number: int) -> Any:
    if not 0 <= number < len(symbols) or symbols[number] is None:
        raise RefusedError
    return symbols[number]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise RefusedError from None


def double_bits(value: float) -> int:
    return int.from_bytes(struct.pack("<d", value), "little")


def float_bits(value: int) -> int:
    """Return the bits of the nearest float of 32 bits, without rounding twice."""
    more = max(value.bit_length() - 30, 0)
    kept = abs(value) >> more | (abs(value) & (1 << more) - 1 != 0)
    number = float(kept) * 2.0**more
    return int.from_bytes(struct.pack("<f", -number if value < 0 else number), "little")


def _skip(schema: Schema) -> Read:  # noqa: PLR0911 - a kind each
    """Return a function that skips a value, and checks no more of it than needed."""
    kind = kind_of(schema)
    if kind == "union":
        branches = [_skip(branch) for branch in schema]
        return lambda payload: _one_of(branches, payload)
    if kind == "record":
        fields = [_skip(field["type"]) for field in schema["fields"]]
        return lambda payload: [field(payload) for field in fields]
    if kind in ("array", "map"):
        inner = schema["items"] if kind == "array" else schema["values"]
        item = _skip(inner)
        if kind == "array":
            return lambda payload: [item(payload) for _ in payload.blocks(inner, skips=True)]
        return lambda payload: [(_sized(payload), item(payload)) for _ in payload.blocks("string", skips=True)]
    if kind in ("int", "long", "enum"):
        return Payload.number
    if kind in ("string", "bytes"):
        return _sized
    size = schema["size"] if kind == "fixed" else {"null": 0, "boolean": 1, "float": 4, "double": 8}[kind]
    return lambda payload: payload.take(size)


# -- fastavro


def tagged(schema: Schema) -> Schema:
    """Return a schema with the same bytes, with which fastavro reports the branch of a union.

    Each branch is wrapped in a record of one field, which adds no bytes. A map is an array of its entries,
    because a dict holds each key once; a float is its bytes, because Python changes a signalling NaN; logical types are
    removed, because Python lacks some of their values.
    """
    return fastavro.parse_schema(_tagged(schema, iter(range(10**9))))


def _tagged(schema: Schema, numbers: Any) -> Schema:  # noqa: PLR0911 - a kind each
    kind = kind_of(schema)
    if kind == "union":
        return [
            {
                "type": "record",
                "name": f"B{next(numbers)}_{at}",
                "fields": [{"name": "v", "type": _tagged(branch, numbers)}],
            }
            for at, branch in enumerate(schema)
        ]
    if kind == "array":
        return {"type": kind, "items": _tagged(schema["items"], numbers)}
    if kind == "map":
        fields = [{"name": "k", "type": "string"}, {"name": "v", "type": _tagged(schema["values"], numbers)}]
        return {"type": "array", "items": {"type": "record", "name": f"N{next(numbers)}", "fields": fields}}
    if kind == "record":
        fields = [{"name": field["name"], "type": _tagged(field["type"], numbers)} for field in schema["fields"]]
        return {"type": kind, "name": f"N{next(numbers)}", "fields": fields}
    if kind == "enum":
        return {"type": kind, "name": f"N{next(numbers)}", "symbols": schema["symbols"]}
    if kind in ("fixed", "float"):
        return {"type": "fixed", "name": f"N{next(numbers)}", "size": 4 if kind == "float" else schema["size"]}
    return kind


def read_with_fastavro(schema: Schema, parsed: Schema, payload: bytes) -> Any:
    """Return the cell of the value that fastavro reads with `tagged(schema)`."""
    found = fastavro.schemaless_reader(io.BytesIO(payload), parsed, return_record_name=True)
    return cell_of(schema, spark_type(schema), found)


def cell_of(schema: Schema, type_: pa.DataType, found: Any) -> Any:  # noqa: PLR0911 - a kind each
    """Return the cell of a value of fastavro."""
    kind = kind_of(schema)
    if kind == "union":
        name, value = found
        branch = schema[int(name.rpartition("_")[2])]
        others = not_null(schema)
        if kind_of(branch) == "null":
            return None
        if len(others) == 1 or is_number(schema):
            return cell_of(branch, type_, value["v"])
        return tuple(
            cell_of(other, field.type, value["v"]) if other is branch else None
            for other, field in zip(others, type_, strict=True)
        )
    if kind == "record":
        # fastavro returns the name only of a record in a union.
        return tuple(
            cell_of(field["type"], column.type, found[field["name"]])
            for field, column in zip(schema["fields"], type_, strict=True)
        )
    if kind == "array":
        return [cell_of(schema["items"], type_.value_type, one) for one in found]
    if kind == "map":
        return [(one["k"], cell_of(schema["values"], type_.item_type, one["v"])) for one in found]
    if logical_of(schema) == "decimal":
        return int.from_bytes(found, "big", signed=True)
    if pa.types.is_timestamp(type_):
        return found * 1000 if logical_of(schema).endswith("millis") else found
    if kind == "float":
        single = struct.unpack("<f", found)[0]
        return int.from_bytes(found, "little") if pa.types.is_float32(type_) else double_bits(single)
    return double_bits(found) if kind == "double" else found


def written(schema: Schema, type_: pa.DataType, cell: Any) -> Any:  # noqa: PLR0911 - a kind each
    """Return the cell that a reader of the schema gets after a cell of that type was written.

    Raises:
        RefusedError: the cell cannot be written.
    """
    kind = kind_of(schema)
    if kind == "union":
        others = not_null(schema)
        if cell is None:
            if len(others) == len(schema):
                raise RefusedError
            return None
        if len(others) == 1:
            return written(others[0], type_, cell)
        if is_number(schema):
            return cell
        if sum(one is not None for one in cell) != 1:
            raise RefusedError
        return tuple(
            None if one is None else written(other, field.type, one)
            for other, field, one in zip(others, type_, cell, strict=True)
        )
    if kind == "null":
        return None
    if cell is None:
        raise RefusedError
    if kind == "record":
        fields = zip(schema["fields"], type_, cell, strict=True)
        return tuple(written(field["type"], column.type, one) for field, column, one in fields)
    if kind == "array":
        return [written(schema["items"], type_.value_type, one) for one in cell]
    if kind == "map":
        return [(key, written(schema["values"], type_.item_type, one)) for key, one in cell]
    if logical_of(schema) == "decimal":
        return cell * 10 ** (schema.get("scale", 0) - type_.scale)
    if kind == "fixed" and len(cell) != schema["size"]:
        raise RefusedError
    if kind == "enum" and cell not in schema["symbols"]:
        raise RefusedError
    if logical_of(schema).endswith("timestamp-millis"):
        return cell // 1000 * 1000
    if kind == "double" and pa.types.is_int32(type_):
        return double_bits(cell)
    if kind == "double" and pa.types.is_float32(type_):
        return double_bits(struct.unpack("<f", cell.to_bytes(4, "little"))[0])
    return cell


# -- random schemas, values and evolution

LEAVES: list[Schema] = [
    *("null", "boolean", "int", "long", "float", "double", "string", "bytes"),
    *({"type": "int", "logicalType": one} for one in ("date", "time-millis")),
    *({"type": "long", "logicalType": one} for one in ("time-micros", "timestamp-nanos", *list(LOGICAL)[1:])),
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    {"type": "bytes", "logicalType": "decimal", "precision": 38},
    {"type": "fixed", "name": "F0", "size": 0},
    {"type": "fixed", "name": "F3", "size": 3},
    {"type": "fixed", "name": "D5", "size": 5, "logicalType": "decimal", "precision": 10, "scale": 4},
    {"type": "enum", "name": "E1", "symbols": ["A"]},
    {"type": "enum", "name": "E3", "symbols": ["A", "B", "C"]},
]


def number(value: int) -> bytes:
    """Return a number as Avro writes it."""
    return put_varint((value << 1) ^ (value >> 63))


HOSTILE = [b"\x80" * 11, *map(number, (-1, -2, 3, 1025, 2**31, -(2**31) - 1, 2**62, 2**63 - 1, -(2**63)))]
"""Wrong lengths, counts and branches, and a number without an end."""


def random_schema(rng: Random, depth: int, names: list[int], *, in_union: bool = False) -> Schema:
    """Return a schema with new names."""
    kind = rng.choice(("leaf", "leaf", "leaf", "array", "map", "record", "record", "union", "union"))
    if not depth or kind == "leaf" or (kind == "union" and in_union):
        leaf = rng.choice(LEAVES)
        return {**leaf, "name": new_name(names)} if "name" in leaf else leaf
    if kind == "array":
        return {"type": kind, "items": random_schema(rng, depth - 1, names)}
    if kind == "map":
        return {"type": kind, "values": random_schema(rng, depth - 1, names)}
    if kind == "union":
        branches: dict[str, Schema] = {}
        for _ in range(rng.choice((1, 2, 2, 3, 4))):
            branch = "null" if rng.random() < 0.3 else random_schema(rng, depth - 1, names, in_union=True)
            branches.setdefault(key_of(branch), branch)
        return list(branches.values())
    name = new_name(names)
    fields = [
        {"name": f"f{at}", "type": random_schema(rng, depth - 1, names)} for at in range(rng.choice((0, 1, 1, 2, 3)))
    ]
    return {"type": "record", "name": name, "fields": fields}


def key_of(branch: Schema) -> str:
    """Return the key by which a branch of a union must differ from the others."""
    return branch["name"] if isinstance(branch, dict) and "name" in branch else kind_of(branch)


def new_name(names: list[int]) -> str:
    names.append(len(names))
    return f"T{len(names)}"


def random_value(rng: Random, schema: Schema) -> bytes:  # noqa: PLR0911 - a kind each
    """Return the bytes of a value in a form that a writer may use: arrays and maps have blocks of any kind."""
    kind = kind_of(schema)
    if kind == "union":
        branch = rng.randrange(len(schema))
        return number(branch) + random_value(rng, schema[branch])
    if kind == "record":
        return b"".join(random_value(rng, field["type"]) for field in schema["fields"])
    if kind in ("array", "map"):
        inner = schema["items"] if kind == "array" else schema["values"]
        out = bytearray()
        for block in range(rng.choice((0, 1, 1, 2))):
            items = [random_value(rng, inner) for _ in range(rng.choice((1, 1, 2, 3)))]
            if kind == "map":
                # fastavro keeps one of two equal keys.
                items = [random_text(rng, b"%d.%d" % (block, at)) + item for at, item in enumerate(items)]
            data = b"".join(items)
            out += number(-len(items)) + number(len(data)) if rng.random() < 0.4 else number(len(items))
            out += data
        return bytes(out) + b"\0"
    if kind in ("int", "long"):
        bits = rng.randrange(31 if kind == "int" else 63)
        value = rng.choice((0, 1, -1, rng.getrandbits(bits), -rng.getrandbits(bits), (2 << bits) - 1, -2 << bits))
        if logical_of(schema).endswith("timestamp-millis"):
            value //= 1 << 11
        return number(value)
    if logical_of(schema) == "decimal":
        value = rng.choice((0, -1, rng.randrange(10 ** schema["precision"]), 1 - 10 ** schema["precision"]))
        size = schema["size"] if kind == "fixed" else value.bit_length() // 8 + rng.choice((1, 1, 2, 9))
        data = value.to_bytes(size, "big", signed=True)
        return data if kind == "fixed" else number(size) + data
    if kind in ("float", "double"):
        size = 4 if kind == "float" else 8
        quiet = b"\0\0\xc0\x7f" if kind == "float" else b"\0\0\0\0\0\0\xf8\x7f"
        return rng.choice((bytes(size), quiet, rng.randbytes(size - 1) + b"\x3f"))
    if kind == "enum":
        return number(rng.randrange(len(schema["symbols"])))
    if kind == "boolean":
        return bytes([rng.randrange(2)])
    if kind in ("string", "bytes"):
        return random_text(rng) if kind == "string" else random_text(rng, b"\xff")
    return rng.randbytes(schema["size"]) if kind == "fixed" else b""


def random_text(rng: Random, end: bytes = b"") -> bytes:
    text = rng.choice(("", "a", "text", "ü", "😀 long text in which are more than sixteen bytes")).encode() + end
    return number(len(text)) + text


DEFAULTS: list[tuple[Schema, Any]] = [
    ("null", None),
    ("int", -5),
    ("string", "ü"),
    ("bytes", "\u00ff"),
    ("double", 0.5),
    (["null", "int"], None),
    (["string", "int"], "a"),
    ({"type": "array", "items": "long"}, [1, -(2**40)]),
    ({"type": "array", "items": "null"}, [None, None]),
    ({"type": "map", "values": "boolean"}, {"k": True}),
]


def evolved(rng: Random, schema: Schema, names: list[int], *, in_union: bool = False) -> Schema:  # noqa: PLR0911
    """Return a reader's schema that can usually read values of this schema."""
    kind = kind_of(schema)
    chance = rng.random()
    if chance < 0.02:
        return random_schema(rng, 1, names, in_union=in_union)
    if kind == "union":
        branches = [evolved(rng, branch, names, in_union=True) for branch in schema]
        rng.shuffle(branches)
        if chance < 0.3:
            branches = branches[: rng.randint(1, len(branches))]
        if chance > 0.8:
            branches.insert(rng.randint(0, len(branches)), random_schema(rng, 1, names, in_union=True))
        different: dict[str, Schema] = {}
        for branch in branches:
            different.setdefault(key_of(branch), branch)
        return rng.choice(branches) if chance < 0.1 and not in_union else list(different.values())
    if not in_union and chance < 0.1:
        found = evolved(rng, schema, names, in_union=True)
        other = random_schema(rng, 1, names, in_union=True)
        return [found, other] if kind_of(other) != kind_of(found) else [found]
    if kind == "array":
        return {**schema, "items": evolved(rng, schema["items"], names)}
    if kind == "map":
        return {**schema, "values": evolved(rng, schema["values"], names)}
    renamed = {}
    if kind in ("record", "enum", "fixed") and chance > 0.7:
        renamed = {"name": new_name(names), "aliases": [schema["name"]] if chance > 0.85 else []}
    if kind == "record":
        return {**schema, **renamed, "fields": evolved_fields(rng, schema["fields"], names)}
    if kind == "enum":
        symbols = [one for one in [*schema["symbols"], "X", "Y"] if rng.random() < 0.8] or ["X"]
        rng.shuffle(symbols)
        return {**schema, **renamed, "symbols": symbols, **({"default": symbols[0]} if rng.random() < 0.5 else {})}
    if kind == "fixed":
        return {**schema, **renamed}
    if isinstance(schema, str) and chance < 0.5:
        return rng.choice((kind, *PROMOTIONS.get(kind, ())))
    if kind in ("int", "long") and chance < 0.8:
        return rng.choice([leaf for leaf in LEAVES if kind_of(leaf) in (kind, "long")])
    return schema


def rewritten(rng: Random, schema: Schema) -> Schema:  # noqa: PLR0911 - a kind each
    """Return a schema for writing values of another schema's type; some values cannot be written."""
    kind = kind_of(schema)
    chance = rng.random()
    if kind == "union":
        branches = not_null(schema) if chance < 0.2 and not_null(schema) else schema
        # With several branches, two numbers could become equal.
        return [rewritten(rng, branch) for branch in branches] if len(not_null(schema)) == 1 else branches
    if kind == "record":
        return {
            **schema,
            "fields": [{**field, "type": rewritten(rng, field["type"])} for field in schema["fields"]],
        }
    if kind == "array":
        return {**schema, "items": rewritten(rng, schema["items"])}
    if kind == "map":
        return {**schema, "values": rewritten(rng, schema["values"])}
    if kind == "enum":
        return {**schema, "symbols": schema["symbols"][int(chance < 0.2) :][::-1] or ["Z"]}
    if kind == "fixed" and chance < 0.1 and "logicalType" not in schema:
        return {**schema, "size": schema["size"] + 1}
    if logical_of(schema).endswith("timestamp-micros") and chance < 0.5:
        return {**schema, "logicalType": logical_of(schema).replace("micros", "millis")}
    return {"int": "long" if chance < 0.5 else "double", "float": "double"}.get(str(schema), schema)


def evolved_fields(rng: Random, fields: Sequence[Schema], names: list[int]) -> list[Schema]:
    found = []
    for field in fields:
        chance = rng.random()
        if chance < 0.2:
            continue
        one = {**field, "type": evolved(rng, field["type"], names)}
        if chance > 0.8:
            one |= {"name": f"g{len(found)}", "aliases": [field["name"], *rng.sample(["f0", "f1", "g0"], 1)]}
        found.append(one)
    for at in range(rng.choice((0, 0, 1, 2))):
        kind, default = rng.choice(DEFAULTS)
        taken = [one["name"] for one in found]
        name = rng.choice([one for one in ("f0", "f1", f"new{at}") if one not in taken])
        aliases = rng.choice(([], [], ["f0"], ["f1", "f2"]))
        found.insert(rng.randint(0, len(found)), {"name": name, "type": kind, "default": default, "aliases": aliases})
    rng.shuffle(found)
    return found


def random_part(rng: Random, type_: pa.DataType) -> pa.DataType:
    """Return some of the fields of a type, at any depth; some have a wider type."""
    if pa.types.is_struct(type_):
        fields = [field for field in type_ if rng.random() < 0.6]
        rng.shuffle(fields)
        return pa.struct([(field.name, random_part(rng, field.type)) for field in fields])
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), random_part(rng, type_.item_type))
    if pa.types.is_list(type_):
        return pa.list_(random_part(rng, type_.value_type))
    if pa.types.is_decimal(type_):
        more = rng.randint(0, 38 - type_.precision)
        return pa.decimal128(type_.precision + more, type_.scale + rng.randint(0, more))
    return rng.choice([type_, type_, *(wide for narrow, wide in WIDER if narrow == type_)])
