"""Directed fuzzing of Avro: a seed makes schemas, projections, payloads, damage and rows to write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.values.avro.decode import arrow_type_of, avro_decoder
from spark_mq_source.values.avro.encode import avro_encoder
from tests.oracles import avro as oracle
from tests.oracles.fields import damaged

PAYLOADS = 60


def run(seed: int) -> int:
    """Compare decoders and encoders with the oracle; return the number of payloads and rows."""
    rng = Random(seed)
    names: list[int] = []
    schema = random_root(rng, names)
    good = [oracle.random_value(rng, schema) for _ in range(PAYLOADS)]
    payloads: list[bytes | None] = []
    for one in good:
        payloads += [one, damaged(rng, one, oracle.HOSTILE)] if rng.random() < 0.7 else [one, None]
    whole = arrow_type_of(json.dumps(schema))
    expect(whole == oracle.spark_type(schema), seed, "type", schema)
    values, count = check(seed, rng, schema, schema, whole, payloads)
    compare_with_fastavro(seed, schema, payloads, values)
    for _ in range(2):
        count += check(seed, rng, schema, schema, oracle.random_part(rng, whole), payloads)[1]
    for _ in range(3):
        reader = oracle.evolved(rng, schema, names)
        type_ = oracle.spark_type(reader)
        for wanted in (type_, oracle.random_part(rng, type_)):
            count += check(seed, rng, schema, reader, wanted, payloads)[1]
    return count + check_encoding(seed, rng, schema, values)


def random_root(rng: Random, names: list[int]) -> oracle.Schema:
    """Return usually a record of several fields; an int behind each of them shows whether that was read to its end."""
    if rng.random() < 0.2:
        return oracle.random_schema(rng, 3, names)
    fields = []
    for at in range(rng.randint(1, 4)):
        fields += [(f"f{at}", oracle.random_schema(rng, 3, names)), (f"n{at}", "int")]
    return {"type": "record", "name": "Root", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def expect(holds: bool, seed: int, what: str, *cases: object) -> None:
    if not holds:
        raise AssertionError(f"seed {seed}: {what}: " + " | ".join(map(str, cases)))


def check(
    seed: int,
    rng: Random,
    schema: oracle.Schema,
    reader: oracle.Schema,
    wanted: pa.DataType,
    payloads: Sequence[bytes | None],
) -> tuple[pa.Array, int]:
    """Return the decoded values, equal to the oracle's, and the number of payloads."""
    case = json.dumps(schema), json.dumps(reader), wanted
    try:
        read = oracle.reader_of(schema, reader, wanted)
    except oracle.MismatchError:
        read = None
    try:
        decoder = avro_decoder(case[0], wanted, None if reader is schema else case[1])
    except OptionError as error:
        expect(read is None, seed, f"refused at planning: {error}", *case)
        return pa.nulls(0, wanted), 0
    expect(read is not None, seed, "not refused at planning", *case)
    assert read is not None
    first, last = rng.choice([(0, len(payloads)), sorted(rng.choices(range(len(payloads)), k=2))])
    decoded = decoder.decode(oracle.laid_out(payloads, rng.randrange(16)).slice(first, last - first))
    decoded.values.validate(full=True)
    found = oracle.cells(decoded.values)
    expect(len(found) == last - first, seed, "rows", *case)
    given = payloads[first:last]
    expected = oracle.read_cells(read, [payload or b"" for payload in given])
    for row, (payload, ours, theirs) in enumerate(zip(given, found, expected, strict=True)):
        is_bad = payload is not None and theirs is oracle.RefusedError
        if (row in decoded.reasons) != is_bad or (ours is not None if is_bad or payload is None else ours != theirs):
            reason = decoded.reasons.get(row)
            expect(False, seed, f"payload {payload!r} is {ours} ({reason}), expected {theirs}", *case)
    return decoded.values, len(given)


def compare_with_fastavro(seed: int, schema: oracle.Schema, payloads: Sequence[bytes | None], values: pa.Array) -> None:
    """Compare all accepted payloads; they may be a slice of all payloads."""
    read, parsed = oracle.reader_of(schema, schema, values.type), oracle.tagged(schema)
    for payload in payloads:
        (cell,) = oracle.read_cells(read, [payload or b""])
        if payload is not None and cell is not oracle.RefusedError:
            theirs = oracle.read_with_fastavro(schema, parsed, payload)
            expect(cell == theirs, seed, f"payload {payload!r} is {cell}, fastavro {theirs}", json.dumps(schema))


def check_encoding(seed: int, rng: Random, schema: oracle.Schema, values: pa.Array) -> int:
    """Write rows with this schema and a similar one, read them with fastavro, and return the number compared."""
    if pa.types.is_null(values.type):
        return 0
    if pa.types.is_struct(values.type) and values.type.num_fields:
        # Some rows are beneath nulls.
        mask = pa.array([rng.random() < 0.1 for _ in values], pa.bool_())
        children = [values.field(at) for at in range(values.type.num_fields)]
        values = pa.StructArray.from_arrays(children, fields=list(values.type), mask=mask)
    count = 0
    given = oracle.cells(values)
    for target in (schema, oracle.rewritten(rng, schema)):
        parsed, definition = oracle.tagged(target), json.dumps(target)
        expected: list[Any] = []
        for cell in given:
            try:
                expected.append(None if cell is None else oracle.written(target, values.type, cell))
            except oracle.RefusedError:
                expected.append(oracle.RefusedError)
        start, stop = sorted(rng.choices(range(len(values) + 1), k=2))
        # All rows at once if possible; then in pieces, so that each refused row is encountered.
        for first, last in ((start, stop), *((at, min(at + 3, stop)) for at in range(start, stop, 3))):
            part = expected[first:last]
            case = f"rows {given[first:last]!r:.2000}"
            try:
                data = avro_encoder(values.type, definition)(values.slice(first, last - first))
            except UnwritableRowError as error:
                expect(oracle.RefusedError in part, seed, f"{case}: {error}", definition)
                continue
            expect(oracle.RefusedError not in part, seed, f"{case} are not refused", definition)
            data.validate(full=True)
            for payload, cell in zip(data.to_pylist(), part, strict=True):
                theirs = None if payload is None else oracle.read_with_fastavro(target, parsed, payload)
                expect(cell == theirs, seed, f"row {cell} was written as {payload!r}, {theirs}", definition)
            count += last - first
    return count
