"""Rates of decoding Avro values to Arrow arrays, and of encoding them: no broker, no network, no Spark.

    python -m bench avro [--seconds 0.3] [--repeats 5]

Prints records per second of processor time (the median of the rounds, and the best), and ns a record, of 10,000 flights
with twelve fields: ours with all columns and with three, beside fastavro in a plain loop, which returns dicts,
and beside the same with these made an Arrow array; and encoding, of all columns.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa

from bench.loops import ROWS, Run, run_of
from bench.values import make_flights
from spark_mq_source.values.avro.decode import arrow_type_of, avro_decoder
from spark_mq_source.values.avro.encode import avro_encoder

FIELDS: dict[str, Any] = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_delay": ["null", "double"],
    "arr_delay": ["null", "double"],
    "carrier": "string",
    "flight": "int",
    "tailnum": ["null", "string"],
    "origin": "string",
    "dest": "string",
    "distance": "double",
    "time_hour": {"type": "long", "logicalType": "timestamp-millis"},
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Flight",
    "fields": [{"name": name, "type": kind} for name, kind in FIELDS.items()],
}
THREE = ("carrier", "dep_delay", "time_hour")


def flights() -> list[bytes]:
    """Return flights as Avro."""
    schema = fastavro.parse_schema(SCHEMA)
    return [_write(schema, flight) for flight in make_flights(ROWS)]


def runs() -> Iterator[tuple[str, Run]]:
    """Yield our runs and those of fastavro."""
    values = flights()
    payloads = pa.array(values, pa.binary())
    whole = arrow_type_of(json.dumps(SCHEMA))
    three = pa.struct([whole.field(name) for name in THREE])
    for columns, type_ in (("all columns", whole), ("three columns", three)):
        decoder = avro_decoder(json.dumps(SCHEMA), type_)
        yield f"ours, {columns}", run_of(partial(decoder.decode, payloads))
    schema = fastavro.parse_schema(SCHEMA)
    yield "fastavro, a dict a record", run_of(partial(_read, schema, values))
    yield "fastavro, as an Arrow array", run_of(lambda: pa.array(_read(schema, values), whole))
    array = pa.array(_read(schema, values), whole)
    yield "ours, encoded", run_of(partial(avro_encoder(array.type, json.dumps(SCHEMA)), array))
    rows = array.to_pylist()
    yield "fastavro, dicts encoded", run_of(lambda: [_write(schema, row) for row in rows])


def _read(schema: Any, values: list[bytes]) -> list[Any]:  # noqa: ANN401 - fastavro's
    return [fastavro.schemaless_reader(io.BytesIO(value), schema) for value in values]


def _write(schema: Any, record: dict[str, Any]) -> bytes:  # noqa: ANN401 - fastavro's
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()
