"""Values written with schemas of the official Java client, read unchanged."""

from __future__ import annotations

import base64
import datetime
import math
import zoneinfo
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from brokers.pulsar import distribution
from spark_mq_source.values.avro.decode import arrow_type_of, avro_decoder
from spark_mq_source.values.json.decode import arrow_type_of as json_type_of
from spark_mq_source.values.json.decode import json_decoder
from spark_mq_source.values.primitives import primitive_decoder, primitive_type_of
from tests.java_program import JavaProgram

UTC = zoneinfo.ZoneInfo("UTC")
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
PRIMITIVES = {
    "bool": True,
    "int8": -2,
    "int16": 258,
    "int32": -3,
    "int64": 2**63 - 1,
    "float": pytest.approx(-0.1),
    "double": 0.1,
    "string": "ü",
    "date": EPOCH - datetime.timedelta(milliseconds=1),
    "time": 3_600_000,
    "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
    "instant": EPOCH - datetime.timedelta(seconds=1.5),
    "local_date": datetime.date(1969, 12, 31),
    "local_time": 3_723_000_000_004,
    "local_date_time": datetime.datetime(1960, 1, 2, 3, 4, 5, 6),
}
EVERYTHING: dict[str, Any] = {
    "amount": "1234567890123456789.10",
    "any": '[1,"x"]',
    "counts": [("a", 1), ("b", 2)],
    "data": b"\x00\x01\xff\x07",
    "date": EPOCH + datetime.timedelta(milliseconds=5),
    "day": datetime.date(2024, 2, 29),
    "early": EPOCH - datetime.timedelta(seconds=1.5),
    "either": "1",
    "flag": True,
    "float32": pytest.approx(0.1),
    "float64": 1e-7,
    "gate": "B",
    "hour": datetime.datetime(2020, 1, 2, 3, 0),
    "id": "00000000-0000-0001-0000-000000000002",
    "infinite": -math.inf,
    "instant": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC),
    "int16": 32767,
    "int32": -5,
    "int64": -(2**63),
    "int8": -128,
    "large": "1" + "0" * 30,
    "leg": {"city": "x", "position": [1.5, -0.0]},
    "legs": [{"city": None, "position": []}, {"city": "y", "position": [2.0]}],
    "letter": "x",
    "letters": "ab",
    "local": datetime.datetime(2020, 1, 2, 3, 4, 5, 6),
    "maybe": "x",
    "minute": (3 * 60 + 4) * 60_000,
    "moment": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
    "names": [("7", "seven")],
    "nan": pytest.approx(math.nan, nan_ok=True),
    "none": None,
    "offset": datetime.datetime(2020, 1, 2, 2, 4, 5, 6, UTC),
    "price": Decimal("1000.000"),
    "text": 'ü😀\n\x00"/',
    "time": ((3 * 60 + 4) * 60 + 5) * 1000 + 123,
    "timestamp": datetime.datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
}


AVRO: dict[str, tuple[pa.DataType, Any]] = {
    "flag": (pa.bool_(), True),
    "int32": (pa.int32(), -5),
    "int64": (pa.int64(), -(2**63)),
    "none": (pa.int64(), None),
    "nan": (pa.float32(), pytest.approx(math.nan, nan_ok=True)),
    "infinite": (pa.float64(), -math.inf),
    "text": (pa.string(), "ü😀"),
    "data": (pa.binary(), b"\x00\xff"),
    "price": (pa.decimal128(30, 3), Decimal("-1234567890123456789.125")),
    "cents": (pa.decimal128(9, 2), Decimal("-0.01")),
    "day": (pa.date32(), datetime.date(1969, 12, 31)),
    "millis": (pa.int32(), ((3 * 60 + 4) * 60 + 5) * 1000 + 123),
    "micros": (pa.int64(), ((3 * 60 + 4) * 60 + 5) * 1_000_000 + 123_456),
    "atMillis": (pa.timestamp("us", "UTC"), EPOCH - datetime.timedelta(milliseconds=1)),
    "atMicros": (pa.timestamp("us", "UTC"), datetime.datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC)),
    "id": (pa.string(), "00000000-0000-0001-0000-000000000002"),
    "gate": (pa.string(), "B"),
    "counts": (pa.map_(pa.string(), pa.int32()), [("a", 1), ("b", 2)]),
    "leg": (
        pa.struct([("city", pa.string()), ("position", pa.list_(pa.float64()))]),
        {"city": "x", "position": [1.5, -0.0]},
    ),
    "legs": (
        pa.list_(pa.struct([("city", pa.string()), ("position", pa.list_(pa.float64()))])),
        [{"city": "y", "position": [2.0]}],
    ),
    "either": (pa.struct([("member0", pa.string()), ("member1", pa.int32())]), {"member0": None, "member1": 1}),
}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    program = JavaProgram("JavaSchemas.java", distribution() / "lib", tmp_path_factory.mktemp("java") / "schemas.log")
    yield program.ask({})
    program.close()


@pytest.mark.parametrize("kind", PRIMITIVES)
def test_primitives(written: dict[str, Any], kind: str) -> None:
    decoder = primitive_decoder(kind, primitive_type_of(kind))
    decoded = decoder.decode(pa.array([base64.b64decode(written[kind]["payload"])], pa.binary()))
    assert decoded.reasons == {}
    assert decoded.values.to_pylist() == [PRIMITIVES[kind]]


@pytest.mark.parametrize("implementation", ["native", "python"])
def test_json(written: dict[str, Any], implementation: str) -> None:
    definition = written["json"]["definition"]
    payloads = pa.array([base64.b64decode(written["json"]["payload"]), b"{}"], pa.binary())
    decoded = json_decoder(json_type_of(definition), definition, implementation).decode(payloads)
    assert decoded.reasons == {}
    assert decoded.values.to_pylist() == [EVERYTHING, dict.fromkeys(EVERYTHING)]


def test_types_unknown_to_avro_can_be_read_as_any_type(written: dict[str, Any]) -> None:
    types = {
        "amount": pa.decimal128(38, 2),
        "large": pa.decimal128(38, 0),
        "either": pa.int64(),
        "any": pa.list_(pa.string()),
    }
    payloads = pa.array([base64.b64decode(written["json"]["payload"])], pa.binary())
    decoded = json_decoder(pa.struct(list(types.items())), written["json"]["definition"]).decode(payloads)
    assert decoded.values.to_pylist() == [
        {"amount": Decimal("1234567890123456789.10"), "large": Decimal(10) ** 30, "either": 1, "any": ["1", "x"]}
    ]


def test_avro(written: dict[str, Any]) -> None:
    definition = written["avro"]["definition"]
    type_ = arrow_type_of(definition)
    assert {field.name: field.type for field in type_} == {name: kind for name, (kind, _) in AVRO.items()}
    decoder = avro_decoder(definition, type_)
    decoded = decoder.decode(pa.array([base64.b64decode(written["avro"]["payload"])], pa.binary()))
    assert decoded.reasons == {}
    assert decoded.values.to_pylist() == [{name: value for name, (_, value) in AVRO.items()}]
