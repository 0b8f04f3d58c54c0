"""Each allocation of the compiled loops fails once: it raises MemoryError, and later results are right.

The checked build fails the n-th allocation, for each n of a session of the fuzzer's targets. Afterwards the same
decoder gets the same payloads again, sometimes with the rows that it had when the allocation failed. The assertions of
the checked build see a write beyond what was allocated.
"""

from __future__ import annotations

import ctypes
import sys
from array import array
from typing import Any

import pyarrow as pa
import pytest

from tests import native
from tests.fuzz.targets import TARGETS
from tests.fuzz.values import Outcome

pytestmark = pytest.mark.skipif(native.CHECKS not in sys.modules, reason="needs the checked build: -p tests.checked")

# For each target: the slice of its inputs, the seeds of its sessions (which choose columns, and parts of types), and
# the minimum number of allocations.
SESSIONS = {
    "pulsar_entries": (slice(-6, None), [0], 100),
    "tubemq_answers": (slice(-9, None), [0], 75),
    "nsq_messages": (slice(-4, None), [0, 1], 6),
    "avro_values": (slice(None, None, 4), [0], 150),
    "avro_rows": (slice(None, None, 12), [0], 250),
    "json_values": (slice(None, None, 6), [0], 150),
    "pairs": (slice(None), [0], 60),
    "protobuf_values": (slice(None, None, 6), [0], 200),
    "protobuf_rows": (slice(None, None, 12), [0], 400),
    "pulsar_rows": (slice(None), [0], 30),
}


class Allocations:
    """A switch that fails one allocation."""

    def __init__(self) -> None:
        self.left = ctypes.c_longlong(0)
        sys.spark_mq_source_failing_allocation = ctypes.addressof(self.left)  # type: ignore[attr-defined]

    def fail_at(self, number: int) -> None:
        self.left.value = number

    @property
    def has_failed(self) -> bool:
        return self.left.value <= 0

    def end(self) -> None:
        del sys.spark_mq_source_failing_allocation  # type: ignore[attr-defined]


def view_of(data: bytes) -> memoryview:
    return memoryview(array("B", data))


def decode_entries(session: Any, inputs: list[bytes]) -> list[object]:
    """Return the rows of all inputs, in two batches, as if the session were new."""
    if hasattr(session, "entry"):
        session.entry = 0
    if hasattr(session, "stop_at"):
        session.stop_at = None
    for half in (inputs, inputs):
        for one in half:
            session.feed(view_of(one))
        session.take()
    rows = [row for batch in session.batches for row in batch.to_pylist()]
    session.batches = []
    return rows


def decode_values(session: Any, inputs: list[bytes]) -> list[object]:
    """Return the values of all inputs, in one array of each decoder, twice."""
    found: list[object] = []
    for _ in range(2):
        for number, decoder in enumerate(session.decoders):
            payloads = [one[1:] for one in inputs if one[0] % len(session.decoders) == number]
            found.append(Outcome(decoder.decode(pa.array(payloads * 20, pa.binary()))))
    return found


def write_values(session: Any, inputs: list[bytes]) -> list[object]:
    return [session.feed(view_of(one)) for one in inputs]


@pytest.mark.parametrize("name", SESSIONS)
def test_loops_recover_from_each_failed_allocation(name: str) -> None:
    target = TARGETS[name]
    taken, seeds, least = SESSIONS[name]
    inputs = list(target.inputs())[taken]
    use = write_values
    if name in ("pulsar_entries", "tubemq_answers", "nsq_messages"):
        use = decode_entries
    elif name in ("avro_values", "json_values", "pairs", "protobuf_values"):
        use = decode_values
    allocations = Allocations()
    failed = 0
    for seed in seeds:
        allocations.fail_at(0)
        expected = use(target.session(seed, "native"), inputs)
        number = 0
        while True:
            number += 1
            session = None
            allocations.fail_at(number)
            try:
                session = target.session(seed, "native")
                use(session, inputs)
            except MemoryError:
                assert allocations.has_failed
            else:
                assert not allocations.has_failed, f"seed {seed}: allocation {number} failed without an error"
                break
            # An encoder of messages has sent a part of the rows, and its task ends: the next session is new.
            if session is None or name == "pulsar_rows":
                session = target.session(seed, "native")
            # In every other case the present rows are taken before the repetition.
            if number % 2 and use is decode_entries:
                session.take()
                session.batches = []
            again = use(session, inputs)
            assert again[len(again) - len(expected) :] == expected, f"seed {seed}: after allocation {number} failed"
            failed += 1
    allocations.end()
    assert failed >= least, failed
