"""Results of a run: JSON and tables in Markdown. Nothing but the JSON is read; no protocol is known here.

A file of results has a protocol's parts (`read`, `write`, ...). Each part has the machine it was measured on and its
cases, each case its contenders, and each contender a list of figures for each kind of figure, one for each round.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import linear_regression, median
from typing import Any, Final

from spark_mq_source import implementation

FOLDER: Final = Path(__file__).resolve().parent

Document = dict[str, Any]
"""Of JSON."""


def load(protocol: str, folder: Path = FOLDER) -> Document:
    """Return the results of a protocol: its parts by name, none if there is no file."""
    file = folder / f"{protocol}.json"
    return expanded(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}


def save(protocol: str, parts: Document, folder: Path) -> None:
    """Write results; keep measured parts in the file that are not among these."""
    folder.mkdir(parents=True, exist_ok=True)
    found = load(protocol, folder) | parts
    (folder / f"{protocol}.json").write_text(text_of(found), encoding="utf-8")


def text_of(parts: Document) -> str:
    """Return results as they are kept: a line for each case, labels and roles once for each part.

    Of the figures, `value` keeps its rounds and the others their median, with six significant digits.

    Example:
        >>> ours = {"label": "x", "role": "ours", "beside": "ours", "value": [1234567.8, 0.25], "worker_ns": [9.0, 7.0]}
        >>> parts = {"read": {"part": "read", "machine": {"cores": 2}, "cases": [
        ...     {"name": "c", "unit": "rows/s", "contenders": {"ours": ours}}]}}
        >>> print(text_of(parts), end="")
        {
        "read": {
         "machine": {"cores": 2},
         "contenders": {"ours": ["x", "ours", "ours"]},
         "cases": [
          {"name": "c", "unit": "rows/s", "ours": {"value": [1234570, 0.25], "worker_ns": 8}}
         ]}
        }
        >>> expanded(json.loads(text_of(parts)))["read"]["cases"][0]["contenders"]["ours"]["worker_ns"]
        [8]
    """
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {_text_of_part(part)}" for name, part in parts.items()) + "\n}\n"


def _text_of_part(part: Document) -> str:
    known = {
        name: [one["label"], one["role"], one["beside"]]
        for case in part["cases"]
        for name, one in case["contenders"].items()
    }
    cases = []
    for case in part["cases"]:
        figures = {
            name: {key: _kept(key, rounds) for key, rounds in one.items() if key not in _DESCRIPTION}
            for name, one in case["contenders"].items()
        }
        cases.append("  " + json.dumps({"name": case["name"], "unit": case["unit"], **figures}))
    return (
        f'{{\n "machine": {json.dumps(part["machine"])},\n "contenders": {json.dumps(known)},\n "cases": [\n'
        + ",\n".join(cases)
        + "\n ]}"
    )


_DESCRIPTION: Final = ("label", "role", "beside")


def _kept(figure: str, rounds: Sequence[float]) -> object:
    if figure == "value":
        return [_rounded(one) for one in rounds]
    return _rounded(median(rounds)) if rounds else None


def _rounded(value: float) -> float:
    short = float(f"{value:.6g}")
    return int(short) if short.is_integer() else short


def expanded(kept: Document) -> Document:
    """Return kept results in the form of measurements: every contender with its label and role, and lists of rounds."""
    return {
        name: {
            "part": name,
            "machine": part["machine"],
            "cases": [
                {
                    "name": case["name"],
                    "unit": case["unit"],
                    "contenders": {
                        who: dict(zip(_DESCRIPTION, part["contenders"][who], strict=True))
                        | {key: one if isinstance(one, list) else [one] for key, one in figures.items()}
                        for who, figures in case.items()
                        if who not in {"name", "unit"}
                    },
                }
                for case in part["cases"]
            ],
        }
        for name, part in kept.items()
    }


def middle(contender: Document, figure: str = "value") -> float | None:
    """Return the median of a contender's rounds.

    Example:
        >>> middle({"value": [3.0, 1.0, 2.0]}), middle({"value": [1.0]}, "worker_ns")
        (2.0, None)
    """
    return median(contender[figure]) if contender.get(figure) else None


def ratio(case: Document, ours: str, other: str) -> float | None:
    """Return median over median: the rounds are interleaved, so both ran on the same machine state.

    Example:
        >>> ratio({"contenders": {"a": {"value": [3.0, 1.0, 2.0]}, "b": {"value": [4.0]}}}, "a", "b")
        0.5
    """
    one, two = (middle(case["contenders"].get(name, {})) for name in (ours, other))
    return one / two if one is not None and two is not None else None


def cell(case: Document, name: str) -> str:
    """Return a contender's cell of a table: its figure; in brackets the figure of its role.

    Example:
        >>> ours = {"role": "ours", "value": [2e6], "worker_ns": [210.4]}
        >>> peer = {"role": "peer", "beside": "ours", "value": [3.1e5]}
        >>> case = {"unit": "rows/s", "contenders": {"ours": ours, "raw": peer | {"role": "limit"}, "client": peer}}
        >>> [cell(case, name) for name in ("ours", "raw", "client", "other")]
        ['2.00 (210 ns)', '0.310 (6.45)', '0.310 (6.5x)', '']
    """
    contender = case["contenders"].get(name)
    if contender is None:
        return ""
    value = _figure(middle(contender) or 0, case["unit"])
    if contender["role"] == "ours":
        busy = middle(contender, "worker_ns")
        return value if busy is None else f"{value} ({busy:,.0f} ns)"
    beside = ratio(case, contender["beside"], name)
    if beside is None:
        return value
    return (
        f"{value} ({beside:.2f})"
        if contender["role"] == "limit"
        else f"{value} ({beside:.{1 if beside < 100 else 0}f}x)"
    )


def table(part: Document) -> str:
    """Return a part in Markdown: a row for each case, a column for each contender, and the conditions below."""
    names = contenders(part)
    rates = all(case["unit"] == "rows/s" for case in part["cases"])
    head = ["M rows/s" if rates else "", *names.values()]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * len(names)]
    for case in part["cases"]:
        unit = "M rows/s" if case["unit"] == "rows/s" else case["unit"]
        title = case["name"] if rates else f"{case['name']}, {unit}"
        lines.append("| " + " | ".join([title, *(cell(case, name) for name in names)]) + " |")
    return "\n".join([*lines, "", note(part), ""])


def growth_table(part: Document) -> str:
    """Return the part in Markdown: seconds, in brackets the CPU time of both, and the slopes of the latter.

    Example:
        >>> sizes = {f"n{n}": {"label": str(n), "value": [n / 100], "own_s": [n / 1e3], "broker_s": [n / 5e2]}
        ...          for n in (100, 1000)}
        >>> print(growth_table({"cases": [{"name": "planning", "contenders": sizes}]}).splitlines()[2])
        | planning | 1.0 (0.10 + 0.20) | 10.0 (1.00 + 2.00) | 1.00 + 2.00 |
    """
    names = sorted({name for case in part["cases"] for name in case["contenders"]}, key=lambda name: int(name[1:]))
    head = ["seconds (CPU time: here + broker)", *(f"{int(name[1:]):,}" for name in names), "slope, ms each"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for case in part["cases"]:
        found = case["contenders"]
        cells = [
            f"{middle(found[name]):.1f} ({middle(found[name], 'own_s'):.2f} + {middle(found[name], 'broker_s'):.2f})"
            if name in found
            else ""
            for name in names
        ]
        sizes = [int(name[1:]) for name in names if name in found]
        slopes = [
            1000 * linear_regression(sizes, [middle(found[f"n{size}"], figure) or 0 for size in sizes]).slope
            for figure in ("own_s", "broker_s")
            if len(sizes) > 1
        ]
        lines.append("| " + " | ".join([case["name"], *cells, " + ".join(f"{slope:.2f}" for slope in slopes)]) + " |")
    return "\n".join(lines) + "\n"


def contenders(part: Document) -> dict[str, str]:
    """Return the labels of all contenders by name, in the order of their first cases."""
    return {name: one["label"] for case in part["cases"] for name, one in case["contenders"].items()}


def drawn(case: Document) -> Document:
    """Return the contenders of a case in charts: those in Spark, and other clients.

    The times of a socket and of ours without Spark are in the tables: beside them, the other bars would be too short.
    """
    return {name: one for name, one in case["contenders"].items() if not name.startswith(("alone", "drain"))}


def note(part: Document) -> str:
    """Return the rounds, the place and the versions of a part's measurement."""
    machine = part["machine"]
    versions = machine["versions"]
    client = f", pulsar-client {versions['pulsar-client']}" if "pulsar_client" in contenders(part) else ""
    return (
        f"Medians of {runs(part)} interleaved runs. {machine['date'][:10]}, {machine['cores']} cores "
        f"({machine['cpu']}), {machine['broker']} and Spark {versions['pyspark']} on the same machine{client}."
    )


def runs(part: Document) -> str:
    """Return how many rounds there were, in words; single measurements aside.

    Example:
        >>> case = {"contenders": {"a": {"value": [1.0, 2.0]}, "b": {"value": [1.0, 2.0, 3.0]}}}
        >>> runs({"cases": [case]})
        '2 to 3'
    """
    counts = {len(one["value"]) for case in part["cases"] for one in case["contenders"].values()}
    counts = counts - {1} or counts
    return str(max(counts)) if len(counts) == 1 else f"{min(counts)} to {max(counts)}"


def comparison(part: Document, other: str) -> str:
    """Return a part that two commits have run, in Markdown, with the median and the range of the rounds' ratios.

    Example:
        >>> found = {"ours this": {"label": "x", "value": [2e6, 4e6], "worker_ns": [90.0, 90.0]},
        ...          "ours other": {"label": "x", "value": [2e6, 2e6], "worker_ns": [100.0, 100.0]}}
        >>> part = {"cases": [{"name": "c", "unit": "rows/s", "contenders": found}]}
        >>> print(comparison(part, "abc").splitlines()[2])
        | c: x | 2.00 | 3.00 | 1.500 (1.000 to 2.000) | 100 | 90 | 0.900 (0.900 to 0.900) |
    """
    head = ["", f"{other}, M rows/s", "this", "this / other", f"{other}, worker ns a row", "this", "this / other"]
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for case in part["cases"]:
        for name, this in case["contenders"].items():
            if not name.endswith(" this"):
                continue
            before = case["contenders"][f"{name.removesuffix(' this')} other"]
            cells = [f"{case['name']}: {this['label']}"]
            for figure in ("value", "worker_ns"):
                scale = 1e-6 if figure == "value" else 1
                each = [one / two for one, two in zip(this[figure], before[figure], strict=True)]
                digits = 2 if figure == "value" else 0
                cells += [f"{(middle(one, figure) or 0) * scale:.{digits}f}" for one in (before, this)]
                cells.append(f"{median(each):.3f} ({min(each):.3f} to {max(each):.3f})")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def describe_machine(broker: str) -> Document:
    """Return the machine and versions of the measurement."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    memory = next((int(line.split()[1]) // 2**20 for line in _lines("/proc/meminfo") if "MemTotal" in line), None)
    java = subprocess.run(["java", "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    packages = ("pyspark", "pyarrow", "pulsar-client", "lz4", "crc32c", "protobuf", "spark-mq-source")
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cores": os.cpu_count(),
        "cpu": cpu,
        "memory_gib": memory,
        "load_before": os.getloadavg()[0],
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": java[0] if java else None,
        "broker": broker,
        "decoder": implementation(),
        "versions": {name: version(name) for name in packages},
    }


def _lines(path: str) -> Iterable[str]:
    file = Path(path)
    return file.read_text().splitlines() if file.exists() else ()


def _figure(value: float, unit: str) -> str:
    """Return three significant digits, as in a table.

    Example:
        >>> _figure(1_840_000, "rows/s"), _figure(2_500, "rows/s"), _figure(146.2, "ms"), _figure(0.42, "s")
        ('1.84', '0.0025', '146', '0.420')
    """
    if unit != "rows/s":
        return f"{value:.0f}" if value >= 10 else f"{value:#.3g}"
    return f"{value / 1e6:#.3g}" if value >= 10_000 else f"{value / 1e6:.4f}"
