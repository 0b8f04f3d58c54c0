"""Rates of decoding JSON values to Arrow arrays: no broker, no network, no Spark.

    python -m bench json [--seconds 0.3] [--repeats 5]

Prints values per second of processor time (the median of the rounds, and the best), and ns a value, of 10,000 flights
with twelve fields, as Pulsar's Java client writes them (without null fields, times in milliseconds): ours with all
columns and with three, compiled and interpreted, beside Python's json and pyarrow's own reader, which needs values of
one line each and ends at the first bad one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pyarrow.json

from bench.avro import SCHEMA, THREE
from bench.loops import ROWS, Run, run_of
from bench.values import make_flights
from spark_mq_source.values.json.decode import arrow_type_of, json_decoder


def flights() -> list[bytes]:
    """Return flights as JSON."""
    rows = [{name: value for name, value in row.items() if value is not None} for row in make_flights(ROWS)]
    return [json.dumps(row, separators=(",", ":")).encode() for row in rows]


def runs() -> Iterator[tuple[str, Run]]:
    """Yield our runs and those of the others."""
    values = flights()
    payloads = pa.array(values, pa.binary())
    definition = json.dumps(SCHEMA)
    whole = arrow_type_of(definition)
    # The others cannot read a number as a timestamp.
    plain = pa.schema([(field.name, pa.int64() if field.name == "time_hour" else field.type) for field in whole])
    columns = (("all columns", whole, plain), ("three columns", *map(_three, (whole, plain))))
    for implementation in ("native", "python"):
        for name, type_, _ in columns:
            decoder = json_decoder(type_, definition, implementation)
            yield f"ours, {name}, {implementation}", run_of(partial(decoder.decode, payloads))
    for name, _, schema in columns:
        yield f"pyarrow.json, {name}", run_of(partial(_read_lines, values, pa.schema(list(schema))))
    yield "json, a dict a value", run_of(lambda: [json.loads(value) for value in values])
    yield (
        "json, as an Arrow array",
        run_of(lambda: pa.array([json.loads(value) for value in values], pa.struct(list(plain)))),
    )


def _three(type_: pa.StructType | pa.Schema) -> pa.StructType:
    return pa.struct([type_.field(name) for name in THREE])


def _read_lines(values: list[bytes], schema: pa.Schema) -> pa.Table:
    data = b"\n".join(values)
    return pyarrow.json.read_json(
        pa.BufferReader(data),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore"),
    )
