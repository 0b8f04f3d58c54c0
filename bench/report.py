"""What a run found: a table for the terminal, JSON, a chart, and the table in README.md."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from bench.publish import Workload
from spark_mq_source import implementation

__all__ = ["CaseResult", "Results", "StreamResult", "describe_machine", "replaced", "runs"]

LABELS = {
    "ours": "pulsar-native",
    "null": "null Arrow source",
    "ours_value": "pulsar-native, value only",
    "null_value": "null source, value only",
    "pulsar_client": "pulsar-client (C++/Python)",
    "pulsar_perf": "pulsar-perf (Java)",
}
WRITE_LABELS = LABELS | {"null": "null Arrow sink", "ready_made": "ready-made batches"}
COLOURS = {
    "ours": "#1b6ca8",
    "null": "#9fb8c8",
    "ours_value": "#23a08d",
    "null_value": "#a9d3cb",
    "pulsar_client": "#d98032",
    "pulsar_perf": "#b5533c",
}

RATIOS = (
    ("ours", "null"),
    ("ours", "pulsar_client"),
    ("ours", "pulsar_perf"),
    ("ours_value", "null_value"),
    ("ours_value", "pulsar_client"),
    ("ours_value", "pulsar_perf"),
    ("ours", "ready_made"),
)


def runs(rates: Iterable[Mapping[str, Sequence[float]]]) -> str:
    """How many repeats there are of each contender of each case, in words.

    Example:
        >>> runs([{"ours": [1.0, 2.0], "null": [1.0, 2.0]}, {"ours": [1.0, 2.0, 3.0]}])
        '2 to 3'
    """
    counts = {len(each) for found in rates for each in found.values()}
    return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


@dataclass
class CaseResult:
    """The rates of one workload.

    Attributes:
        workload: what was read, or written.
        rates: rows a second of every repeat, by contender.
    """

    workload: Workload
    rates: dict[str, list[float]] = field(default_factory=dict)

    def median(self, name: str) -> float | None:
        """The median rate; None for a contender that did not run."""
        return median(self.rates[name]) if self.rates.get(name) else None

    def ratio(self, ours: str, other: str) -> float | None:
        """Median over median: the repeats are interleaved, so both saw the same machine.

        Example:
            >>> CaseResult(Workload(100, "none", 1, 1), {"a": [3.0, 1.0, 2.0], "b": [4.0]}).ratio("a", "b")
            0.5
        """
        a, b = self.median(ours), self.median(other)
        return a / b if a is not None and b is not None else None

    def of_both_in_turn(self, ours: str, one: str, other: str) -> float | None:
        """Our rate over that of two contenders which do its halves, one after the other, on all the cores there are.

        Above 1, the halves are done at the same time; below, it costs more than the two do.

        Example:
            >>> case = CaseResult(Workload(100, "none", 1, 1), {"a": [1.0], "b": [2.0], "c": [2.0]})
            >>> case.of_both_in_turn("a", "b", "c")
            1.0
        """
        a, b = self.ratio(ours, one), self.ratio(ours, other)
        return a + b if a is not None and b is not None else None

    def terminal(self, labels: Mapping[str, str]) -> list[str]:
        """The lines of a terminal."""
        lines = [f"\n{_title(self.workload)}, {self.workload.messages:,} messages"]
        for name, rates in self.rates.items():
            spread = f"{min(rates) / 1e6:6.3f} .. {max(rates) / 1e6:.3f}"
            lines.append(f"  {labels[name]:28} {median(rates) / 1e6:6.3f} M rows/s   ({spread})")
        for ours, other in RATIOS:
            ratio = self.ratio(ours, other)
            if ratio is not None:
                lines.append(f"  {labels[ours] + ' / ' + labels[other]:58} {ratio:6.2f}")
        return lines

    def document(self) -> dict[str, Any]:
        """What goes into a JSON file, each repeat included."""
        return {
            **asdict(self.workload),
            "rows_per_second": self.rates,
            "median": {name: self.median(name) for name in self.rates},
            "ratios": {f"{a}/{b}": r for a, b in RATIOS if (r := self.ratio(a, b)) is not None},
        }


@dataclass
class StreamResult:
    """How queries over one number of partitions run; `ours` and `null` in each mapping.

    Attributes:
        partitions: topic-partitions, and the null source's partitions.
        messages: how many there were to catch up with.
        rate: messages a second that were published while triggers were measured.
        rows_per_second: of catching up, every repeat.
        triggers_ms: of every repeat, the medians of a trigger and of its parts, by Spark's names.
        latencies_ms: percentiles from publish to foreachBatch; ours alone.
    """

    partitions: int
    messages: int
    rate: int
    rows_per_second: dict[str, list[float]] = field(default_factory=dict)
    triggers_ms: dict[str, list[dict[str, float]]] = field(default_factory=dict)
    latencies_ms: dict[str, float] = field(default_factory=dict)

    def add_rates(self, rates: Mapping[str, float]) -> None:
        """One repeat of catching up."""
        for name, rate in rates.items():
            self.rows_per_second.setdefault(name, []).append(rate)

    def add_triggers(self, parts: Mapping[str, dict[str, float]]) -> None:
        """One repeat of triggers."""
        for name, medians in parts.items():
            self.triggers_ms.setdefault(name, []).append(medians)

    def trigger_ms(self, name: str, part: str = "triggerExecution") -> float:
        """The median of the repeats."""
        return median(medians.get(part, 0) for medians in self.triggers_ms[name])

    @property
    def catch_up_ratio(self) -> float:
        """Our rate over the null source's."""
        return median(self.rows_per_second["ours"]) / median(self.rows_per_second["null"])

    @property
    def trigger_ratio(self) -> float:
        """Our trigger time over the null source's."""
        return self.trigger_ms("ours") / self.trigger_ms("null")

    def terminal(self) -> list[str]:
        """The lines of a terminal."""
        lines = [f"\nstream, {_count(self.partitions)}, caught up with {self.messages:,} messages"]
        for name, rates in self.rows_per_second.items():
            spread = f"{min(rates) / 1e6:6.3f} .. {max(rates) / 1e6:.3f}"
            lines.append(f"  {LABELS[name]:28} {median(rates) / 1e6:6.3f} M rows/s   ({spread})")
        lines.append(f"  {'rate / null Arrow source':58} {self.catch_up_ratio:6.2f}")
        for name, repeats in self.triggers_ms.items():
            parts = {part: self.trigger_ms(name, part) for part in repeats[0] if part != "triggerExecution"}
            shown = ", ".join(f"{part} {ms:.0f}" for part, ms in parts.items())
            lines.append(f"  {LABELS[name]:28} {self.trigger_ms(name):6.0f} ms a trigger ({shown})")
        lines.append(f"  {'trigger time / null Arrow source':58} {self.trigger_ratio:6.2f}")
        shown = ", ".join(f"{name} {ms:.0f} ms" for name, ms in self.latencies_ms.items())
        return [*lines, f"  publish to foreachBatch at {self.rate:,} messages/s: {shown}"]


@dataclass
class Results:
    """Everything one run measured."""

    machine: dict[str, Any]
    cases: list[CaseResult] = field(default_factory=list)
    streams: list[StreamResult] = field(default_factory=list)
    writes: list[CaseResult] = field(default_factory=list)
    memory: dict[str, dict[str, int]] | None = None
    planning: dict[str, float] | None = None

    def terminal(self) -> str:
        """The tables of a terminal."""
        lines: list[str] = []
        for case in self.cases:
            lines += case.terminal(LABELS)
        for stream in self.streams:
            lines += stream.terminal()
        for write in self.writes:
            lines += write.terminal(WRITE_LABELS)
        return "\n".join([*lines, "", *self._bounds()])

    def markdown(self) -> str:
        """The table of README.md."""
        head = ["messages", "pulsar-native", "of the null source", "value only", "of the null source"]
        head += ["pulsar-client", "pulsar-perf (Java)"]
        rows = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
        for case in self.cases:
            cells = [
                _title(case.workload),
                _millions(case.median("ours")),
                _decimal(case.ratio("ours", "null")),
                _millions(case.median("ours_value")),
                _decimal(case.ratio("ours_value", "null_value")),
                _against(case.median("pulsar_client"), case.ratio("ours", "pulsar_client")),
                _against(case.median("pulsar_perf"), case.ratio("ours", "pulsar_perf")),
            ]
            rows.append("| " + " | ".join(cells) + " |")
        machine = self.machine
        note = (
            f"Million rows a second, medians of {runs(case.rates for case in self.cases)} interleaved runs; in "
            f"brackets, how many times as fast pulsar-native with its default columns is. {self._where()}, "
            f"pulsar-client {machine['versions']['pulsar-client']}."
        )
        return "\n".join([*rows, "", note, *self._bounds(), ""])

    def stream_markdown(self) -> str:
        """The table of README.md about streaming."""
        head = ["stream", "catching up", "of the null source", "a trigger", "of the null source"]
        head += ["publish to foreachBatch, median", "99 %"]
        rows = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
        for stream in self.streams:
            cells = [
                _count(stream.partitions),
                f"{_millions(median(stream.rows_per_second['ours']))} M rows/s",
                _decimal(stream.catch_up_ratio),
                f"{stream.trigger_ms('ours'):.0f} ms",
                _decimal(stream.trigger_ratio),
                *(f"{ms:.0f} ms" for ms in stream.latencies_ms.values()),
            ]
            rows.append("| " + " | ".join(cells) + " |")
        first = self.streams[0]
        note = (
            f"Catching up with {first.messages:,} messages of 100 B (`availableNow`); triggers every 200 ms at "
            f"{first.rate:,} messages a second. Medians of {len(first.triggers_ms['ours'])} interleaved runs. "
            f"{self._where()}."
        )
        return "\n".join([*rows, "", note, ""])

    def write_markdown(self) -> str:
        """The table of README.md about writing."""
        head = ["messages", "pulsar-native", "of the null sink", "of ready-made batches", "of both in turn"]
        head += ["pulsar-client", "pulsar-perf (Java)"]
        rows = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
        for case in self.writes:
            cells = [
                _title(case.workload),
                _millions(case.median("ours")),
                _decimal(case.ratio("ours", "null")),
                _decimal(case.ratio("ours", "ready_made")),
                _decimal(case.of_both_in_turn("ours", "null", "ready_made")),
                _against(case.median("pulsar_client"), case.ratio("ours", "pulsar_client")),
                _against(case.median("pulsar_perf"), case.ratio("ours", "pulsar_perf")),
            ]
            rows.append("| " + " | ".join(cells) + " |")
        note = (
            f"Writing {self.writes[0].workload.messages:,} rows of one column, `value`, from the same DataFrame. "
            f"Million rows a second, medians of {runs(case.rates for case in self.writes)} interleaved runs; in "
            f"brackets, how many times as fast pulsar-native is. {self._where()}, "
            f"pulsar-client {self.machine['versions']['pulsar-client']}."
        )
        return "\n".join([*rows, "", note, ""])

    def _where(self) -> str:
        machine = self.machine
        return (
            f"{machine['date'][:10]}, {machine['cores']} cores ({machine['cpu']}), broker and Spark on the same "
            f"machine; Spark {machine['versions']['pyspark']}, Pulsar {machine['broker']}"
        )

    def _bounds(self) -> list[str]:
        lines = []
        if self.memory is not None:
            grown = {name: measured["growth_bytes"] / 2**20 for name, measured in self.memory.items()}
            lines.append(
                f"Reading a 3 GiB partition grows Spark's Python worker by {grown['spark_worker']:.0f} MiB "
                f"(the reader alone: {grown['reader']:.0f} MiB)."
            )
        if self.planning is not None:
            lines.append(
                f"Planning a topic of 1,000 partitions takes {self.planning['topics_loaded']:.1f} s "
                f"({self.planning['topics_not_loaded']:.1f} s where the broker has yet to load them)."
            )
        return lines

    def write_stream_json(self, path: Path) -> None:
        """What was measured of streams, each repeat included."""
        streams = [
            asdict(stream) | {"ratios": {"catch_up": stream.catch_up_ratio, "trigger": stream.trigger_ratio}}
            for stream in self.streams
        ]
        path.write_text(json.dumps({"machine": self.machine, "streams": streams}, indent=2) + "\n")

    def write_write_json(self, path: Path) -> None:
        """What was measured of writing, each repeat included."""
        content = {"machine": self.machine, "cases": [case.document() for case in self.writes]}
        path.write_text(json.dumps(content, indent=2) + "\n")

    def write_json(self, path: Path) -> None:
        """Everything, each repeat included."""
        content = {
            "machine": self.machine,
            "cases": [case.document() for case in self.cases],
            "memory": self.memory,
            "planning_seconds": self.planning,
        }
        path.write_text(json.dumps(content, indent=2) + "\n")

    def write_chart(self, path: Path) -> None:
        """Bars of all medians with their ranges, a panel for each size and codec."""
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot as plt

        panels = sorted({(c.workload.value_bytes, c.workload.codec != "none", c.workload.codec) for c in self.cases})
        figure, axes = plt.subplots(
            len(panels), 1, figsize=(8, 1.2 + 2.3 * len(panels)), layout="constrained", squeeze=False
        )
        for axis, (value_bytes, _, codec) in zip(axes[:, 0], panels, strict=True):
            cases = [c for c in self.cases if (c.workload.value_bytes, c.workload.codec) == (value_bytes, codec)]
            names = [name for name in LABELS if any(c.rates.get(name) for c in cases)]
            for position, name in enumerate(names):
                found = [(n, [r / 1e6 for r in c.rates[name]]) for n, c in enumerate(cases) if c.rates.get(name)]
                middles = [median(rates) for _, rates in found]
                axis.barh(
                    [n + (position - len(names) / 2 + 0.5) * 0.8 / len(names) for n, _ in found],
                    middles,
                    height=0.75 / len(names),
                    color=COLOURS[name],
                    label=LABELS[name],
                    xerr=[
                        [m - min(rates) for m, (_, rates) in zip(middles, found, strict=True)],
                        [max(rates) - m for m, (_, rates) in zip(middles, found, strict=True)],
                    ],
                    error_kw={"elinewidth": 0.8, "ecolor": "#444444"},
                )
            axis.set_yticks(range(len(cases)), [_count(c.workload.partitions) for c in cases])
            axis.invert_yaxis()
            axis.set_title(f"{_size(value_bytes)}, {_codec(codec)}", fontsize=10, loc="left")
            axis.spines[["top", "right"]].set_visible(False)
        axes[-1, 0].set_xlabel("million rows a second (median; lines: slowest to fastest run)")
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper center", ncols=3, fontsize=8, frameon=False)
        figure.savefig(path, dpi=130)
        plt.close(figure)

    def update_readme(self, path: Path) -> None:
        """Replaces what stands between the markers of what was measured.

        Raises:
            ValueError: the file has no such markers.
        """
        text = path.read_text()
        if self.cases:
            text = replaced(text, "bench", self.markdown())
        if self.streams:
            text = replaced(text, "bench-stream", self.stream_markdown())
        if self.writes:
            text = replaced(text, "bench-write", self.write_markdown())
        path.write_text(text)


def describe_machine(broker_version: str) -> dict[str, Any]:
    """What the numbers were measured on and with."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = next((int(line.split()[1]) // 2**20 for line in _lines("/proc/meminfo") if "MemTotal" in line), None)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    packages = ("pyspark", "pyarrow", "pulsar-client", "lz4", "crc32c", "protobuf", "spark-mq-source")
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_gib": memory,
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java[0] if java else None,
        "broker": broker_version,
        "decoder": implementation(),
        "versions": {name: version(name) for name in packages},
    }


def _lines(path: str) -> Sequence[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else ()


def replaced(text: str, part: str, table: str) -> str:
    """The text with the table between the markers of this part of the benchmark.

    Raises:
        ValueError: it has no such markers.
    """
    begin, end = f"<!-- {part}:begin -->", f"<!-- {part}:end -->"
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"README.md has no {begin} ... {end}")
    return f"{before}{begin}\n{table}{end}{after}"


def _size(value_bytes: int) -> str:
    return f"{value_bytes} B" if value_bytes % 1024 else f"{value_bytes // 1024} KiB"


def _codec(codec: str) -> str:
    return {"none": "uncompressed", "lz4": "LZ4"}[codec]


def _count(partitions: int) -> str:
    return "1 partition" if partitions == 1 else f"{partitions} partitions"


def _title(workload: Workload) -> str:
    return f"{_size(workload.value_bytes)}, {_codec(workload.codec)}, {_count(workload.partitions)}"


def _millions(rate: float | None) -> str:
    return "" if rate is None else f"{rate / 1e6:.2f}"


def _decimal(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _against(rate: float | None, ratio: float | None) -> str:
    return _millions(rate) + ("" if ratio is None else f" ({ratio:.1f}x)")
