"""Avro against the oracle: each wanted type with each schema's type, and each small union in each place."""

from __future__ import annotations

import itertools
import json
import math
from random import Random

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.avro.decode import arrow_type_of, avro_decoder
from spark_mq_source.values.avro.encode import avro_encoder
from tests.oracles import avro as oracle

pytest.importorskip("spark_mq_source.values.avro._decode_native", exc_type=ImportError)

MANY_ROWS = 1000
SCHEMA_SHAPES = {
    "array": lambda inner: {"type": "array", "items": inner},
    "map": lambda inner: {"type": "map", "values": inner},
    "record": lambda inner: {"type": "record", "name": "R", "fields": [{"name": "x", "type": inner}]},
    "nullable": lambda inner: ["null", inner],
}
TYPE_SHAPES = {
    "array": pa.list_,
    "map": lambda inner: pa.map_(pa.string(), inner),
    "record": lambda inner: pa.struct([("x", inner)]),
}
TYPES = [
    *dict.fromkeys([*oracle.PLAIN.values(), *oracle.LOGICAL.values()]),
    *(pa.decimal128(*digits) for digits in ((9, 2), (10, 4), (12, 4), (38, 0))),
    pa.int8(),
    pa.timestamp("ms", "UTC"),
]


def shapes(names):
    return [shape for depth in range(3) for shape in itertools.product(names, repeat=depth)]


def shaped(how, shape, leaf):
    for one in reversed(shape):
        leaf = how[one](leaf)
    return leaf


def schemas():
    """Yield each leaf, alone and in each shape that is a valid Avro schema, with the shape."""
    for shape in shapes(SCHEMA_SHAPES):
        for leaf in oracle.LEAVES:
            if shape != ("nullable", "nullable") and not (shape[-1:] == ("nullable",) and leaf == "null"):
                yield shape, shaped(SCHEMA_SHAPES, shape, leaf)


def samples(schema, count=6):
    """Return valid payloads, and truncated ones."""
    rng = Random(json.dumps(schema))
    good = [oracle.random_value(rng, schema) for _ in range(count)]
    return [*good, good[0][:-1], None, good[-1]]


def expect_as_the_oracle(schema, reader, wanted, payloads, offsets=(0,)):
    """Decode once for each offset, and a thousand rows; return whether the oracle accepts the schemas and the type."""
    try:
        read = oracle.reader_of(schema, reader, wanted)
    except oracle.MismatchError:
        with pytest.raises(OptionError):
            avro_decoder(json.dumps(schema), wanted, json.dumps(reader))
        return False
    decoder = avro_decoder(json.dumps(schema), wanted, json.dumps(reader))
    expected = oracle.read_cells(read, [payload or b"" for payload in payloads])
    bad = [row for row, cell in enumerate(expected) if cell is oracle.RefusedError and payloads[row] is not None]
    cells = [None if cell is oracle.RefusedError or payloads[at] is None else cell for at, cell in enumerate(expected)]
    for offset in offsets:
        decoded = decoder.decode(oracle.laid_out(payloads, offset))
        decoded.values.validate(full=True)
        assert (oracle.cells(decoded.values), list(decoded.reasons)) == (cells, bad), (schema, reader, wanted, offset)
    times = math.ceil(MANY_ROWS / len(payloads))
    many = decoder.decode(oracle.laid_out(payloads * times, offsets[0]))
    assert len(many.reasons) == len(bad) * times, (schema, reader, wanted)
    if not many.values.equals(pa.concat_arrays([decoded.values] * times)):
        # A NaN is not equal to itself.
        assert oracle.cells(many.values) == cells * times, (schema, reader, wanted)
    one = decoder.decode(oracle.laid_out(payloads[:1], offsets[-1]))
    assert oracle.cells(one.values) == cells[:1]
    return True


def test_each_wanted_type_with_each_schema_type():
    count = taken = 0
    for shape, schema in schemas():
        own = tuple(one for one in shape if one != "nullable")
        payloads = samples(schema)
        for type_shape in shapes(TYPE_SHAPES):
            # Every leaf of another shape is refused for the same reason.
            for type_ in TYPES if type_shape == own else TYPES[:3]:
                wanted = shaped(TYPE_SHAPES, type_shape, type_)
                taken += expect_as_the_oracle(schema, schema, wanted, payloads, [count % 16])
                count += 1
        assert arrow_type_of(json.dumps(schema)) == oracle.spark_type(schema)
    assert (count, taken) == (24_168, 596)


def test_each_schema_type_at_each_offset_of_a_buffer():
    count = 0
    for _, schema in schemas():
        count += 16 * expect_as_the_oracle(schema, schema, oracle.spark_type(schema), samples(schema, 3), range(16))
    assert count == 7_296


def test_each_leaf_read_by_each_leaf():
    count = taken = 0
    for writer, reader in itertools.product(oracle.LEAVES, repeat=2):
        for written, read in ((writer, reader), (["null", writer], reader), (writer, ["null", reader])):
            if "null" in (written, read) or written == ["null", "null"] or read == ["null", "null"]:
                continue
            taken += expect_as_the_oracle(written, read, oracle.spark_type(read), samples(written))
            count += 1
    assert (count, taken) == (1_452, 279)


def record(name, *types):
    return {"type": "record", "name": name, "fields": [{"name": f"f{at}", "type": one} for at, one in enumerate(types)]}


# A union of one field may be directly in a union, once the record around it is skipped: see `avro.steps`.
BRANCHES = [
    "null",
    "int",
    "string",
    record("Empty"),
    record("One", ["null", "string"]),
    {"type": "array", "items": ["int", "null"]},
]


# All sequences of one to four branches.
UNIONS = [list(union) for size in range(1, 5) for union in itertools.permutations(BRANCHES, size)]


@pytest.mark.parametrize("size", [0, 1, 2, 3])
def test_each_union_in_each_place_wanted_and_skipped(size):
    count = 0
    for number, union in enumerate(UNIONS):
        rng = Random(json.dumps(union))
        values = [
            oracle.number(at) + oracle.random_value(rng, branch) for at, branch in enumerate(union) for _ in range(2)
        ]
        # Of three, only the place with a field on each side: the others are those of two.
        for place in [1] if size == 3 else range(max(size, 1)):
            schema = union
            payloads = values
            if size:
                types = ["int"] * size
                types[place] = union
                schema = record("R", *types)
                payloads = [b"\2" * place + value + b"\4" * (size - place - 1) for value in values]
            whole = oracle.spark_type(schema)
            assert expect_as_the_oracle(schema, schema, whole, payloads, [count % 16])
            count += 1
            # The same record as a branch of a union in another record, before a field that shows where it ends.
            outer = record("Outer", ["null", schema] if size else union, "int")
            payloads = [b"\2" * bool(size) + payload + b"\6" for payload in payloads]
            fields = [*oracle.spark_type(outer)]
            parts = [fields[1:], fields]
            if size and len(union) < 4:
                parts += [
                    [pa.field("f0", pa.struct(rest)), fields[1]] for rest in ([], [*whole][:place], [whole[place]])
                ]
            for part in parts:
                assert expect_as_the_oracle(outer, outer, pa.struct(part), payloads, [(count + number) % 16])
                count += 1
    assert (len(UNIONS), count) == (516, [1548, 2016, 4032, 2016][size])


def writable_types(leaf):
    """Return the Arrow types from which a leaf can be written."""
    own = oracle.spark_type(leaf)
    narrower = {
        pa.int32(): [pa.int8(), pa.int16()],
        pa.int64(): [pa.int8(), pa.int16(), pa.int32()],
        pa.float64(): [pa.int32(), pa.float32()],
    }
    decimals = [pa.decimal128(9, 2), pa.decimal128(10, 4), pa.decimal128(38, 0), pa.decimal128(5, 0)]
    if pa.types.is_decimal(own):
        return [
            one for one in decimals if one.scale <= own.scale and one.precision + own.scale - one.scale <= own.precision
        ]
    return [own, *narrower.get(own, [])]


def test_each_type_is_written_as_each_leaf_or_refused():
    types = [*TYPES, pa.int16(), pa.decimal128(5, 0)]
    taken = 0
    for leaf, type_ in itertools.product(oracle.LEAVES, types):
        if type_ in writable_types(leaf):
            avro_encoder(type_, json.dumps(["null", leaf] if leaf != "null" else leaf))(pa.nulls(3, type_))
            taken += 1
        else:
            with pytest.raises(OptionError):
                avro_encoder(type_, json.dumps(leaf))(pa.nulls(0, type_))
    assert (len(oracle.LEAVES) * len(types), taken) == (437, 41)


def test_each_schema_type_is_written_from_sliced_null_ridden_and_empty_arrays():
    count = 0
    for _, schema in schemas():
        type_ = oracle.spark_type(schema)
        if pa.types.is_null(type_):
            continue
        parsed, definition = oracle.tagged(schema), json.dumps(schema)
        values = avro_decoder(definition, type_).decode(oracle.laid_out(samples(schema, 9))).values
        rows = oracle.cells(values)
        for first, last in itertools.combinations(range(0, len(values) + 1, 2), 2):
            for array in (values.slice(first, last - first), values.slice(first, 0)):
                encoded = avro_encoder(array.type, definition)(array)
                encoded.validate(full=True)
                read = [
                    None if one is None else oracle.read_with_fastavro(schema, parsed, one)
                    for one in encoded.to_pylist()
                ]
                # A NULL row has no value in any schema.
                assert read == rows[first : first + len(array)], (schema, first, last)
                count += 1
    assert count == 19_110


def test_an_unwritable_row_leaves_the_next_thousand_writable():
    schema = json.dumps(record("R", "int", {"type": "array", "items": "string"}))
    type_ = arrow_type_of(schema)
    good = pa.array([{"f0": at, "f1": ["a" * at]} for at in range(1000)], type_)
    bad = pa.array([{"f0": 1, "f1": ["x" * 5000, None]}], type_)
    expected = avro_encoder(good.type, schema)(good)
    for array in (pa.concat_arrays([bad, good]), pa.concat_arrays([good, bad])):
        with pytest.raises(UnwritableRowError, match=r"value\.f1\[\] is NULL in a row"):
            avro_encoder(array.type, schema)(array)
        assert avro_encoder(array.type, schema)(array.slice(int(array[0] == bad[0]), 1000)) == expected
