"""Both Avro decoders against each other, and against what fastavro wrote and reads."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
from decimal import Decimal

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq_source.core.values.avro import arrow_type_of, avro_decoder
from spark_mq_source.core.values.avro_writer import encode_avro
from tests.fuzz.values import Outcome, cells_of

pytest.importorskip("spark_mq_source.core.values._avro_native", exc_type=ImportError)

IMPLEMENTATIONS = ("native", "python")
LOGICAL = (
    ("int", "date"),
    ("int", "time-millis"),
    ("long", "timestamp-millis"),
    ("long", "timestamp-micros"),
    ("long", "local-timestamp-millis"),
    ("long", "local-timestamp-micros"),
)

text = st.text(st.characters(codec="utf-8"), max_size=8)
names = st.sampled_from(["a", "b", "c", "d", "e"])
numbers = {
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
}


@st.composite
def schemas(draw, depth=3, counter=None, *, in_union=False, plain=False):  # noqa: PLR0911 - a kind each
    """A schema; every name in it is new. A plain one has neither logical types nor unions but with null."""
    counter = itertools.count() if counter is None else counter
    kinds = ["null", "boolean", "int", "long", "float", "double", "string", "bytes", "fixed", "enum"]
    kinds += [] if plain else ["logical", "decimal"]
    if depth:
        kinds += ["array", "map", "record", "record"] + ([] if in_union else ["union", "union"])
    kind = draw(st.sampled_from(kinds))

    def within(**more):
        return draw(schemas(depth - 1, counter, plain=plain, **more))

    if kind == "fixed":
        return {"type": "fixed", "name": f"N{next(counter)}", "size": draw(st.integers(0, 5))}
    if kind == "enum":
        symbols = draw(st.lists(names, min_size=1, unique=True))
        return {"type": "enum", "name": f"N{next(counter)}", "symbols": symbols}
    if kind == "logical":
        type_, logical = draw(st.sampled_from(LOGICAL))
        return {"type": type_, "logicalType": logical}
    if kind == "decimal":
        precision = draw(st.integers(1, 38))
        found = {"type": "bytes", "logicalType": "decimal", "precision": precision}
        return found | {"scale": draw(st.integers(0, precision))}
    if kind == "array":
        return {"type": "array", "items": within()}
    if kind == "map":
        return {"type": "map", "values": within()}
    if kind == "record":
        fields = [{"name": name, "type": within()} for name in draw(st.lists(names, max_size=4, unique=True))]
        return {"type": "record", "name": f"N{next(counter)}", "fields": fields}
    if kind == "union" and plain:
        other = within(in_union=True)
        return draw(st.permutations(["null", other])) if other != "null" else ["null"]
    if kind == "union":
        found = {branch_name(one): one for one in (within(in_union=True) for _ in range(draw(st.integers(1, 4))))}
        return list(found.values())
    return kind


@st.composite
def root_schemas(draw, *, plain=False):
    """Most often a record of several fields, as a payload is."""
    counter = itertools.count()
    if draw(st.integers(0, 3)) == 0:
        return draw(schemas(3, counter, plain=plain))
    few = st.lists(st.deferred(lambda: schemas(2, counter, plain=plain)), min_size=3, max_size=8)
    fields = [{"name": f"f{at}", "type": kind} for at, kind in enumerate(draw(few))]
    return {"type": "record", "name": "Root", "fields": fields}


def branch_name(schema):
    if isinstance(schema, str):
        return schema
    return schema.get("name", schema["type"])


def kind_of(schema):
    return schema if isinstance(schema, str) else schema["type"]


def is_number_union(union):
    kinds = {kind_of(one) for one in union} - {"null"}
    return kinds in ({"int", "long"}, {"float", "double"})


@st.composite
def values(draw, schema):  # noqa: PLR0911 - a kind each
    """A value as fastavro writes it, and as Arrow is to have it."""
    if isinstance(schema, list):
        number = draw(st.integers(0, len(schema) - 1))
        branch = schema[number]
        value, expected = draw(values(branch))
        others = [one for one in schema if one != "null"]
        if branch != "null" and len(others) > 1 and not is_number_union(schema):
            expected = {f"member{others.index(branch)}": expected}
        return (None if branch == "null" else (branch_name(branch), value)), expected
    kind = kind_of(schema)
    if kind == "null":
        return None, None
    if kind == "record":
        pairs = {field["name"]: draw(values(field["type"])) for field in schema["fields"]}
        return {name: one for name, (one, _) in pairs.items()}, {name: one for name, (_, one) in pairs.items()}
    if kind == "array":
        pairs = draw(st.lists(values(schema["items"]), max_size=4))
        return [one for one, _ in pairs], [one for _, one in pairs]
    if kind == "map":
        pairs = draw(st.dictionaries(text, values(schema["values"]), max_size=3))
        return {key: one for key, (one, _) in pairs.items()}, [(key, one) for key, (_, one) in pairs.items()]
    if kind in numbers:
        value = draw(numbers[kind])
        if not isinstance(schema, str) and schema["logicalType"].endswith("timestamp-millis"):
            value = value // 1000 if value >= 0 else -(-value // 1000)
            return value, value * 1000
        return value, value
    if not isinstance(schema, str) and schema.get("logicalType") == "decimal":
        unscaled = draw(st.integers(1 - 10 ** schema["precision"], 10 ** schema["precision"] - 1))
        value = Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -schema["scale"]))
        return value, value
    leaf = {
        "boolean": st.booleans,
        "string": lambda: text,
        "bytes": lambda: st.binary(max_size=5),
        "fixed": lambda: st.binary(min_size=schema["size"], max_size=schema["size"]),
        "enum": lambda: st.sampled_from(schema["symbols"]),
    }
    value = draw(leaf[kind]())
    return value, value


@st.composite
def projections(draw, type_):
    """Some of a type, some of it wider."""
    if pa.types.is_struct(type_):
        fields = draw(st.permutations([field for field in type_ if draw(st.booleans())]))
        return pa.struct([(field.name, draw(projections(field.type))) for field in fields])
    if pa.types.is_map(type_):
        return pa.map_(pa.string(), draw(projections(type_.item_type)))
    if pa.types.is_list(type_):
        return pa.list_(draw(projections(type_.value_type)))
    if pa.types.is_decimal(type_):
        more = draw(st.integers(0, 38 - type_.precision))
        return pa.decimal128(type_.precision + more, type_.scale + draw(st.integers(0, more)))
    wider = {pa.int32(): [pa.int64(), pa.float64()], pa.float32(): [pa.float64()]}
    return draw(st.sampled_from([type_, *wider.get(type_, [])]))


def select(value, type_):
    """What a projection leaves of a value."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: select(value.get(field.name), field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(key, select(one, type_.item_type)) for key, one in value]
    if pa.types.is_list(type_):
        return [select(one, type_.value_type) for one in value]
    return float(value) if pa.types.is_float64(type_) else value


def write(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def decode_by_both(definition, wanted, payloads, reader=None):
    payloads = pa.array(payloads, pa.binary())
    native, python = (
        avro_decoder(definition, wanted, reader, implementation).decode(payloads) for implementation in IMPLEMENTATIONS
    )
    assert Outcome(native) == Outcome(python)
    return native


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_fastavro_wrote_is_read_whole_and_in_part(data):
    schema = data.draw(root_schemas())
    written = data.draw(st.lists(values(schema), min_size=1, max_size=4))
    definition, parsed = json.dumps(schema), fastavro.parse_schema(schema)
    payloads = [None, *(write(parsed, value) for value, _ in written)]
    whole = arrow_type_of(definition)
    decoded = decode_by_both(definition, whole, payloads)
    assert not decoded.reasons
    assert decoded.values == pa.array([None, *(expected for _, expected in written)], whole)
    wanted = data.draw(projections(whole))
    part = decode_by_both(definition, wanted, payloads)
    assert not part.reasons
    assert part.values == pa.array([None, *(select(expected, wanted) for _, expected in written)], wanted)


@st.composite
def readers(draw, schema):  # noqa: PLR0911 - a kind each
    """A schema that reads what was written with another."""
    if isinstance(schema, list):
        return [draw(readers(one)) for one in draw(st.permutations(schema))]
    kind = kind_of(schema)
    if kind == "record":
        fields = [{**one, "type": draw(readers(one["type"]))} for one in draw(st.permutations(schema["fields"]))]
        fields = fields[draw(st.integers(0, len(fields))) :]
        if draw(st.booleans()):
            type_, default = draw(st.sampled_from(DEFAULTS))
            fields.insert(draw(st.integers(0, len(fields))), {"name": "new", "type": type_, "default": default})
        return {**schema, "fields": fields}
    if kind == "array":
        return {**schema, "items": draw(readers(schema["items"]))}
    if kind == "map":
        return {**schema, "values": draw(readers(schema["values"]))}
    if kind == "enum":
        more = [name for name in "fghij" if draw(st.booleans())]
        return {**schema, "symbols": draw(st.permutations([*schema["symbols"], *more]))}
    if kind in PROMOTIONS:
        return draw(st.sampled_from([kind, *PROMOTIONS[kind]]))
    return schema


PROMOTIONS = {"int": ["long", "float", "double"], "long": ["float", "double"], "float": ["double"]}
DEFAULTS = [
    ("int", 5),
    (["null", "int"], None),
    ("string", "ü"),
    ({"type": "array", "items": "long"}, [1, -(2**40)]),
    ({"type": "map", "values": "boolean"}, {"k": True}),
    ({"type": "record", "name": "Default", "fields": [{"name": "x", "type": "double"}]}, {"x": 0.5}),
]


def as_cells(value, type_):
    """What fastavro read as Arrow is to have it."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: as_cells(value[field.name], field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(key, as_cells(one, type_.item_type)) for key, one in value.items()]
    if pa.types.is_list(type_):
        return [as_cells(one, type_.value_type) for one in value]
    if pa.types.is_float32(type_):
        # fastavro leaves promoted integers as they are.
        return pa.array([float(value)]).cast(pa.float32(), safe=False)[0].as_py()
    return float(value) if pa.types.is_float64(type_) else value


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_another_readers_schema_gives_what_fastavro_reads(data):
    schema = data.draw(root_schemas(plain=True))
    reader = data.draw(readers(schema))
    # A schema that names what it defines a second time is another one.
    text_of_reader = json.dumps(reader)
    if text_of_reader.count('"Default"') > 1:
        return
    written = data.draw(st.lists(values(schema), min_size=1, max_size=4))
    parsed, parsed_reader = fastavro.parse_schema(schema), fastavro.parse_schema(reader)
    payloads = [write(parsed, value) for value, _ in written]
    expected = [fastavro.schemaless_reader(io.BytesIO(payload), parsed, parsed_reader) for payload in payloads]
    wanted = arrow_type_of(text_of_reader)
    decoded = decode_by_both(json.dumps(schema), wanted, payloads, text_of_reader)
    assert not decoded.reasons
    assert decoded.values == pa.array([as_cells(value, wanted) for value in expected], wanted)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_hostile_bytes_are_reasons_and_both_agree(data):
    schema = data.draw(root_schemas())
    definition, parsed = json.dumps(schema), fastavro.parse_schema(schema)
    good = [write(parsed, value) for value, _ in data.draw(st.lists(values(schema), min_size=1, max_size=3))]
    payloads = []
    for one in good:
        at = data.draw(st.integers(0, len(one)))
        gone = data.draw(st.integers(0, 2))
        payloads += [
            one,
            one[:at] + data.draw(st.binary(max_size=3)) + one[at + gone :],
            data.draw(st.binary(max_size=20)),
        ]
    decoded = decode_by_both(definition, arrow_type_of(definition), payloads)
    assert set(decoded.reasons) <= {row for row in range(len(payloads)) if row % 3}
    assert all(not decoded.values[row].is_valid for row in decoded.reasons)
    # What is around a bad row is as it is without it.
    alone = decode_by_both(definition, decoded.values.type, good)
    assert cells_of(decoded.values)[::3] == cells_of(alone.values)
    decode_by_both(definition, data.draw(projections(decoded.values.type)), payloads)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_what_is_encoded_is_what_fastavro_wrote(data):
    schema = data.draw(root_schemas())
    written = data.draw(st.lists(values(schema), min_size=1, max_size=4))
    definition, parsed = json.dumps(schema), fastavro.parse_schema(schema)
    type_ = arrow_type_of(definition)
    # A null at the root is none in Arrow that could be told from a row without a value.
    rows = [expected for _, expected in written if expected is not None]
    array = pa.array([None, *rows, None], type_).slice(1, len(rows))
    native, python = (encode_avro(array, definition, implementation) for implementation in IMPLEMENTATIONS)
    native.validate(full=True)
    assert native == python
    assert native.null_count == 0 or type_ == pa.null()
    decoded = avro_decoder(definition, type_).decode(native)
    assert not decoded.reasons
    assert decoded.values == array
    theirs = [write(parsed, value) for value, expected in written if expected is not None]
    for our, their in zip(native.to_pylist(), theirs, strict=True):
        with contextlib.suppress(OverflowError, ValueError):
            # Python lacks some of the times.
            expected = fastavro.schemaless_reader(io.BytesIO(their), parsed)
            assert fastavro.schemaless_reader(io.BytesIO(our), parsed) == expected
