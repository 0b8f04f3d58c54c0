from __future__ import annotations

import json
from dataclasses import replace

import pyarrow as pa
import pytest

from spark_mq_source.values.avro.decode import avro_decoder
from spark_mq_source.values.avro.resolution import resolve
from spark_mq_source.values.avro.schema import parse_avro
from spark_mq_source.values.avro.steps import Step, check_step
from spark_mq_source.values.avro.write_steps import _READS, WriteStep, plan_writing
from spark_mq_source.values.steps import check_write_step, codes_of

native = pytest.importorskip("spark_mq_source.values.avro._decode_native", exc_type=ImportError)
encode_native = pytest.importorskip("spark_mq_source.values.avro._encode_native", exc_type=ImportError)

INT = Step("INT")
SKIP = Step("SKIP_VARINTS", size=1)
ONE = pa.struct([("a", pa.int32())])
# One step of each code, the type of the array that it fills, and bytes that it reads.
STEPS = [
    (Step("NULL"), pa.null(), b""),
    (Step("BOOLEAN"), pa.bool_(), b"\1"),
    (INT, pa.int32(), b"\2"),
    (Step("LONG"), pa.int64(), b"\2"),
    (Step("MILLIS"), pa.timestamp("us"), b"\2"),
    (Step("INT_TO_FLOAT"), pa.float32(), b"\2"),
    (Step("INT_TO_DOUBLE"), pa.float64(), b"\2"),
    (Step("FLOAT"), pa.float32(), bytes(4)),
    (Step("FLOAT_TO_DOUBLE"), pa.float64(), bytes(4)),
    (Step("DOUBLE"), pa.float64(), bytes(8)),
    (Step("TEXT"), pa.string(), b"\2a"),
    (Step("BINARY"), pa.binary(), b"\2a"),
    (Step("FIXED", size=1), pa.binary(), b"a"),
    (Step("DECIMAL", size=1, precision=3), pa.decimal128(3), b"\1"),
    (Step("ENUM", symbols=(b"A",), written=("A",)), pa.string(), b"\0"),
    (Step("RECORD", steps=(replace(INT, slot=0),)), ONE, b"\2"),
    (Step("ARRAY", steps=(INT,)), pa.list_(pa.int32()), b"\2\2\0"),
    (Step("MAP", steps=(INT,)), pa.map_(pa.string(), pa.int32()), b"\2\2a\2\0"),
    (Step("UNION", steps=(INT,)), pa.int32(), b"\0\2"),
    (Step("MEMBER", steps=(SKIP,)), ONE, b"\2"),
    (Step("DEFAULT", steps=(INT,), data=b"\2"), pa.int32(), b""),
    (Step("FAIL", text="no"), pa.int32(), b""),
    *(
        (Step("RECORD", steps=(one,)), pa.struct([]), data)
        for one, data in (
            (Step("SEQUENCE", steps=(SKIP,)), b"\2"),
            (Step("SKIP_BYTES", size=1), b"a"),
            (SKIP, b"\2"),
            (Step("SKIP_SIZED", size=1), b"\2a"),
            (Step("SKIP_BLOCKS", steps=(SKIP,)), b"\2\2\0"),
        )
    ),
]


def test_each_step_has_a_branch_in_the_compiled_loop_that_reads_all_its_bytes():
    ran = []
    for step, type_, data in STEPS:
        check_step(step, type_)
        decoded = native.AvroDecoder(step, type_).decode(pa.array([data, data[:-1]], pa.binary()))
        decoded.values.validate(full=True)
        assert list(decoded.reasons) == ([0, 1] if step.code == "FAIL" else [1] if data else [])
        ran.append(step.steps[0].code if type_ == pa.struct([]) else step.code)
    assert ran == list(codes_of(native.Code))


@pytest.mark.parametrize(
    ("step", "type_"),
    [
        (INT, pa.int64()),
        (INT, pa.binary()),
        (INT, None),
        (SKIP, pa.int32()),
        (replace(SKIP, slot=0), None),
        (replace(INT, steps=(INT,)), pa.int32()),
        (Step("UNION", steps=(Step("UNION", steps=(INT,)),)), pa.int32()),
        (Step("UNION", steps=(Step("UNION", steps=(SKIP,)),)), None),
        (Step("UNION", steps=(INT, SKIP)), pa.int32()),
        (Step("RECORD", steps=(replace(INT, slot=0),) * 2), ONE),
        (Step("RECORD"), ONE),
        (Step("RECORD", steps=(INT,)), pa.struct([])),
        (Step("MEMBER"), ONE),
        (Step("MEMBER", steps=(replace(INT, slot=1),)), ONE),
        (Step("ARRAY"), pa.list_(pa.int32())),
        (Step("ARRAY", steps=(INT, INT)), pa.list_(pa.int32())),
        (Step("MAP", steps=(Step("LONG"),)), pa.map_(pa.string(), pa.int32())),
        (Step("DEFAULT"), pa.int32()),
        (Step("SEQUENCE", steps=(INT,)), None),
    ],
)
def test_a_step_that_would_corrupt_an_array_is_refused(step, type_):
    with pytest.raises(AssertionError, match=r"^step \w+ with steps \(.*\) within cannot fill "):
        check_step(step, type_)


COLUMN = replace(WriteStep("INT"), column=0)


@pytest.mark.parametrize(
    ("step", "type_"),
    [
        (WriteStep("INT"), pa.int64()),
        (WriteStep("INT"), pa.null()),
        (WriteStep("CONSTANT", steps=(COLUMN,)), pa.int32()),
        (WriteStep("CONSTANT"), pa.int32()),
        (WriteStep("RECORD", steps=(replace(COLUMN, column=1),)), ONE),
        (WriteStep("RECORD", steps=(replace(COLUMN, column=-1),)), ONE),
        (WriteStep("ARRAY"), pa.list_(pa.int32())),
        (WriteStep("MAP", steps=(COLUMN,)), pa.map_(pa.string(), pa.int32())),
    ],
)
def test_a_write_step_that_would_read_other_memory_is_refused(step, type_):
    with pytest.raises(AssertionError, match=r"^write step \w+ with steps \(.*\) within cannot read "):
        check_write_step(step, type_, _READS)


def test_a_plan_is_checked(monkeypatch):
    int_ = parse_avro("int")
    monkeypatch.setattr("spark_mq_source.values.avro.resolution._read", lambda *_: Step("LONG"))
    with pytest.raises(AssertionError, match="step LONG"):
        resolve(int_, int_, pa.int32())
    monkeypatch.setattr("spark_mq_source.values.avro.write_steps._write", lambda *_: WriteStep("LONG"))
    with pytest.raises(AssertionError, match="write step LONG"):
        plan_writing(pa.int32(), '"int"')


@pytest.mark.parametrize("levels", [1, 2, 3])
@pytest.mark.parametrize("branch", [0, 1])
def test_a_record_of_one_union_is_skipped_as_a_branch_of_a_union(levels, branch):
    street, data = ["null", "string"], (b"\0", b"\2\2x")[branch]
    for level in range(levels):
        fields = [{"name": "street", "type": street}]
        street, data = ["null", {"type": "record", "name": f"A{level}", "fields": fields}], b"\2" + data
    fields = [("addr", street), ("n", "int"), ("m", "int")]
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    wanted = pa.struct([("n", pa.int32()), ("m", pa.int32())])
    decoded = avro_decoder(json.dumps(schema), wanted).decode(pa.array([data + b"\x0e\x10"], pa.binary()))
    assert (decoded.values.to_pylist(), decoded.reasons) == ([{"n": 7, "m": 8}], {})
