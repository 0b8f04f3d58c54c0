"""One process that fuzzes: groups of mutated inputs, each group in a separate session, and directed seeds.

A group and its inputs are written to a shared file before they are run, so that they are known if the process dies;
a seed of a directed target as well. Such a target is a module ``directed_*.py`` here with a function ``run``, which
makes everything of a seed, compares it with an oracle, and returns how many payloads it compared.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from tests.native import use_modules

if TYPE_CHECKING:
    from tests.fuzz.targets import Target

CORPUS = Path(__file__).with_name("corpus")
FOLDER = Path(__file__).parents[2] / "build" / "fuzz"
HANG_SECONDS = 120
WEIGHTS = {"pulsar_entries": 4, "tubemq_answers": 3, "nsq_messages": 2}
"""Slices of a round, for targets that take bytes from other hosts."""
DIRECTED = "directed_"
DIRECTED_WEIGHT = 2

MAX_BYTES = 4096
"""The size limit of an input."""
GROUP_INPUTS = 256
COMPARED = 16
"""One of this many groups runs on the twin, too."""
SHARED_BYTES = 64 + GROUP_INPUTS * (MAX_BYTES + 4)
# executions, initial and found inputs, seed of the session, inputs in the group, bytes of the group
HEAD = struct.Struct("<QQQQQ")


class Directed(NamedTuple):
    """A target that makes everything from a seed."""

    name: str
    run: Callable[[int], int]


def directed_targets() -> dict[str, Directed]:
    """Return the directed targets: all modules ``directed_*.py`` here."""
    names = sorted(path.stem for path in Path(__file__).parent.glob(f"{DIRECTED}*.py"))
    return {name: Directed(name, import_module(f"tests.fuzz.{name}").run) for name in names}


class Shared:
    """A file that survives the process, with counts and the running group."""

    def __init__(self, path: Path) -> None:
        path.touch()
        os.truncate(path, SHARED_BYTES)
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), SHARED_BYTES)
        self.executions = self.corpus = 0
        self._seed = self._inputs = self._bytes = 0

    def begin(self, seed: int) -> None:
        """Begin a group, or a seed of a directed target."""
        self._seed, self._inputs, self._bytes = seed, 0, 0
        self._write()

    def add(self, data: bytes) -> None:
        """Record an input that is about to run."""
        at = 64 + self._bytes
        self._map[at : at + 4 + len(data)] = len(data).to_bytes(4, "little") + data
        self._inputs += 1
        self._bytes += 4 + len(data)
        self._write()

    def _write(self) -> None:
        HEAD.pack_into(self._map, 0, self.executions, self.corpus, self._seed, self._inputs, self._bytes)


def read_shared(path: Path) -> tuple[int, int, int, list[bytes]]:
    """Return the executions, the size of the corpus, the seed of the session and the inputs of the group."""
    data = path.read_bytes()
    executions, corpus, seed, _, size = HEAD.unpack_from(data)
    return executions, corpus, seed, list(_inputs(data[64 : 64 + size]))


def write_group(path: Path, seed: int, inputs: list[bytes]) -> None:
    """Save a group, which reproduces a finding."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(seed.to_bytes(8, "little") + b"".join(len(one).to_bytes(4, "little") + one for one in inputs))


def read_group(path: Path) -> tuple[int, list[bytes]]:
    """Return the seed and the inputs of a saved group."""
    data = path.read_bytes()
    return int.from_bytes(data[:8], "little"), list(_inputs(data[8:]))


def _inputs(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def run_group(target: Target, seed: int, inputs: list[bytes], implementation: str) -> list[object]:
    """Return the outcomes of an implementation for the inputs of a group."""
    session = target.session(seed, implementation)
    # An array's memory ends where the input ends, unlike that of bytes: reading past it is detected.
    outcomes = [session.feed(memoryview(array("B", array("B", one)))) for one in inputs]
    return [*outcomes, session.finish()]


def compare(native: list[object], python: list[object]) -> None:
    """Compare the outcomes of both implementations.

    Raises:
        AssertionError: they differ; the error names the input and both outcomes.
    """
    for number, (one, other) in enumerate(zip(native, python, strict=True)):
        assert one == other, f"input {number} of {len(native) - 1}: native gives {one!r}, python {other!r}"


def check_group(target: Target, seed: int, inputs: list[bytes]) -> None:
    """Run a group on both implementations.

    Raises:
        AssertionError: they differ.
    """
    native = run_group(target, seed, inputs, "native")
    if target.has_twin:
        compare(native, run_group(target, seed, inputs, "python"))


def fuzz(target: Target, corpus: list[bytes], rng: Random, shared: Shared, until: float) -> list[bytes]:
    """Run groups until a deadline; return the inputs that reached new code."""
    library = ctypes.CDLL(os.environ["SPARK_MQ_SOURCE_FUZZER"])
    mutate, is_new = library.fuzzer_mutate, library.fuzzer_is_new
    mutate.restype = ctypes.c_size_t
    mutate.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_char_p, ctypes.c_size_t)
    library.fuzzer_seed.argtypes = (ctypes.c_uint64,)
    library.fuzzer_seed(rng.getrandbits(63))
    buffer = ctypes.create_string_buffer(MAX_BYTES)
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
                # The latest inputs are the most promising.
                base = rng.choice(corpus[-20:] if rng.random() < 0.3 else corpus)
                other = rng.choice(corpus)
            ctypes.memmove(address, base, len(base))
            size = mutate(address, len(base), MAX_BYTES, other, len(other))
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


def fuzz_directed(target: Directed, rng: Random, shared: Shared, until: float) -> None:
    """Run consecutive seeds until a deadline, at least one."""
    seed = rng.getrandbits(32)
    while True:
        shared.begin(seed)
        shared.executions += target.run(seed)
        seed += 1
        if time.monotonic() >= until:
            break
    shared.begin(seed)


class Slice:
    """A process that fuzzes one target for some seconds; it is forked to avoid repeated imports."""

    def __init__(self, target: Target | Directed, seed: int, seconds: float) -> None:
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
            until = time.monotonic() + seconds
            if isinstance(self.target, Directed):
                fuzz_directed(self.target, Random(self.seed), self.shared, until)
            else:
                self._mutate(self.target, until)
            code = 0
        except BaseException:  # noqa: BLE001 - every error is logged, and this process must end
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _mutate(self, target: Target, until: float) -> None:
        folder = FOLDER / "corpus" / target.name
        corpus = list(inputs_of(target, CORPUS, FOLDER / "corpus"))
        self.shared.corpus = len(corpus)
        for data in fuzz(target, corpus, Random(self.seed), self.shared, until)[-500:]:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{zlib.crc32(data):08x}").write_bytes(data)

    def wait(self) -> str:
        """Wait for the end; return the error report, empty without an error."""
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
        """Save the running group or seed, and print the command that runs it again."""
        again = path = FOLDER / "findings" / f"{self.target.name}-{self.seed}"
        _, _, seed, inputs = read_shared(self.shared_path)
        print(f"\n{self.target.name}: FOUND with seed {self.seed}:\n{report}")
        if isinstance(self.target, Directed):
            again = Path(f"{self.target.name}-{seed}")
        else:
            write_group(path, seed, inputs)
            print(f"the inputs: {path}")
        print(f"again: {sys.executable} -m tests.fuzz --reproduce {again}", flush=True)


def inputs_of(target: Target, *folders: Path) -> Iterator[bytes]:
    """Yield the inputs to mutate: initial ones, and those that reached new code."""
    for data in target.inputs():
        yield data[:MAX_BYTES]
    for folder in folders:
        for path in sorted((folder / target.name).glob("*")):
            yield path.read_bytes()[:MAX_BYTES]


class Count:
    """Counts of one target."""

    def __init__(self) -> None:
        self.executions = self.findings = self.slices = 0
        self.seconds = 0.0

    def __str__(self) -> str:
        rate = self.executions / max(self.seconds, 1e-9)
        return f"{self.executions:>13,} executions, {rate:>9,.0f} a second, {self.findings} findings"


def run(targets: Mapping[str, Target | Directed], names: Sequence[str], seed: int, seconds: float) -> dict[str, Count]:
    """Fuzz targets in turn, each at least once."""
    slice_seconds = min(max(seconds / len(names), 1.0), 60.0)
    until = time.monotonic() + seconds
    counts = {name: Count() for name in names}
    while (left := until - time.monotonic()) > 0 or not all(count.slices for count in counts.values()):
        target = targets[names[seed % len(names)]]
        count = counts[target.name]
        if left > 0 or not count.slices:
            began = time.monotonic()
            slice_ = Slice(target, seed, min(max(left, 1.0), slice_seconds))
            report = slice_.wait()
            executions, corpus, _, _ = read_shared(slice_.shared_path)
            count.slices += 1
            count.seconds += time.monotonic() - began
            count.executions += executions
            print(f"seed {seed}: {target.name:18} {executions:>10,} executions, corpus {corpus:>6,}", flush=True)
            if report:
                count.findings += 1
                slice_.save(report)
        seed += 1
    slice_.shared_path.unlink()
    slice_.log_path.unlink()
    return counts


def reproduce(targets: Mapping[str, Target | Directed], path: Path) -> None:
    """Run a finding again: a saved group, or a seed of a directed target.

    Raises:
        AssertionError: it still fails.
    """
    name, _, seed = path.name.rpartition("-")
    target = targets[name]
    if isinstance(target, Directed):
        target.run(int(seed))
    else:
        check_group(target, *read_group(path))


def main() -> int:
    """Fuzz, or run a finding again; return 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--reproduce", type=Path)
    arguments = parser.parse_args()
    use_modules(arguments.modules)
    # Imported only after the instrumented modules are in place.
    from tests.fuzz.targets import TARGETS

    targets: dict[str, Target | Directed] = {**TARGETS, **directed_targets()}
    if arguments.reproduce is not None:
        reproduce(targets, arguments.reproduce)
        print("it no longer fails")
        return 0
    weights = {name: DIRECTED_WEIGHT if name.startswith(DIRECTED) else WEIGHTS.get(name, 1) for name in targets}
    names = arguments.names or [name for name in targets for _ in range(weights[name])]
    for name in dict.fromkeys(names):
        target = targets[name]
        if not isinstance(target, Directed):
            # Import lazily imported modules once.
            check_group(target, 1, list(target.inputs())[:3])
    began = time.monotonic()
    counts = run(targets, names, arguments.seed, arguments.seconds)
    took = time.monotonic() - began
    for name, count in counts.items():
        print(f"{name:18} {count}")
    total = sum(count.executions for count in counts.values())
    findings = sum(count.findings for count in counts.values())
    print(f"{total:,} executions in {took:.0f} s, {total / took:,.0f} a second; {findings} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
