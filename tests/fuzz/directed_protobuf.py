"""Directed fuzzing of typed protobuf: a seed makes the schema, the columns and the payloads."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.protobuf.decode import protobuf_decoder
from spark_mq_source.values.protobuf.encode import protobuf_encoder
from tests.oracles.fields import damaged
from tests.oracles.protobuf import (
    HOSTILE,
    WRITABLE,
    Oracle,
    RefusedError,
    Schema,
    in_micros,
    random_bytes_of,
    random_columns,
    random_row,
    random_schema,
)


def run(seed: int) -> int:
    """Compare values read, read again and written with the oracle; return the number of payloads."""
    rng = Random(seed)
    schema = random_schema(rng)
    return _read(rng, schema, f"seed {seed}") + _write(rng, schema, f"seed {seed}")


def _read(rng: Random, schema: Schema, case: str) -> int:
    wanted = random_columns(rng, schema.descriptor)
    case = f"{case}, {wanted}"
    oracle = Oracle(schema.descriptor, wanted)
    decoder = protobuf_decoder(schema.descriptors, schema.message, wanted)
    payloads: list[bytes | None] = [None]
    for _ in range(40):
        payload = random_bytes_of(rng, schema.descriptor)
        payloads += [payload, *(damaged(rng, payload, HOSTILE) for _ in range(4))]
    rng.shuffle(payloads)
    expected: list[Any] = []
    refused = []
    for row, payload in enumerate(payloads):
        try:
            expected.append(None if payload is None else oracle.value_of(payload))
        except RefusedError:
            expected.append(None)
            refused.append(row)
    array = pa.array([b"before", *payloads], pa.binary()).slice(1)
    # Twice, to show that the decoder keeps no state of a batch.
    for _ in range(2):
        decoded = decoder.decode(array)
        decoded.values.validate(full=True)
        found = decoded.values.cast(in_micros(wanted)).to_pylist()
        rows = [at for at in range(len(payloads)) if (at in decoded.reasons) != (at in refused)]
        rows += [at for at, value in enumerate(found) if repr(value) != repr(expected[at])]
        if rows:
            at = min(rows, key=lambda at: len(payloads[at] or b""))
            text = f"payload {(payloads[at] or b'').hex()}: {found[at]} {decoded.reasons.get(at)}, not {expected[at]}"
            raise AssertionError(f"{case}: {text}{' (refused)' * (at in refused)}")
    return 2 * len(payloads)


def _write(rng: Random, schema: Schema, case: str) -> int:
    columns = random_columns(rng, schema.descriptor, WRITABLE)
    case = f"{case}, {columns}"
    oracle = Oracle(schema.descriptor, columns)
    numbers = in_micros(columns)
    rows = [random_row(rng, schema.descriptor, columns) for _ in range(rng.choice([0, 1, 60]))]
    expected: list[bytes | None] = []
    array = pa.array(rows, numbers).cast(columns)
    # From the cells in Arrow: a float32 is narrower than Python's float.
    for row in array.cast(numbers).to_pylist():
        try:
            expected.append(oracle.payload_of(row))
        except RefusedError:
            expected.append(None)
    refused = [at for at, payload in enumerate(expected) if payload is None]
    # Rows that cannot be written are beneath a NULL, where they are ignored; sometimes one is not.
    nulls = [at in refused or rng.random() < 0.1 for at in range(len(rows))]
    expected = [None if null else payload for null, payload in zip(nulls, expected, strict=True)]
    if len(columns):
        array = pa.StructArray.from_arrays(array.flatten(), fields=list(columns), mask=pa.array(nulls, pa.bool_()))
    elif rows:
        array = pa.array([None if null else {} for null in nulls], columns)
    start = rng.randint(0, len(rows))
    end = rng.randint(start, len(rows))
    try:
        written = protobuf_encoder(array.type, schema.descriptors, schema.message)(array.slice(start, end - start))
    except OptionError as error:
        if "is missing, which is required" not in str(error):
            raise
        return 0
    written.validate(full=True)
    for at, (found, payload) in enumerate(zip(written.to_pylist(), expected[start:end], strict=True), start):
        assert found == payload, f"{case}: {rows[at]} is written as {found}, not {payload}"
    if refused and len(columns):
        bad = pa.array([rows[rng.choice(refused)]], numbers).cast(columns)
        try:
            protobuf_encoder(bad.type, schema.descriptors, schema.message)(bad)
        except UnwritableRowError:
            return len(rows) + 1
        raise AssertionError(f"{case}: {bad} is written")
    return len(rows)
