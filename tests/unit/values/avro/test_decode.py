from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from datetime import date, datetime, timezone

import fastavro
import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnsupportedFeatureError
from spark_mq_source.core.varint import encode_varint
from spark_mq_source.values.avro import resolution
from spark_mq_source.values.avro.decode import arrow_type_of, avro_decoder
from spark_mq_source.values.avro.encode import avro_encoder

pytest.importorskip("spark_mq_source.values.avro._decode_native", exc_type=ImportError)

TIME = pa.timestamp("us", "UTC")
INT_IN_RECORD = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}


def record(**fields):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def enum(*symbols, **more):
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


def fixed(size, **more):
    return {"type": "fixed", "name": "X", "size": size, **more}


def write(schema, value):
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(schema), value)
    return out.getvalue()


def number(value):
    return encode_varint(value << 1 if value >= 0 else ~(value << 1))


@pytest.fixture
def decode():
    def decode(schema, *payloads, wanted=None, reader=None):
        read = schema if reader is None else reader
        wanted = arrow_type_of(json.dumps(read)) if wanted is None else wanted
        decoder = avro_decoder(json.dumps(schema), wanted, reader and json.dumps(reader))
        decoded = decoder.decode(pa.array(payloads, pa.binary()))
        assert decoder.type == wanted
        assert decoded.values.type == wanted
        decoded.values.validate(full=True)
        # A decoder keeps no state of earlier payloads.
        assert decoder.decode(pa.array(payloads, pa.binary())) == decoded
        return decoded

    return decode


@pytest.fixture
def values_of(decode):
    def values_of(schema, *payloads, wanted=None, reader=None):
        decoded = decode(schema, *payloads, wanted=wanted, reader=reader)
        assert not decoded.reasons
        return decoded.values.to_pylist()

    return values_of


# -- types


def test_a_union_of_null_alone_is_a_column_of_null():
    # In `from_avro` it is a struct without fields, which is always NULL.
    assert arrow_type_of(json.dumps(["null"])) == pa.null()


@pytest.mark.parametrize(
    ("definition", "sentence"),
    [
        ("{", "it is not JSON"),
        ('{"type": "array"}', r"the schema\[\] has no type"),
        (json.dumps(record(a=["null", "R"])), "R contains itself"),
        (json.dumps(record(a=logical("bytes", "decimal", precision=39))), "value.a is a decimal of 39 digits"),
        ("[" + '{"type": "array", "items": ' * 70 + '"int"' + "}" * 70 + "]", "more than 64 types deep"),
        ('["null", ["int", "string"]]', "the schema is a union directly within a union"),
        (json.dumps(record(a=["null", {"type": ["int"]}])), r"the schema\.a is a union directly within a union"),
        (json.dumps(enum("A", 5, "B")), "the schema is an enum with a symbol that is not a text"),
        (json.dumps(enum("A", "\ud800")), "the schema is an enum with a symbol that is not a text"),
    ],
)
def test_a_definition_that_cannot_be_columns_is_refused(definition, sentence):
    with pytest.raises(OptionError, match=sentence):
        arrow_type_of(definition)


def test_a_definition_that_grows_without_bound_is_refused():
    fields = [{"name": "f0", "type": {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "int"}]}}]
    for n in range(1, 30):
        two = [{"name": name, "type": f"R{n - 1}"} for name in "ab"]
        fields.append({"name": f"f{n}", "type": {"type": "record", "name": f"R{n}", "fields": two}})
    with pytest.raises(OptionError, match="more than 20000 types"):
        arrow_type_of(json.dumps({"type": "record", "name": "R", "fields": fields}))


def test_names_are_found_in_their_namespace():
    inner = {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}
    fields = [{"name": "a", "type": inner}, {"name": "b", "type": "s.I"}, {"name": "c", "type": "I"}]
    schema = {"type": "record", "name": "R", "namespace": "s", "fields": fields}
    x = pa.struct([("x", pa.int32())])
    assert arrow_type_of(json.dumps(schema)) == pa.struct([("a", x), ("b", x), ("c", x)])


# -- values


INTS = {"type": "array", "items": "int"}


def test_bytes_after_a_value_are_ignored(values_of):
    assert values_of("int", b"\x02\xff\xff") == [1]


# -- bad payloads


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("int", b"", "the payload ends within it"),
        ("int", b"\x80", "the payload ends within it"),
        ("int", b"\x80" * 11, "a number does not end"),
        ("int", number(2**31), "an int needs more than 32 bits"),
        ("int", number(-(2**31) - 1), "an int needs more than 32 bits"),
        ("boolean", b"\2", "a boolean is neither 0 nor 1"),
        ("string", number(2) + b"a\xff", "the text is not UTF-8"),
        ("string", number(3) + b"\xed\xa0\x80", "the text is not UTF-8"),
        ("string", number(-1), "a length is negative"),
        ("bytes", number(2**62), "the payload ends within it"),
        ("bytes", number(-(2**63)), "a length is negative"),
        ("double", bytes(7), "the payload ends within it"),
        ("float", bytes(3), "the payload ends within it"),
        (fixed(3), bytes(2), "the payload ends within it"),
        (enum("A"), number(1), "the enum has no such symbol"),
        (enum("A"), number(-1), "the enum has no such symbol"),
        (["null", "int"], number(2), "the union has no such branch"),
        (["null", "int"], number(-1), "the union has no such branch"),
        (logical("long", "timestamp-millis"), number(2**60), "the time does not fit 64 bits in microseconds"),
        (logical("bytes", "decimal", precision=3), number(2) + b"\x03\xe8", "the decimal does not fit its precision"),
        (logical("bytes", "decimal", precision=3), number(0), "the decimal does not fit its precision"),
        (logical("bytes", "decimal", precision=3), number(20) + b"\1" + bytes(19), "the decimal does not fit its"),
        (logical("bytes", "decimal", precision=3), number(17) + b"\0\xff" + bytes(15), "the decimal does not fit its"),
        (record(a="int", b=record(c="string")["fields"][0]["type"]), b"\2\4a", "field b: the payload ends within it"),
        (
            {"type": "array", "items": record(b="string")},
            number(2) + b"\2a\2\xff\0",
            "field [1].b: the text is not UTF-8",
        ),
        ({"type": "map", "values": "boolean"}, number(1) + b"\2a\3\0", "field {}: a boolean is neither 0 nor 1"),
        ({"type": "map", "values": "int"}, number(1) + b"\2\xff\2\0", "field {}: the text is not UTF-8"),
        (INTS, number(2**40), "an array or a map has more items than bytes"),
        (INTS, number(-(2**63)) + b"\2\2\2", "an array or a map has more items than bytes"),
        (INTS, number(-1) + number(-1), "a length is negative"),
        ({"type": "array", "items": "null"}, number(2**60) + b"\0", "an array or a map has more items than bytes"),
        ({"type": "array", "items": "null"}, (number(1000) + b"") * 2 + b"\0", "an array or a map has more items than"),
        ({"type": "array", "items": record()}, number(-(2**62)) + b"\0\0", "an array or a map has more items than"),
    ],
)
def test_a_bad_payload_has_a_reason_and_leaves_no_state(decode, schema, payload, reason):
    good = {"type": "record", "name": "G", "fields": [{"name": "g", "type": "string"}, {"name": "bad", "type": schema}]}
    head = b"\2g"
    decoded = decode(schema, payload)
    assert decoded.values.to_pylist() == [None]
    (told,) = decoded.reasons.values()
    assert told.startswith(reason)
    decoded = decode(good, None, head + payload, None)
    assert decoded.values.to_pylist() == [None] * 3
    assert list(decoded.reasons) == [1]
    assert "bad" in decoded.reasons[1]


def test_nulls_in_arrays_are_bounded_for_a_payload_and_not_for_a_batch(decode):
    schema = {"type": "array", "items": "null"}
    decoded = decode(schema, *[number(1000) + b"\0"] * 3)
    assert [len(value) for value in decoded.values.to_pylist()] == [1000] * 3
    wanted = pa.struct([("b", pa.int32())])
    payloads = number(1000) + b"\0\2", number(2**60) + b"\0\2"
    decoded = decode(record(a=schema, b="int"), *payloads, wanted=wanted)
    assert decoded.values.to_pylist() == [{"b": 1}, None]


# -- resolution


@pytest.mark.parametrize(
    ("writer", "value", "reader", "expected"),
    [
        ("long", 2**54 + 2**30 + 1, "float", 2.0**54 + 2.0**31),
        ("int", 7, logical("int", "date"), date(1970, 1, 8)),
        (
            [INT_IN_RECORD, enum("A")],
            {"x": 1},
            [enum("A"), {**INT_IN_RECORD, "name": "Other"}],
            {"member0": None, "member1": {"x": 1}},
        ),
        (INT_IN_RECORD, {"x": 1}, {**INT_IN_RECORD, "name": "Other"}, {"x": 1}),
        *(
            (INT_IN_RECORD, {"x": 1}, [{**INT_IN_RECORD, "name": name} for name in names], {"member0": x, "member1": y})
            for names, x, y in (
                (["Other", "n.I"], None, {"x": 1}),
                (["n.I", "m.I"], None, {"x": 1}),
                (["Other", "More"], {"x": 1}, None),
            )
        ),
    ],
)
def test_a_value_is_resolved_to_the_readers_schema(values_of, writer, value, reader, expected):
    assert values_of(writer, write(writer, value), reader=reader) == [expected]


def with_default(kind, default):
    return {"type": "record", "name": "R", "fields": [{"name": "d", "type": kind, "default": default}]}


@pytest.mark.parametrize(
    ("kind", "default", "expected"),
    [
        ("null", None, None),
        ("boolean", True, True),
        ("int", -3, -3),
        ("long", 2**62, 2**62),
        ("float", 1, 1.0),
        ("double", "-Infinity", float("-inf")),
        ("string", "ü", "ü"),
        ("bytes", "\u00ff", b"\xff"),
        (fixed(2), "\u00ffa", b"\xffa"),
        (enum("A", "B"), "B", "B"),
        (INTS, [1, 2], [1, 2]),
        (INTS, [], []),
        ({"type": "map", "values": "int"}, {"a": 1}, [("a", 1)]),
        (["null", "int"], None, None),
        (["int", "null"], 5, 5),
        (["null", "int"], 5, 5),
        (["int", "string"], "a", {"member0": None, "member1": "a"}),
        (INT_IN_RECORD, {"x": 5}, {"x": 5}),
        (with_default("int", 7), {}, {"d": 7}),
        (logical("long", "timestamp-millis"), 7, datetime(1970, 1, 1, 0, 0, 0, 7000, timezone.utc)),
    ],
)
def test_missing_fields_have_the_readers_default(values_of, kind, default, expected):
    kind = {**kind, "name": "Inner"} if isinstance(kind, dict) and "name" in kind else kind
    reader = with_default(kind, default)
    reader["fields"].append({"name": "a", "type": "int"})
    assert values_of(record(a="int"), b"\2", reader=reader) == [{"d": expected, "a": 1}]


def test_items_of_a_default_are_not_counted_as_those_of_the_payload(values_of):
    nulls = {"type": "array", "items": "null"}
    reader = with_default(nulls, [None] * 1500)
    reader["fields"].append({"name": "a", "type": nulls})
    (value,) = values_of(record(a=nulls), number(1024) + b"\0", reader=reader)
    assert (len(value["d"]), len(value["a"])) == (1500, 1024)


def nested_unions(depth, name):
    schema = "int"
    for level in range(depth):
        fields = [{"name": "x", "type": ["null", schema]}]
        schema = {"type": "record", "name": f"{name}{level}", "fields": fields}
    return schema


def test_nested_unions_are_resolved_in_less_than_exponential_time(values_of, monkeypatch):
    reads = []
    read = resolution._read
    monkeypatch.setattr(resolution, "_read", lambda *types: reads.append(0) or read(*types))
    (value,) = values_of(nested_unions(30, "W"), b"\2" * 30 + b"\2", reader=nested_unions(30, "R"))
    assert str(value) == "{'x': " * 30 + "1" + "}" * 30
    assert len(reads) == 1_890


def test_an_alias_decides_between_two_records_of_a_union(decode):
    reader = [INT_IN_RECORD, {**INT_IN_RECORD, "name": "J", "aliases": ["I"]}]
    assert decode(INT_IN_RECORD, b"\2", reader=reader).values.to_pylist() == [{"member0": None, "member1": {"x": 1}}]
    reader = json.dumps([*reader, {**INT_IN_RECORD, "name": "K", "aliases": ["I"]}])
    with pytest.raises(OptionError, match="several branches of the reader's union have the alias I"):
        avro_decoder(json.dumps(INT_IN_RECORD), arrow_type_of(reader), reader)


def with_aliases(fields):
    """Return a record of strings: ``name:alias,alias=default`` for each field."""
    made = []
    for field in fields.split():
        name, is_default, default = field.partition("=")
        name, _, aliases = name.partition(":")
        more = {"default": default} if is_default else {}
        made.append({"name": name, "type": "string", "aliases": aliases.split(",") if aliases else [], **more})
    return {"type": "record", "name": "R", "fields": made}


# Java's library 1.12.1 reads each of these values as well, except for the last one, which it refuses.
@pytest.mark.parametrize(
    ("writer", "reader", "expected"),
    [
        ("name", "full_name:name name=none", {"full_name": "vname", "name": "none"}),
        ("name", "name=none full_name:name", {"name": "none", "full_name": "vname"}),
        ("a b", "a:b=da b:a=db", {"a": "va", "b": "vb"}),
        ("a", "a:a", {"a": "va"}),
        ("old", "x:older,old,old", {"x": "vold"}),
        ("b a", "x:a y:b", {"x": "va", "y": "vb"}),
        ("new old", "new:old old=d", {"new": "vnew", "old": "vold"}),
    ],
)
def test_aliases_are_those_of_javas_library(values_of, writer, reader, expected):
    value = write(with_aliases(writer), {name: f"v{name}" for name in writer.split()})
    assert values_of(with_aliases(writer), value, reader=with_aliases(reader)) == [expected]
    for name, one in expected.items():
        wanted = pa.struct([(name, pa.string())])
        assert values_of(with_aliases(writer), value, reader=with_aliases(reader), wanted=wanted) == [{name: one}]


@pytest.mark.parametrize(
    ("writer", "reader", "sentence"),
    [
        ("a", "x:a=d y:a=d", "several fields have the alias a: x, y"),
        ("a b", "x:a,b=d", "the aliases of x name several fields of the writer's schema: a, b"),
        ("a", "x:a a", "a was not written and has no default"),
    ],
)
def test_ambiguous_aliases_are_refused(writer, reader, sentence):
    reader = json.dumps(with_aliases(reader))
    with pytest.raises(OptionError, match=sentence):
        avro_decoder(json.dumps(with_aliases(writer)), arrow_type_of(reader), reader)


def test_only_values_with_a_branch_that_the_reader_lacks_are_bad(decode):
    decoded = decode(["int", "string"], b"\0\2", b"\2\2a", reader="long")
    assert decoded.values.to_pylist() == [1, None]
    assert decoded.reasons == {1: "string cannot be read as long"}


def test_a_symbol_that_the_reader_lacks_is_named(decode):
    decoded = decode(record(e=enum("A", "B")), b"\0", b"\2", reader=record(e=enum("A")))
    assert decoded.values.to_pylist() == [{"e": "A"}, None]
    assert decoded.reasons == {1: "field e: the symbol B is not in the reader's schema, which has no default for it"}


@pytest.mark.parametrize(
    ("writer", "reader", "sentence"),
    [
        ("string", "int", "string cannot be read as int"),
        ("long", "int", "long cannot be read as int"),
        (record(a=record(b="double")), record(a=record(b="float")), r"field a\.b: double cannot be read as float"),
        (record(), record(a="int"), "a was not written and has no default"),
        (record(), with_default("int", "x"), "d was not written and its default is not a value of int"),
        (record(), with_default("boolean", 1), "d was not written and its default is not a value of boolean"),
        (record(), with_default("int", True), "d was not written and its default is not a value of int"),
        (fixed(3), fixed(4), "a fixed of 3 bytes cannot be read as one of 4"),
        ("int", ["null", "string"], "int is not a branch of the reader's union"),
        (["int", "null"], "string", "int cannot be read as string"),
        (
            logical("bytes", "decimal", precision=4, scale=1),
            logical("bytes", "decimal", precision=4, scale=2),
            "a decimal of scale 1 cannot be read as one of scale 2",
        ),
        (
            logical("long", "timestamp-nanos"),
            logical("long", "timestamp-micros"),
            "nanos cannot be read as timestamp-micros",
        ),
    ],
)
def test_schemas_that_cannot_be_resolved_are_refused(writer, reader, sentence):
    with pytest.raises(OptionError, match=sentence):
        avro_decoder(json.dumps(writer), arrow_type_of(json.dumps(reader)), json.dumps(reader))


def test_unwanted_fields_need_no_resolution(values_of):
    writer, reader = record(a="int", b="string"), record(a="int", b="int", c="int")
    assert values_of(writer, b"\2\2x", wanted=pa.struct([("a", pa.int32())]), reader=reader) == [{"a": 1}]


# -- projection

WIDE = record(
    a="int",
    b={"type": "array", "items": INT_IN_RECORD},
    d=["null", "int", "string"],
    f=logical("bytes", "decimal", precision=5, scale=2),
)


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        (pa.struct([("x", pa.int32())]), r"value\.x is not in the schema \(it has a, b, d, f\)"),
        (pa.struct([("a", pa.string())]), r"value\.a cannot be string: the schema has int32 there"),
        (pa.struct([("a", pa.int32()), ("A", pa.int32())]), r"value\.A is requested twice"),
        (pa.struct([("f", pa.decimal128(5, 3))]), r"value\.f cannot be decimal128\(5, 3\)"),
        (pa.struct([("b", pa.list_(pa.struct([("w", pa.string())])))]), r"value\.b\[\]\.w is not in the schema"),
        (pa.struct([("d", pa.struct([("member2", pa.int32())]))]), r"value\.d\.member2 is not in the schema"),
        (pa.int32(), "value cannot be int32"),
    ],
)
def test_fields_that_the_schema_lacks_are_refused(wanted, sentence):
    with pytest.raises(OptionError, match=sentence):
        avro_decoder(json.dumps(WIDE), wanted)


def test_names_that_differ_only_in_case_are_matched_exactly(values_of):
    schema = record(ab="int", AB="string")
    assert values_of(schema, b"\2\2x", wanted=pa.struct([("AB", pa.string())])) == [{"AB": "x"}]
    with pytest.raises(OptionError, match=r"value\.Ab is in the schema in several cases"):
        avro_decoder(json.dumps(schema), pa.struct([("Ab", pa.int32())]))


DEEP = "int"
for _ in range(20):
    DEEP = {"type": "array", "items": DEEP}
NULLS = {"type": "array", "items": "null"}
TEXTS = {"type": "map", "values": "string"}


@pytest.mark.parametrize(
    ("schema", "unit", "end"),
    [
        (INTS, number(1) + b"\0", b"\0"),
        (INTS, number(1) + b"\0", b"\xff"),
        (INTS, number(-1) + number(0) + b"\0", b"\0"),
        (INTS, number(-1) + number(1) + b"\0", b""),
        ({"type": "array", "items": NULLS}, number(1) + number(0), b"\0"),
        ({"type": "array", "items": NULLS}, number(-2) + number(2) + number(0) * 2, b"\0"),
        (NULLS, number(-1) + number(0), b"\0"),
        ({"type": "array", "items": record(a=NULLS, b="null")}, number(1) + number(1) + number(0), b"\0"),
        (TEXTS, number(2) + b"\0\0" * 2, b"\0"),
        (TEXTS, number(1) + b"\2a\2\xff", b"\0"),
        (DEEP, number(1) * 19 + number(0) * 19, b"\0"),
        ({"type": "array", "items": ["null", INTS]}, number(1) + number(1) + number(0), b"\7"),
    ],
)
@pytest.mark.parametrize("is_wanted", [True, False])
def test_the_work_is_linear_in_the_payloads_length(schema, unit, end, is_wanted):
    schema = record(a=schema, n="int")
    wanted = arrow_type_of(json.dumps(schema)) if is_wanted else pa.struct([("n", pa.int32())])
    for size in (10_000, 1_000_000):
        decoder = avro_decoder(json.dumps(schema), wanted)
        payload = unit * (size // len(unit)) + end
        decoded = decoder.decode(pa.array([payload], pa.binary()))
        # A block and its item have a byte each, except for empty items.
        assert decoder.items <= 2 * len(payload) + 1024
        # Either all of it was read, or the fault was found at its place.
        assert len(decoded.reasons) == decoded.values.null_count


def test_without_the_compiled_loop_a_typed_column_is_an_error(monkeypatch):
    monkeypatch.setenv("SPARK_MQ_SOURCE_IMPL", "python")
    sentence = (
        "typed columns of Avro need the compiled module spark_mq_source.values.{}, which cannot be loaded "
        "(SPARK_MQ_SOURCE_IMPL=python excludes it): install a wheel of spark-mq-source for this Python and platform, "
        "or reinstall with a C compiler, or {}"
    )
    with pytest.raises(UnsupportedFeatureError) as raised:
        avro_decoder('"int"', pa.int32())
    instead = "read them as binary and decode them with Spark's from_avro"
    assert str(raised.value) == sentence.format("avro._decode_native", instead)
    with pytest.raises(UnsupportedFeatureError) as raised:
        avro_encoder(pa.int32(), '"int"')(pa.array([1], pa.int32()))
    instead = "encode them with Spark's to_avro and write binary"
    assert str(raised.value) == sentence.format("avro._encode_native", instead)
    # Errors of the schema or the type take precedence.
    with pytest.raises(OptionError, match="value cannot be string"):
        avro_decoder('"int"', pa.string())


WITHOUT_COMPILED_MODULES = """
import sys

class Hide:
    def find_spec(self, name, *_):
        if name.startswith("spark_mq_source.") and name.endswith("_native"):
            raise ImportError(f"{name} is hidden")

sys.meta_path.insert(0, Hide())
import pyarrow as pa
from spark_mq_source.values.encodings import Encoding, decoder_for
from spark_mq_source.values.rows import *
import spark_mq_source.pulsar.format, spark_mq_source.tubemq.format, spark_mq_source.nsq.format

def decode(encoding, type_, payload):
    return decoder_for(encoding, type_, None).decode(pa.array([payload], pa.binary())).values.to_pylist()

print(decode(Encoding("json", "a int"), pa.struct([("a", pa.int32())]), b'{"a": 5}'))
print(decode(Encoding("int16"), pa.int16(), bytes([0, 5])))
try:
    decode(Encoding("avro", '"int"'), pa.int32(), bytes([2]))
except Exception as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("chosen", ["", "python"])
def test_without_compiled_modules_all_except_typed_avro_works(chosen):
    environment = os.environ | {"SPARK_MQ_SOURCE_IMPL": chosen}
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_COMPILED_MODULES]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("[{'a': 5}]\n[5]\nUnsupportedFeatureError\n", "")
