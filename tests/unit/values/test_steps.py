"""The step codes of planners are those of the compiled loops."""

from __future__ import annotations

from collections.abc import Collection
from importlib import import_module

import pytest

from spark_mq_source.values.avro import steps as avro_steps
from spark_mq_source.values.avro import write_steps as avro_write_steps
from spark_mq_source.values.json import explain
from spark_mq_source.values.protobuf import schema, write_steps
from spark_mq_source.values.steps import codes_of

KINDS = schema.KINDS.values()
PUTS = {put for one in KINDS for put in one.puts.values()}


@pytest.mark.parametrize(
    ("module", "name", "codes"),
    [
        ("avro._decode_native", "Code", {*avro_steps._FILLS, *avro_steps._SKIPS}),
        ("avro._encode_native", "Code", avro_write_steps._READS),
        ("json._decode_native", "Code", explain._CONVERTERS),
        ("protobuf._decode_native", "Read", {one.read for one in KINDS}),
        ("protobuf._decode_native", "Put", {*PUTS, "NOWHERE", "MICROS", "STRUCT"}),
        ("protobuf._encode_native", "Code", write_steps._READS),
        ("protobuf._encode_native", "Form", {one.form for one in KINDS}),
    ],
)
def test_a_loop_has_all_codes(module: str, name: str, codes: Collection[str]) -> None:
    try:
        compiled = getattr(import_module(f"spark_mq_source.values.{module}"), name)
    except ImportError:
        pytest.skip("needs the compiled module")
    assert codes_of(compiled).keys() == set(codes)
