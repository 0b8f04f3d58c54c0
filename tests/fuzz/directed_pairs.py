"""Directed fuzzing of pairs of a key and a value."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from spark_mq_source.core.implementation import Implementation
from spark_mq_source.values import _pairs_python


def run(seed: int) -> int:
    """Compare decoded pairs of a key and a value with the written ones."""
    rng = Random(seed)
    payloads: list[bytes | None] = []
    expected: list[dict[str, bytes | None] | None] = []
    for _ in range(200):
        parts = [None if rng.random() < 0.2 else rng.randbytes(rng.choice([0, 1, 7, 300])) for _ in range(2)]
        data = b"".join(
            rng.choice([-1, -(2**31)]).to_bytes(4, "big", signed=True)
            if part is None
            else len(part).to_bytes(4, "big") + part
            for part in parts
        )
        behind = rng.choice([b"", b"behind"])
        cut = rng.random() < 0.3 and rng.randrange(len(data))
        payloads.append(data[:cut] if cut else data + behind)
        expected.append(None if cut else {"key": parts[0], "value": parts[1]})
        if rng.random() < 0.1:
            # A size beyond the end, and NULL.
            size = rng.choice([2**31 - 1, len(data) - 3 if parts[0] is None else len(data)])
            payloads += [size.to_bytes(4, "big") + data[4:], None]
            expected += [None, None]
    refused = [at for at, value in enumerate(expected) if value is None and payloads[at] is not None]
    for implementation in ("native", "python"):
        decoder = Implementation(_pairs_python, implementation).load().PairDecoder()
        decoded = decoder.decode(pa.array([b"before", *payloads], pa.binary()).slice(1))
        decoded.values.validate(full=True)
        assert decoded.values.to_pylist() == expected, f"seed {seed}, {implementation}"
        assert list(decoded.reasons) == refused, f"seed {seed}, {implementation}"
    return len(payloads)
