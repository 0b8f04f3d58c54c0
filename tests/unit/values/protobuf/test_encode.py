import decimal
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.protobuf.encode import protobuf_encoder
from spark_mq_source.values.protobuf.write_steps import _READS, WriteStep
from spark_mq_source.values.steps import check_write_step
from tests.oracles.protobuf import schema

_encode_native = pytest.importorskip("spark_mq_source.values.protobuf._encode_native", exc_type=ImportError)

COLUMNS = {
    "int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32(), "int64": pa.int64(), "float": pa.float32(),
    "double": pa.float64(), "decimal": pa.decimal128(20, 0), "bool": pa.bool_(), "string": pa.string(),
    "binary": pa.binary(), "timestamp": pa.timestamp("us", "UTC"), "duration": pa.duration("us"),
    "struct": pa.struct([]),
}  # fmt: skip
BRANCHES = {
    "BYTE": ["int8"], "SHORT": ["int16"], "INT": ["int32", "float"],
    "LONG": ["int64", "double"], "WIDE": ["int64"], "DECIMAL": ["decimal"],
    "BOOLEAN": ["bool"], "FLOAT": ["float"], "SIZED": ["string", "binary"],
    "NAME": ["string"], "CHECKED": ["int32"], "TIMESTAMP": ["timestamp"],
    "DURATION": ["duration"], "MESSAGE": ["struct"], "GROUP": ["struct"],
    "LIST": [], "PACKED": [], "MAP": [],
}  # fmt: skip


@pytest.fixture
def encode():
    """Return a function from rows of columns of these types to their bytes; a row may be NULL."""

    def encode(schema, columns, *rows):
        array = pa.array(rows, pa.struct(list(columns.items())))
        encoded = protobuf_encoder(array.type, schema.descriptors, schema.message)(array)
        encoded.validate(full=True)
        assert encoded.type == pa.binary()
        return encoded.to_pylist()

    return encode


def made(schema, **fields):
    """Return the bytes that protobuf's runtime writes."""
    return schema.make(**fields).SerializeToString()


# -- values


def test_fields_are_in_the_order_of_their_numbers_for_any_columns(encode):
    message = schema("M: z int32 5, y int32 70000, x string 1, w int32 16")
    columns = {"y": pa.int32(), "X": pa.string(), "z": pa.int32()}
    assert encode(message, columns, {"y": 1, "X": "a", "z": 2}) == [made(message, x="a", z=2, y=1)]


def test_entries_of_a_map_keep_their_order(encode):
    message = schema("M: f map<string, int32> 1")
    entries = [("z", 1), ("a", 2), ("m", 3)]
    [data] = encode(message, {"f": pa.map_(pa.string(), pa.int32())}, {"f": entries})
    assert [data.index(key.encode()) for key, _ in entries] == sorted(data.index(key.encode()) for key, _ in entries)
    assert dict(message.make.FromString(data).f) == dict(entries)


# -- values that do not fit


@pytest.mark.parametrize(
    ("text", "columns", "row", "problem"),
    [
        (
            "a uint32 1",
            {"a": pa.int64()},
            {"a": 2**32},
            "value.a has a number in a row that does not fit its unsigned field",
        ),
        (
            "a uint32 1",
            {"a": pa.int64()},
            {"a": -1},
            "value.a has a number in a row that does not fit its unsigned field",
        ),
        (
            "a uint64 1",
            {"a": pa.decimal128(20, 0)},
            {"a": decimal.Decimal(2**64)},
            "value.a has a number in a row that does",
        ),
        (
            "a uint64 1",
            {"a": pa.decimal128(20, 0)},
            {"a": decimal.Decimal(-1)},
            "value.a has a number in a row that does not",
        ),
        ("a Color 1", {"a": pa.string()}, {"a": "PINK"}, "value.a has a text in a row that is not a name of its enum"),
        ("a Color 1", {"a": pa.string()}, {"a": ""}, "value.a has a text in a row that is not a name of its enum"),
        (
            "a Color 1",
            {"a": pa.string()},
            {"a": "UNKNOWN_ENUM_VALUE_Color_x"},
            "value.a has a text in a row that is not a name",
        ),
        ("a Color 1", {"a": pa.int32()}, {"a": 4}, "value.a has a number in a row that is not a value of its enum"),
        (
            "required a int32 1",
            {"a": pa.int32()},
            {"a": None},
            "value.a is NULL in a row, which Protobuf cannot",
        ),
        (
            "repeated a int32 1",
            {"a": pa.list_(pa.int32())},
            {"a": [1, None]},
            "value.a[] is NULL in a row, which Protobuf",
        ),
        (
            "repeated a Part 1",
            {"a": pa.list_(pa.struct([("x", pa.int32())]))},
            {"a": [None]},
            "value.a[] is NULL in a row",
        ),
        (
            "a map<int32, string> 1",
            {"a": pa.map_(pa.int32(), pa.string())},
            {"a": [(1, None)]},
            "value.a{} is NULL in a row",
        ),
        (
            "a int32 1 / o, b int32 2 / o",
            {"a": pa.int32(), "b": pa.int32()},
            {"a": 0, "b": 0},
            "value.b and another field of its oneof are both set in a row, but at most one may be",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_named(encode, text, columns, row, problem):
    message = schema(f"M: {text}\nPart: x int32 1", syntax="proto2", enums="Color: RED 0, BLUE 5")
    with pytest.raises(UnwritableRowError) as caught:
        encode(message, columns, dict.fromkeys(columns) if "required" not in text else {"a": 1}, row)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"z": pa.int32()}, "value.z is not a field of p.M (it has a, parts, at, by, c, C, u)"),
        ({"A": pa.string()}, "value.A is string, which cannot be written as int32: cast it"),
        ({"a": pa.int64()}, "value.a is int64, which cannot be written as int32: cast it"),
        ({"u": pa.int16()}, "value.u is int16, which cannot be written as uint32: cast it"),
        (
            {"parts": pa.struct([])},
            "value.parts is struct<>, which cannot be written as a repeated field: it needs an array",
        ),
        (
            {"parts": pa.list_(pa.int32())},
            "value.parts[] is int32, which cannot be written as the message p.Part: cast it",
        ),
        ({"parts": pa.list_(pa.struct([("q", pa.int32())]))}, "value.parts[].q is not a field of p.Part (it has x)"),
        (
            {"at": pa.timestamp("us")},
            "value.at is timestamp[us], which cannot be written as the message google.protobuf.Time",
        ),
        ({"by": pa.list_(pa.int32())}, "value.by is list<item: int32>, which cannot be written as a map"),
        ({"by": pa.map_(pa.int32(), pa.int32())}, "value.by{} is int32, which cannot be written as string: cast it"),
        ({"a": pa.int32(), "A": pa.int32()}, "value.a and value.A are one field"),
    ],
)
def test_columns_that_do_not_fit_are_named(encode, columns, problem):
    message = schema(
        "M: a int32 1, repeated parts Part 2, at Timestamp 3, by map<string, int32> 4, c int32 5, C int32 6, u uint32 7"
        "\nPart: x int32 1"
    )
    with pytest.raises(OptionError) as caught:
        encode(message, columns)
    assert str(caught.value).startswith(f"the columns do not fit the protobuf message p.M: {problem}")


def test_all_problems_are_in_one_sentence(encode):
    message = schema("M: required a int32 1, m Part 2\nPart: required x int32 1, required y int32 2", syntax="proto2")
    with pytest.raises(OptionError) as caught:
        encode(message, {"m": pa.struct([("x", pa.string())]), "q": pa.int32()})
    assert str(caught.value) == (
        "the columns do not fit the protobuf message p.M: value.m.x is string, which cannot be written as int32: cast "
        "it; value.m.y is missing, which is required; value.q is not a field of p.M (it has a, m); value.a is missing, "
        "which is required"
    )


def test_only_a_struct_can_be_a_message():
    with pytest.raises(OptionError, match="column value is int32: a protobuf message is written of a struct"):
        protobuf_encoder(pa.int32(), schema("M:").descriptors, "M")(pa.array([1], pa.int32()))


# -- steps


@pytest.mark.parametrize("code", BRANCHES)
def test_only_steps_with_a_branch_in_the_loop_are_planned(code):
    """The codes are those of a column as a field, in an array, and as a packed array."""
    value = WriteStep(code, column=0)
    parts = tuple(WriteStep("LONG") for _ in range(2))
    step = replace(value, steps=parts if code in ("TIMESTAMP", "DURATION") else ())
    found = {"field": [], "element": [], "packed": []}
    errors = []
    for name, type_ in COLUMNS.items():
        for place, outer, column in (
            ("field", WriteStep("MESSAGE", steps=(step,)), pa.struct([("f", type_)])),
            ("element", WriteStep("LIST", steps=(step,)), pa.list_(type_)),
            ("packed", WriteStep("PACKED", steps=(step,)), pa.list_(type_)),
        ):
            try:
                check_write_step(outer, column, _READS)
                found[place].append(name)
            except AssertionError as error:
                errors.append(str(error))
    assert found == dict.fromkeys(found, BRANCHES[code])
    assert all(error.startswith("write step ") for error in errors)


def test_a_time_needs_steps_for_its_parts():
    step = WriteStep("MESSAGE", steps=(WriteStep("TIMESTAMP", column=0),))
    with pytest.raises(TypeError, match="needs steps for seconds and nanoseconds"):
        _encode_native.ProtobufEncoder(step, pa.array([{"f": 1}]))


@pytest.mark.parametrize("part", ["code", "form"])
def test_the_loop_refuses_a_step_without_a_branch(part):
    step = replace(WriteStep("MESSAGE", steps=(WriteStep("INT", column=0),)), **{part: "NONE"})
    with pytest.raises(KeyError, match="NONE"):
        _encode_native.ProtobufEncoder(step, pa.array([{"f": 1}]))
