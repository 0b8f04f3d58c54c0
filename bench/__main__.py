"""Measure reads and writes of the three formats on this machine, each beside its limits and the official clients.

    python -m bench                       everything, of all three; takes more than an hour
    python -m bench nsq tubemq            of these two
    python -m bench --quick               reading and writing 100 B with all three, less often: for tuning
    python -m bench --quick --against COMMIT      this checkout and that commit in turn, and the ratios
    python -m bench pulsar --cases 'read 100 B.*1 partition' --only ours null --repeats 5
    python -m bench pulsar --cases stream         also: queue, limits, guarantees, scale
    python -m bench --update-readme       keep the results in bench/, and fill the documents' tables and charts
    python -m bench loops                 every loop alone, without broker or Spark; or decode, encode, avro, json, ...

A case is named by its table and its row: `write 100 B, LZ4, 4 partitions`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bench import loops, report
from bench.engine import ROOT, AnyEngine, Engine, OtherEngine
from bench.runner import Case, Setup, measure

PROTOCOLS = ("pulsar", "tubemq", "nsq")
QUICK_SCALE = 0.25


def main() -> None:
    """Parse the command line and run its commands."""
    if sys.argv[1:2] and sys.argv[1] in {*loops.LOOPS, loops.ALL}:
        loops.main(*sys.argv[1:])
        return
    given = _parse(sys.argv[1:])
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="spark-mq-source-bench-") as temporary:
        folder = Path(temporary)
        with _engines(given.against, folder) as engines:
            for protocol in given.protocols:
                parts = _run(protocol, given, engines, folder / protocol)
                for name, part in parts.items():
                    table = report.growth_table if name == "scale" else report.table
                    shown = report.comparison(part, given.against) if given.against else table(part)
                    print(f"\n{protocol}, {name}\n\n{shown}")
                if given.output is not None:
                    report.save(protocol, parts, given.output)
    say(f"took {(time.monotonic() - started) / 60:.1f} minutes")
    if given.update_readme:
        subprocess.run([sys.executable, "-m", "tools.docs"], cwd=ROOT, check=True)


def _run(
    protocol: str, given: argparse.Namespace, engines: Mapping[str, AnyEngine], folder: Path
) -> dict[str, report.Document]:
    """Measure a protocol; return its parts by name, as JSON."""
    folder.mkdir()
    module = importlib.import_module(f"bench.{protocol}")
    machine = report.describe_machine(module.BROKER)
    wanted = re.compile(given.cases or (module.QUICK if given.quick else ""))
    own = next((engine for engine in engines.values() if isinstance(engine, Engine)), None)
    setup = Setup(own or Engine(folder), folder, given.scale, given.triggers)
    parts: dict[str, report.Document] = {}
    say(f"starting {module.BROKER}")
    with module.running(setup) as cases:
        for case in cases:
            chosen = _chosen(case, given)
            if wanted.search(f"{case.part} {case.name}") and chosen.contenders:
                found = measure(chosen, engines, given.repeats, say)
                if found.samples:
                    part = parts.setdefault(case.part, {"part": case.part, "machine": machine, "cases": []})
                    part["cases"].append(found.document())
    return parts


def _chosen(case: Case, given: argparse.Namespace) -> Case:
    def wanted(name: str, role: str) -> bool:
        if given.against:
            return role == "ours" and case.part in {"read", "write"} and name in (given.only or [name])
        return name in given.only if given.only else not (given.quick and role == "peer")

    return replace(case, contenders=[one for one in case.contenders if wanted(one.name, one.role)])


@contextlib.contextmanager
def _engines(against: str | None, folder: Path) -> Iterator[Mapping[str, AnyEngine]]:
    if against is None:
        yield {"this": Engine(folder)}
        return
    other = folder / "other"
    say(f"compiling {against}")
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(other), against], cwd=ROOT, check=True)
    with contextlib.ExitStack() as stack:
        stack.callback(subprocess.run, ["git", "worktree", "remove", "--force", str(other)], cwd=ROOT, check=True)
        subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"],
            cwd=other, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        engines = {}
        for name, tree in (("this", ROOT), ("other", other)):
            engines[name] = stack.enter_context(contextlib.closing(OtherEngine(tree, folder / f"files-{name}")))
            if not engines[name].package.startswith(str(tree)):
                raise RuntimeError(f"{engines[name].package} would be measured, not {tree}")
        if len({engine.implementation for engine in engines.values()}) > 1:
            raise RuntimeError("one of the two is not compiled: `make setup`")
        yield engines


def say(text: str) -> None:
    """Print one line of progress."""
    print(f"[bench] {text}", flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("protocols", nargs="*", metavar="PROTOCOL", help=f"of {', '.join(PROTOCOLS)}")
    parser.add_argument(
        "--quick", action="store_true", help="a case or two of each, a quarter of the messages, no peers"
    )
    parser.add_argument("--cases", metavar="REGEX", help="only cases in whose names this is found")
    parser.add_argument("--only", nargs="+", metavar="CONTENDER", help="only these")
    parser.add_argument("--against", metavar="COMMIT", help="compare our rates with those of this commit")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--scale", type=float, help="of the numbers of messages (default: 1, or 0.25 if quick)")
    parser.add_argument("--triggers", type=int, default=60, help="of each measurement of streaming queries")
    parser.add_argument("--output", type=Path, metavar="DIR", help="where results are kept")
    parser.add_argument(
        "--update-readme", action="store_true", help="--output bench, and the tables of README.md and the site from it"
    )
    parsed = parser.parse_args(arguments)
    unknown = set(parsed.protocols) - set(PROTOCOLS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(PROTOCOLS)}")
    parsed.protocols = parsed.protocols or PROTOCOLS
    parsed.scale = parsed.scale or (QUICK_SCALE if parsed.quick else 1.0)
    if parsed.update_readme:
        if parsed.quick or parsed.only or parsed.scale != 1:
            parser.error("README.md has the whole of a table, at full scale: no --quick, --only and --scale")
        parsed.output = report.FOLDER
    if parsed.against and parsed.output:
        parser.error("--against only prints")
    return parsed


if __name__ == "__main__":
    main()
