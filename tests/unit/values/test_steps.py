"""The codes that a compiled loop has are those of the plans that it follows."""

from __future__ import annotations

from enum import IntEnum
from importlib import import_module

import pytest

from spark_mq_source.values.avro import steps as avro_steps
from spark_mq_source.values.avro import write_steps as avro_write_steps
from spark_mq_source.values.json import steps as json_steps
from spark_mq_source.values.protobuf import schema as protobuf_schema
from spark_mq_source.values.protobuf import write_steps as protobuf_write_steps
from spark_mq_source.values.steps import check_codes

CODES = [
    ("avro._decode_native", "Code", avro_steps.Code),
    ("avro._encode_native", "Code", avro_write_steps.WriteCode),
    ("json._decode_native", "Code", json_steps.Code),
    ("protobuf._decode_native", "Read", protobuf_schema.Read),
    ("protobuf._decode_native", "Put", protobuf_schema.Put),
    ("protobuf._encode_native", "Code", protobuf_write_steps.WriteCode),
    ("protobuf._encode_native", "Form", protobuf_write_steps.Form),
]


@pytest.mark.parametrize(("module", "name", "codes"), CODES)
def test_a_module_with_other_codes_is_refused(module: str, name: str, codes: type[IntEnum]) -> None:
    try:
        compiled = [*getattr(import_module(f"spark_mq_source.values.{module}"), name)]
    except ImportError:
        pytest.skip("there is no compiled module")
    check_codes(codes, compiled)
    for other in ([], compiled[:-1], compiled[::-1], [*compiled, *avro_steps.Code]):
        with pytest.raises(ImportError, match="the compiled module was built from another version"):
            check_codes(codes, other)
