"""`make bench`, `python -m bench`: starts a broker, fills topics, measures all contenders in turn, reports.

    python -m bench                      everything; writes results.json and results.png beside this file
    python -m bench --quick              one size, one codec, one partition: for tuning, writes nothing
    python -m bench rates --sizes 100 --codecs none lz4 --partitions 1 --only ours null
    python -m bench memory               only the 3 GiB partition
    python -m bench planning             only the 1,000 partitions
    python -m bench stream               streaming queries; with --quick one partition, once
    python -m bench write                writing; with --quick one partition, uncompressed
    python -m bench decode               the decoder alone, without broker and Spark
    python -m bench encode               the encoder alone

With --service-url and --admin-url it uses a broker that runs (`make brokers` starts one), and what is published there
is used again by the next run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench.limits import LARGE_PARTITION, measure_memory, measure_planning
from bench.publish import Workload, create_topic, publish, use_namespace
from bench.readers import CONTENDERS, JVM, Case, spark_session, warm_broker, warm_up
from bench.report import CaseResult, Results, StreamResult, describe_machine
from bench.stream import CATCH_UP_MESSAGES, TRIGGERS, measure_stream
from bench.writers import WRITERS, WRITTEN_MESSAGES, WriteCase, warm_broker_up, warm_up_writers
from brokers.pulsar import VERSION, PulsarStandalone

HERE = Path(__file__).resolve().parent

MESSAGES = {100: 8_000_000, 1024: 1_500_000}
"""So many that a read takes seconds and the fixed costs of a Spark job weigh little."""


BROKER_SETTINGS = {"readBufferSizeBytes": str(1 << 20)}
"""The stock bookie fetches an entry of 100 KB in 26 reads of 4 KiB, which halves what any reader gets."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Where the broker is."""

    service_url: str
    admin_url: str

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the binary protocol."""
        parts = urlsplit(self.service_url)
        return parts.hostname or "127.0.0.1", parts.port or 6650

    def fill(self, workload: Workload) -> None:
        """Publishes a workload, unless an earlier run has."""
        if not create_topic(self.admin_url, workload.topic, workload.partitions):
            say(f"{workload.topic} is there already")
            return
        rate = publish(self.address, workload.topic, workload)
        say(
            f"published {workload.topic} at {rate / 1e6:.2f} M messages/s, {rate * workload.value_bytes / 1e6:.0f} MB/s"
        )


def main() -> None:
    """Parses the command line and runs what it asks for."""
    if sys.argv[1:2] in (["decode"], ["encode"], ["nsq"], ["tubemq"]):
        # Imported by name: these parts neither need nor wait for anything else here.
        importlib.import_module(f"bench.{sys.argv[1]}").main(sys.argv[2:])
        return
    arguments = _parse(sys.argv[1:])
    parts = ("rates", "memory", "planning", "stream", "write") if arguments.what == "all" else (arguments.what,)
    workloads = [
        Workload(size, codec, partitions, int(MESSAGES[size] * arguments.scale))
        for partitions, size, codec in itertools.product(arguments.partitions, arguments.sizes, arguments.codecs)
    ]
    started = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="spark-mq-source-bench-") as temporary,
        _broker(arguments, temporary) as broker,
    ):
        folder = Path(temporary)
        results = Results(describe_machine(VERSION))
        use_namespace(broker.admin_url)
        if "rates" in parts:
            results.cases += _rates(workloads, arguments, broker, folder)
        if "memory" in parts:
            broker.fill(LARGE_PARTITION)
            results.memory = measure_memory(broker.service_url, spark_session(1, folder), folder)
        if "planning" in parts:
            results.planning = measure_planning(broker.service_url, broker.admin_url, broker.address)
        if "stream" in parts:
            results.streams += _streams(arguments, broker, folder)
        if "write" in parts:
            results.writes += _writes(arguments, broker, folder)
    print(results.terminal())
    say(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    if arguments.output is not None:
        arguments.output.mkdir(parents=True, exist_ok=True)
        if parts not in {("stream",), ("write",)}:
            results.write_json(arguments.output / "results.json")
        if results.cases:
            results.write_chart(arguments.output / "results.png")
        if results.streams:
            results.write_stream_json(arguments.output / "stream.json")
        if results.writes:
            results.write_write_json(arguments.output / "write.json")
    if arguments.update_readme:
        results.update_readme(HERE.parent / "README.md")


def _rates(
    workloads: Sequence[Workload], arguments: argparse.Namespace, broker: Broker, folder: Path
) -> Iterator[CaseResult]:
    for workload in workloads:
        broker.fill(workload)
    # What was written is written back now, not while the first ones read: that cost them a sixth of their rate.
    os.sync()
    for number, workload in enumerate(workloads):
        case = Case(workload, broker.service_url, spark_session(workload.partitions, folder), folder)
        if number == 0:
            say("reading until the broker's code is compiled")
            warm_broker(case)
        yield _measure(case, [name for name in CONTENDERS if name in arguments.only], arguments.repeats)


def _streams(arguments: argparse.Namespace, broker: Broker, folder: Path) -> Iterator[StreamResult]:
    for partitions in arguments.partitions:
        workload = Workload(100, "none", partitions, int(CATCH_UP_MESSAGES * arguments.scale))
        broker.fill(workload)
        case = Case(workload, broker.service_url, spark_session(partitions, folder), folder)
        say(f"streams of {workload.topic}")
        yield measure_stream(
            case, broker.address, broker.admin_url, repeats=arguments.repeats, triggers=arguments.triggers, say=say
        )


def _writes(arguments: argparse.Namespace, broker: Broker, folder: Path) -> Iterator[CaseResult]:
    names = [name for name in WRITERS if name in arguments.only]
    for number, (partitions, codec) in enumerate(itertools.product(arguments.partitions, arguments.codecs)):
        workload = Workload(100, codec, partitions, int(WRITTEN_MESSAGES * arguments.scale))
        case = WriteCase(workload, broker.service_url, broker.admin_url, spark_session(partitions, folder), folder)
        say(f"writing 100 B, {codec}, {partitions} partitions: warming up")
        if number == 0:
            warm_broker_up(case)
        warm_up_writers(case)
        result = CaseResult(workload, {name: [] for name in names})
        yield _interleaved(result, {name: partial(WRITERS[name], case) for name in names}, arguments.repeats)


def _measure(case: Case, names: Sequence[str], repeats: int) -> CaseResult:
    result = CaseResult(case.workload, {name: [] for name in names})
    say(f"{case.workload.topic}: warming up")
    warm_up(case, names)
    return _interleaved(result, {name: partial(CONTENDERS[name], case) for name in names}, repeats)


def _interleaved(result: CaseResult, contenders: Mapping[str, Callable[[], float]], repeats: int) -> CaseResult:
    for repeat in range(repeats):
        # One of each in turn: what the machine does meanwhile happens to all alike.
        for name, measure in contenders.items():
            result.rates[name].append(measure())
        found = ", ".join(f"{name} {rates[-1] / 1e6:.3f}" for name, rates in result.rates.items())
        say(f"  {repeat + 1}/{repeats} M rows/s: {found}")
    return result


def say(text: str) -> None:
    """One line of progress."""
    print(f"[bench] {text}", flush=True)


@contextlib.contextmanager
def _broker(arguments: argparse.Namespace, folder: str) -> Iterator[Broker]:
    if arguments.service_url is not None:
        yield Broker(arguments.service_url, arguments.admin_url)
        return
    say(f"starting Pulsar {VERSION}")
    with PulsarStandalone(Path(folder) / "broker", overrides=BROKER_SETTINGS, jvm=JVM) as standalone:
        yield Broker(standalone.service_url, standalone.admin_url)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = dict.fromkeys((*CONTENDERS, *WRITERS))
    parser.add_argument(
        "what", nargs="?", default="all", choices=("all", "rates", "memory", "planning", "stream", "write")
    )
    parser.add_argument("--quick", action="store_true", help="rates of 100 B, uncompressed, one partition")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(MESSAGES), choices=list(MESSAGES), metavar="BYTES")
    parser.add_argument("--codecs", nargs="+", default=["none", "lz4"], choices=("none", "lz4"))
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--only", nargs="+", default=list(names), choices=list(names), metavar="CONTENDER",
                        help=f"of {', '.join(names)}")  # fmt: skip
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--triggers", type=int, default=TRIGGERS, help="of each measurement of triggers")
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of messages, e.g. 0.25 to be quick")
    parser.add_argument("--service-url", help="use this running broker")
    parser.add_argument("--admin-url", help="its admin interface")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder of results.json, results.png, stream.json and write.json (default: bench, if all is run)",
    )
    parser.add_argument("--update-readme", action="store_true", help="write the table into README.md")
    parsed = parser.parse_args(arguments)
    if (parsed.service_url is None) != (parsed.admin_url is None):
        parser.error("--service-url and --admin-url belong together")
    if parsed.quick and parsed.what == "stream":
        parsed.partitions, parsed.repeats, parsed.scale = [1], 1, parsed.scale / 3
    elif parsed.quick and parsed.what == "write":
        parsed.partitions, parsed.codecs = [1], ["none"]
    elif parsed.quick:
        parsed.what, parsed.sizes, parsed.codecs, parsed.partitions = "rates", [100], ["none"], [1]
    elif parsed.what == "all" and parsed.output is None:
        parsed.output = HERE
    return parsed


if __name__ == "__main__":
    main()
