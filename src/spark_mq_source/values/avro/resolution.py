"""Resolution of a writer's schema to the reader's and to the wanted Arrow type; the result is the steps of decoding.

The rules are those of Avro 1.12 (Specification, Schema Resolution), with these extensions:

* Outside of unions the names of records, enums and fixed need not match, as for Java's records.
* Aliases of fields work as in Java's library: a field of the writer that an alias names is renamed, even if the
  reader's schema has another field with the writer's name. Beyond Java, a field that was written under its own name
  needs no alias. An ambiguous alias is an error.
* If both schemas have a timestamp, or a time of day, the writer's unit counts, so no value is off by a factor of 1000.
* A decimal must have the same scale in both schemas.
* Unwanted fields need no resolution: they are skipped by the writer's schema.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

import pyarrow as pa

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.avro.defaults import encode_default
from spark_mq_source.values.avro.schema import AvroField, AvroType
from spark_mq_source.values.avro.steps import Step, check_step
from spark_mq_source.values.avro.types import (
    arrow_type,
    check_conversion,
    inner_of,
    is_number_union,
    not_null_branches,
    places_of,
)
from spark_mq_source.values.decoder import reason_of


class MismatchError(Exception):
    """The writer's schema cannot be read by the reader's; contains the reason."""

    def __init__(self, why: str, path: str = "") -> None:
        super().__init__(reason_of([path], why))
        self.why, self.path = why, path


def resolve(writer: AvroType, reader: AvroType, wanted: pa.DataType) -> Step:
    """Return the step that reads a value.

    Raises:
        MismatchError: no value written with one schema can be read with the other.
        OptionError: see `check_conversion`.
    """
    check_conversion(reader, wanted)
    step = _read(writer, reader, wanted)
    check_step(step, wanted)
    return step


def _read(writer: AvroType, reader: AvroType, wanted: pa.DataType) -> Step:
    if writer.kind == "union":
        return _read_union(writer, reader, wanted)
    if reader.kind == "union":
        return _read_branch(writer, reader, wanted)
    if writer.kind != reader.kind and reader.kind not in _PROMOTIONS.get(writer.kind, ()):
        raise MismatchError(f"{writer!r} cannot be read as {reader!r}")
    if writer.kind == "record":
        return _read_record(writer, reader, wanted)
    if writer.kind == "array":
        item = _read(inner_of(writer), inner_of(reader), wanted.value_type)
        return Step("ARRAY", steps=(item,), is_empty=_is_empty(inner_of(writer)))
    if writer.kind == "map":
        return Step("MAP", steps=(_read(inner_of(writer), inner_of(reader), wanted.item_type),))
    return _read_leaf(writer, reader, wanted)


_PROMOTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}


def _read_union(writer: AvroType, reader: AvroType, wanted: pa.DataType) -> Step:
    """Return a step for each branch; a branch that cannot be read is an error only in values of that branch."""
    steps: list[Step] = []
    for branch in writer.branches:
        try:
            steps.append(_read(branch, reader, wanted))
        except MismatchError as mismatch:
            steps.append(Step("FAIL", text=str(mismatch)))
    faults = [step.text for step in steps if step.code == "FAIL"]
    if len(faults) == len(steps):
        raise MismatchError(faults[0] if faults else "a union has no branches")
    return Step("UNION", steps=tuple(steps))


def _read_branch(writer: AvroType, union: AvroType, wanted: pa.DataType) -> Step:
    """Read a value that is not a union as the first accepting branch of the reader's union."""
    branch = _branch_for(writer, union, wanted)
    if branch.kind == "null":
        return Step("NULL")
    branches = not_null_branches(union)
    if len(branches) == 1 or is_number_union(union):
        return _read(writer, branch, wanted)
    names = [f"member{n}" for n in range(len(branches))]
    place = places_of(names, wanted).get(branches.index(branch))
    if place is None:
        return Step("MEMBER", steps=(_sequence(_skip(writer, "")),))
    slot, field = place
    return Step("MEMBER", steps=(replace(_read(writer, branch, field.type), slot=slot),))


def _branch_for(writer: AvroType, union: AvroType, wanted: pa.DataType) -> AvroType:
    # The order is that of Java's Resolver: the same type, by name for named types; then a readable record, the last of
    # those with its name in another namespace or else the first; then the first branch that the type is promoted to.
    alike = [branch for branch in union.branches if branch.kind == writer.kind]
    aliased = [branch for branch in alike if writer.name in branch.aliases]
    if len(aliased) > 1:
        raise MismatchError(f"several branches of the reader's union have the alias {writer.name}")
    for branch in (*aliased, *alike):
        if not writer.name or writer.name == branch.name or branch in aliased:
            return branch
    able = [branch for branch in alike if _is_readable(writer, branch)]
    short = [branch for branch in able if _short(branch.name) == _short(writer.name)]
    if able:
        return short[-1] if short else able[0]
    for branch in union.branches:
        if branch.kind in _PROMOTIONS.get(writer.kind, ()):
            return branch
    raise MismatchError(f"{writer!r} is not a branch of the reader's union")


# Without the cache, unions within unions would double the time at each level.
@lru_cache(maxsize=1024)
def _is_readable(writer: AvroType, reader: AvroType) -> bool:
    try:
        _read(writer, reader, arrow_type(reader))
    except (MismatchError, OptionError):
        return False
    return True


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _read_record(writer: AvroType, reader: AvroType, wanted: pa.StructType) -> Step:
    places = places_of([field.name for field in reader.fields], wanted)
    sources = _sources(writer, reader)
    # For each field of the writer: the reader's field that reads it, its slot, and its column.
    found: dict[int, tuple[AvroField, int, pa.Field]] = {}
    missing: list[Step] = []
    for at, (slot, column) in places.items():
        field = reader.fields[at]
        if not sources[at]:
            missing.append(replace(_default(field, column.type), slot=slot))
            continue
        own = _only(sources[at], f"the aliases of {field.name} name several fields of the writer's schema", writer)
        if field.name != writer.fields[own].name:
            rivals = [rival for rival, known in enumerate(sources) if own in known]
            _only(rivals, f"several fields have the alias {writer.fields[own].name}", reader)
        found[own] = field, slot, column
    steps: list[Step] = []
    for at, one in enumerate(writer.fields):
        if at not in found:
            steps += _skip(one.type, f".{one.name}")
            continue
        field, slot, column = found[at]
        try:
            step = _read(one.type, field.type, column.type)
        except MismatchError as mismatch:
            raise MismatchError(mismatch.why, f".{one.name}{mismatch.path}") from None
        steps.append(replace(step, name=f".{one.name}", slot=slot))
    return Step("RECORD", steps=(*_merged(steps), *missing))


def _sources(writer: AvroType, reader: AvroType) -> list[list[int]]:
    """Return the possible fields of the writer for each field of the reader: at most one, unless aliases conflict."""
    written = {field.name: at for at, field in enumerate(writer.fields)}
    sources = []
    aliased: set[int] = set()
    for field in reader.fields:
        if field.name in written:
            sources.append([written[field.name]])
        else:
            sources.append([written[alias] for alias in dict.fromkeys(field.aliases) if alias in written])
            aliased.update(sources[-1])
    return [
        [] if field.name in written and written[field.name] in aliased else known
        for field, known in zip(reader.fields, sources, strict=True)
    ]


def _only(found: Sequence[int], fault: str, record: AvroType) -> int:
    if len(found) > 1:
        raise MismatchError(f"{fault}: {', '.join(record.fields[at].name for at in found)}")
    return found[0]


def _default(field: AvroField, wanted: pa.DataType) -> Step:
    if not field.has_default:
        raise MismatchError(f"{field.name} was not written and has no default")
    try:
        data = encode_default(field.type, field.default)
    except ValueError:
        raise MismatchError(f"{field.name} was not written and its default is not a value of {field.type!r}") from None
    return Step("DEFAULT", name=f".{field.name}", steps=(_read(field.type, field.type, wanted),), data=data)


def _read_leaf(writer: AvroType, reader: AvroType, wanted: pa.DataType) -> Step:
    """Read a value that is neither a record nor a collection."""
    if writer.kind in ("int", "long"):
        return _read_integer(writer, reader, wanted)
    if writer.kind == "float":
        return Step("FLOAT" if pa.types.is_float32(wanted) else "FLOAT_TO_DOUBLE")
    if writer.kind == "fixed" and writer.size != reader.size:
        raise MismatchError(f"a fixed of {writer.size} bytes cannot be read as one of {reader.size}")
    if reader.logical == "decimal":
        if writer.logical == "decimal" and writer.scale != reader.scale:
            raise MismatchError(f"a decimal of scale {writer.scale} cannot be read as one of scale {reader.scale}")
        size = writer.size if writer.kind == "fixed" else -1
        shift = wanted.scale - reader.scale
        return Step("DECIMAL", size=size, precision=reader.precision, shift=shift)
    if reader.kind == "enum":
        known = {symbol: symbol.encode() for symbol in reader.symbols}
        instead = known.get(reader.default)
        symbols = tuple(known.get(symbol, instead) for symbol in writer.symbols)
        return Step("ENUM", symbols=symbols, written=writer.symbols)
    return Step(_LEAVES[reader.kind], size=writer.size)


def _read_integer(writer: AvroType, reader: AvroType, wanted: pa.DataType) -> Step:
    is_int = writer.kind == "int"
    if pa.types.is_floating(wanted):
        return Step("INT_TO_FLOAT" if pa.types.is_float32(wanted) else "INT_TO_DOUBLE", is_int=is_int)
    is_scaled = _is_scaled(writer, reader, wanted)
    if reader.kind == "int" and not pa.types.is_int64(wanted):
        return Step("INT", is_int=is_int)
    return Step("MILLIS" if is_scaled else "LONG", is_int=is_int)


_LEAVES: Final[Mapping[str, str]] = {
    "null": "NULL",
    "boolean": "BOOLEAN",
    "double": "DOUBLE",
    "string": "TEXT",
    "bytes": "BINARY",
    "fixed": "FIXED",
}


def _is_scaled(writer: AvroType, reader: AvroType, wanted: pa.DataType) -> bool:
    """Return whether milliseconds are read as microseconds."""
    families = _family(writer.logical), _family(reader.logical)
    if "" not in families and families[0] != families[1]:
        raise MismatchError(f"{writer.logical} cannot be read as {reader.logical}")
    if pa.types.is_timestamp(wanted):
        return (writer.logical or reader.logical).endswith("-millis")
    # A time of day stays the number that was written.
    return families == ("time", "time") and writer.logical != reader.logical


def _family(logical: str) -> str:
    if logical.endswith(("timestamp-millis", "timestamp-micros")):
        return "timestamp"
    return "time" if logical.startswith("time-") else logical


# -- skipped values


def _skip(type_: AvroType, name: str) -> list[Step]:
    kind = type_.kind
    if kind == "record":
        return [step for field in type_.fields for step in _skip(field.type, f"{name}.{field.name}")]
    if kind == "union":
        return [Step("UNION", name, steps=tuple(_sequence(_skip(branch, "")) for branch in type_.branches))]
    if kind in ("array", "map"):
        key = [Step("SKIP_SIZED", size=1)] if kind == "map" else []
        items = (*_merged([*key, *_skip(inner_of(type_), "")]),)
        return [Step("SKIP_BLOCKS", name, steps=items, is_empty=not items)]
    if kind in ("bytes", "string"):
        return [Step("SKIP_SIZED", name, size=1)]
    if kind in ("int", "long", "enum"):
        return [Step("SKIP_VARINTS", name, size=1)]
    size = {"null": 0, "boolean": 1, "float": 4, "double": 8, "fixed": type_.size}[kind]
    return [Step("SKIP_BYTES", name, size=size)] if size else []


def _merged(steps: Iterable[Step]) -> Iterator[Step]:
    """Yield the steps, with consecutive skips of the same kind merged into one."""
    last: Step | None = None
    for step in steps:
        if last and step.code == last.code and step.code in ("SKIP_BYTES", "SKIP_VARINTS", "SKIP_SIZED"):
            first = last.name.partition("..")[0]
            last = replace(last, size=last.size + step.size, name=f"{first}..{step.name[1:]}" if step.name else "")
            continue
        if last:
            yield last
        last = step
    if last:
        yield last


def _sequence(steps: Sequence[Step]) -> Step:
    """Return one step for several steps, also for use as a branch: the loop resolves only one union per step."""
    merged = tuple(_merged(steps))
    if len(merged) == 1 and merged[0].code != "UNION":
        return merged[0]
    return Step("SEQUENCE", steps=merged)


def _is_empty(type_: AvroType) -> bool:
    """Return whether the values of a type have no bytes."""
    if type_.kind == "record":
        return all(_is_empty(field.type) for field in type_.fields)
    return type_.kind == "null" or (type_.kind == "fixed" and not type_.size)
