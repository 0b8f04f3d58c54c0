"""One process that fuzzes: groups of mutated inputs, each group through a session of its own.

A group and its inputs are written to a shared file before they are run, so that they are known when the process dies.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import signal
import struct
import sys
import time
import traceback
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NoReturn

from tests.native import use_modules

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

CORPUS = Path(__file__).with_name("corpus")
FOLDER = Path(__file__).parents[2] / "build" / "fuzz"
HANG_SECONDS = 120
WEIGHTS = {"pulsar_entries": 4, "tubemq_answers": 3, "nsq_messages": 2}
"""So many slices of a round go to what takes the bytes of others."""

MOST_BYTES = 4096
"""How large an input becomes."""
GROUP_INPUTS = 256
COMPARED = 16
"""One of so many groups is run by the twin as well."""
SHARED_BYTES = 64 + GROUP_INPUTS * (MOST_BYTES + 4)
# executions, inputs to begin with and found, seed of the session, inputs in the group, bytes of the group
HEAD = struct.Struct("<QQQQQ")


class Shared:
    """What survives the process: counts, and the group that is running."""

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, SHARED_BYTES)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SHARED_BYTES)
        self.executions = self.corpus = 0
        self._seed = self._inputs = self._bytes = 0

    def begin(self, seed: int) -> None:
        """A group begins."""
        self._seed, self._inputs, self._bytes = seed, 0, 0

    def add(self, data: bytes) -> None:
        """An input is about to run."""
        at = 64 + self._bytes
        self._map[at : at + 4 + len(data)] = len(data).to_bytes(4, "little") + data
        self._inputs += 1
        self._bytes += 4 + len(data)
        HEAD.pack_into(self._map, 0, self.executions, self.corpus, self._seed, self._inputs, self._bytes)


def read_shared(path: Path) -> tuple[int, int, int, list[bytes]]:
    """Executions, the corpus' size, the session's seed and the inputs of the group."""
    data = path.read_bytes()
    executions, corpus, seed, _, size = HEAD.unpack_from(data)
    return executions, corpus, seed, list(_inputs(data[64 : 64 + size]))


def write_group(path: Path, seed: int, inputs: list[bytes]) -> None:
    """Saves a group: what reproduces a finding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(seed.to_bytes(8, "little") + b"".join(len(one).to_bytes(4, "little") + one for one in inputs))


def read_group(path: Path) -> tuple[int, list[bytes]]:
    """A group that was saved."""
    data = path.read_bytes()
    return int.from_bytes(data[:8], "little"), list(_inputs(data[8:]))


def _inputs(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def run_group(target: Target, seed: int, inputs: list[bytes], implementation: str) -> list[object]:
    """What an implementation makes of a group."""
    session = target.session(seed, implementation)
    # An array's memory ends where the input ends, unlike that of bytes: reading past it is seen.
    outcomes = [session.feed(memoryview(array("B", array("B", one)))) for one in inputs]
    return [*outcomes, session.finish()]


def compare(native: list[object], python: list[object]) -> None:
    """Whether both implementations gave the same.

    Raises:
        AssertionError: they did not; says what.
    """
    for number, (one, other) in enumerate(zip(native, python, strict=True)):
        assert one == other, f"input {number} of {len(native) - 1}: native gives {one!r}, python {other!r}"


def check_group(target: Target, seed: int, inputs: list[bytes]) -> None:
    """Runs a group by both implementations.

    Raises:
        AssertionError: they do not agree.
    """
    native = run_group(target, seed, inputs, "native")
    if target.has_twin:
        compare(native, run_group(target, seed, inputs, "python"))


def fuzz(target: Target, corpus: list[bytes], rng: Random, shared: Shared, until: float) -> list[bytes]:
    """Runs groups until then; gives the inputs that reached something new."""
    library = ctypes.CDLL(os.environ["SPARK_MQ_SOURCE_FUZZER"])
    mutate, is_new = library.fuzzer_mutate, library.fuzzer_is_new
    mutate.restype = ctypes.c_size_t
    mutate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    library.fuzzer_seed.argtypes = (ctypes.c_uint64,)
    library.fuzzer_seed(rng.getrandbits(63))
    buffer = ctypes.create_string_buffer(MOST_BYTES)
    address = ctypes.addressof(buffer)
    found: list[bytes] = []
    groups = 0
    while time.monotonic() < until:
        groups += 1
        seed = rng.getrandbits(32)
        shared.begin(seed)
        session = target.session(seed, "native")
        outcomes, inputs = [], []
        is_compared = groups % COMPARED == 0 and target.has_twin
        base = rng.choice(corpus)
        for number in range(GROUP_INPUTS):
            if number % 8 == 0:
                # What was found last is the most promising.
                base = rng.choice(corpus[-20:] if rng.random() < 0.3 else corpus)
                other = rng.choice(corpus)
            ctypes.memmove(address, base, len(base))
            size = mutate(address, len(base), MOST_BYTES, other, len(other))
            data = buffer.raw[:size]
            shared.executions += 1
            shared.add(data)
            outcome = session.feed(memoryview(array("B", array("B", data))))
            if is_compared:
                outcomes.append(outcome)
                inputs.append(data)
            if is_new():
                corpus.append(data)
                found.append(data)
                shared.corpus = len(corpus)
        end = session.finish()
        if is_compared:
            expected = run_group(target, seed, inputs, "python")
            compare([*outcomes, end], expected)
            is_new()
    return found


class Slice:
    """A process that fuzzes one target for some seconds, forked so that nothing is imported again."""

    def __init__(self, target: Target, seed: int, seconds: float) -> None:
        self.target, self.seed = target, seed
        base = FOLDER / f"running-{os.getpid()}"
        self.shared_path, self.log_path = base.with_suffix(".shared"), base.with_suffix(".log")
        self.shared_path.unlink(missing_ok=True)
        self.shared = Shared(self.shared_path)
        self.pid = os.fork()
        if self.pid == 0:
            self._run(seconds)

    def _run(self, seconds: float) -> NoReturn:
        code = 1
        try:
            log = os.open(self.log_path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
            os.dup2(log, 2)
            folder = FOLDER / "corpus" / self.target.name
            corpus = list(inputs_of(self.target, CORPUS, FOLDER / "corpus"))
            self.shared.corpus = len(corpus)
            for data in fuzz(self.target, corpus, Random(self.seed), self.shared, time.monotonic() + seconds)[-500:]:
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{zlib.crc32(data):08x}").write_bytes(data)
            code = 0
        except BaseException:  # noqa: BLE001 - all of it is for the log, and this process must not go on
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def wait(self) -> str:
        """How it ended: an empty text is well."""
        executions, moved_at = 0, time.monotonic()
        while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
            time.sleep(0.1)
            if read_shared(self.shared_path)[0] != executions:
                executions, moved_at = read_shared(self.shared_path)[0], time.monotonic()
            if time.monotonic() - moved_at > HANG_SECONDS:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                return f"an input did not end within {HANG_SECONDS} s"
        return self.log_path.read_text(errors="replace")[-8000:]

    def save(self, report: str) -> None:
        """Keeps what it ran, and says how to run it again."""
        path = FOLDER / "findings" / f"{self.target.name}-{self.seed}"
        _, _, seed, inputs = read_shared(self.shared_path)
        write_group(path, seed, inputs)
        print(f"\n{self.target.name}: FOUND with seed {self.seed}:\n{report}\nthe inputs: {path}")
        print(f"again: {sys.executable} -m tests.fuzz --reproduce {path}", flush=True)


def inputs_of(target: Target, *folders: Path) -> Iterator[bytes]:
    """What mutations begin with: inputs that were made or recorded, and those that reached something new."""
    for data in target.inputs():
        yield data[:MOST_BYTES]
    for folder in folders:
        for path in sorted((folder / target.name).glob("*")):
            yield path.read_bytes()[:MOST_BYTES]


def run(targets: dict[str, Target], names: Sequence[str], seed: int, seconds: float) -> dict[str, int]:
    """Fuzzes targets in turn; how often each was executed, and under an empty name how much was found."""
    slice_seconds = min(max(seconds / len(names), 1.0), 60.0)
    until = time.monotonic() + seconds
    counts = dict.fromkeys(["", *names], 0)
    while (left := until - time.monotonic()) > 0:
        target = targets[names[seed % len(names)]]
        slice_ = Slice(target, seed, min(left, slice_seconds))
        report = slice_.wait()
        executions, corpus, _, _ = read_shared(slice_.shared_path)
        counts[target.name] += executions
        print(f"seed {seed}: {target.name:16} {executions:>10,} executions, corpus {corpus:>6,}", flush=True)
        if report:
            counts[""] += 1
            slice_.save(report)
        seed += 1
    slice_.shared_path.unlink()
    slice_.log_path.unlink()
    return counts


def main() -> int:
    """Fuzzes, or runs a group that was saved; 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--reproduce", type=Path)
    arguments = parser.parse_args()
    use_modules(arguments.modules)
    # Not before the instrumented modules are in their place.
    from tests.fuzz.targets import TARGETS

    if arguments.reproduce is not None:
        check_group(TARGETS[arguments.reproduce.name.rpartition("-")[0]], *read_group(arguments.reproduce))
        print("it no longer fails")
        return 0
    for target in TARGETS.values():
        # Imports what is imported late, once for all.
        check_group(target, 1, list(target.inputs())[:3])
    names = arguments.names or [name for name in TARGETS for _ in range(WEIGHTS.get(name, 1))]
    began = time.monotonic()
    counts = run(TARGETS, names, arguments.seed, arguments.seconds)
    took = time.monotonic() - began
    findings = counts.pop("")
    for name, count in counts.items():
        print(f"{name:16} {count:>13,} executions")
    total = sum(counts.values())
    print(f"{total:,} executions in {took:.0f} s, {total / took:,.0f} a second; {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
