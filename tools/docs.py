"""Generate parts of README.md and of the site's pages, and check the site: ``python -m tools.docs [--check]``.

A generated part stands between ``<!-- WHAT:OF -->`` and ``<!-- end -->``; WHAT is one of `PARTS`. With ``--check``
nothing is written, and a part that differs from the code, or from the results in ``bench/``, is an error. So are a page
that the navigation of `mkdocs.yml` does not list, an entry of the navigation without a page, and a picture or
download that is missing or that no page shows. The build of the site (``make docs``) checks links.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from typer import Context
from typer.cli import get_docs_for_click
from typer.core import TyperGroup
from typer.main import get_command

from bench import report
from spark_mq_source.cli.main import app
from spark_mq_source.core.columns import ColumnTable
from spark_mq_source.core.options import READ, STREAM, WRITE, Described, Scope, Section
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.tubemq.format import TubeMQFormat

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
CONFIGURATION: Final = ROOT / "mkdocs.yml"
REPOSITORY: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"][
    "Repository"
]
FORMATS: Final = {one.name: one for one in (PulsarFormat, TubeMQFormat, NsqFormat)}
PAGES: Final = {"pulsar-native": "pulsar.md", "tubemq": "tubemq.md", "nsq": "nsq.md"}
"""The reference page of each format."""

_SCOPES: Final = {READ: "read", STREAM: "stream", WRITE: "write"}

# -- options


class Entry(NamedTuple):
    """An option as the pages show it.

    Attributes:
        text: the option's section; without the names in other connectors, so that formats can be compared.
        also: the names in other connectors, as text.
    """

    section: Section
    scope: Scope
    purpose: str
    text: str
    also: str


@cache
def _options(format_name: str) -> Mapping[str, Entry]:
    """Return the options of a format by name."""
    return {one.name: _entry(one) for one in FORMATS[format_name].options_type.described()}


def _entry(one: Described) -> Entry:
    fact = "Required" if one.default == "required" else f"Default: {one.default or 'not set'}"
    uses = ", ".join(use for scope, use in _SCOPES.items() if scope & one.scope)
    text = f"### `{one.name}` {{ #{one.name.lower()} }}\n\n{one.doc}\n\n*{uses.capitalize()}. {fact}"
    also = f"; also accepted as {', '.join(f'`{alias}`' for alias in one.aliases)}" if one.aliases else ""
    return Entry(one.section, one.scope, purpose(one.doc), text, also)


def purpose(doc: str) -> str:
    """Return the first clause of an option's description.

    Example:
        >>> purpose("Compression of entries: `NONE` or `LZ4`. Batches that do not shrink are sent uncompressed.")
        'Compression of entries'
    """
    return re.split(r"[.:;](?=\s|$)", doc, maxsplit=1)[0]


@cache
def _shared() -> Mapping[str, Entry]:
    first, *others = (_options(name) for name in FORMATS)
    return {
        name: entry
        for name, entry in first.items()
        if all(name in other and other[name][:-1] == entry[:-1] for other in others)
    }


def options(format_name: str) -> str:
    """Return the options of a format that not all formats share, under the title of each section."""
    parts = []
    for section in Section:
        texts = [
            _text(one)
            for name, one in _options(format_name).items()
            if name not in _shared() and one.section is section
        ]
        if texts:
            parts.append("\n".join([f"## {section}\n", *texts]))
    return "\n" + "\n".join(parts) + "\n"


def shared_options(_: str) -> str:
    """Return the options that are the same in all formats, in the order of the sections."""
    order = list(Section)
    return "\n" + "\n".join(_text(one) for one in sorted(_shared().values(), key=lambda one: order.index(one.section)))


def _text(one: Entry) -> str:
    return f"{one.text}{one.also}.*\n{{ .facts }}\n"


def option_index(_: str) -> str:
    """Return a table for each section: the options of all formats with their purpose and links."""
    parts = []
    for section in Section:
        # The purpose is that of the first format with the option.
        found = {
            name: one.purpose
            for format_name in reversed(FORMATS)
            for name, one in _options(format_name).items()
            if one.section is section
        }
        rows = [(f"`{name}`", found[name], _links(name)) for name in sorted(found, key=str.lower)]
        parts.append(f"## {section}\n\n{_markdown(('option', 'purpose', 'formats'), rows)}")
    return "\n" + "\n".join(parts) + "\n"


def _links(name: str) -> str:
    if name in _shared():
        return f"[all](#{name.lower()})"
    having = [each for each in FORMATS if name in _options(each)]
    return ", ".join(f"[{each.removesuffix('-native')}]({PAGES[each]}#{name.lower()})" for each in having)


# -- columns


def read_columns(columns: ColumnTable) -> str:
    """Return the table of readable columns, in Markdown."""
    rows = [
        (f"`{one.name}`", _types(one.read_as), "yes" if one.by_default else "", one.note)
        for one in columns.columns
        if one.read_as
    ]
    return _markdown(("column", "type", "by default", ""), rows)


def written_columns(columns: ColumnTable) -> str:
    """Return the table of writable columns, in Markdown."""
    rows = [(f"`{one.name}`", _types(one.written_from), one.write_note) for one in columns.columns if one.written_from]
    return _markdown(("column", "type", ""), rows)


def _types(types: Sequence[str]) -> str:
    return " or ".join(f"`{one}`" for one in types).replace(",", ", ").replace(":", ": ")


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n" for cells in lines)


# -- command line and charts


def command_line(_: str) -> str:
    """Return the text of ``--help`` of `spark-mq` and of its commands."""
    command = get_command(app)
    if not isinstance(command, TyperGroup):
        raise TypeError("spark-mq has one command only")
    text = get_docs_for_click(obj=command, ctx=Context(command, info_name="spark-mq"), name="spark-mq")
    body = text.partition("\n")[2].strip()
    for name, one in command.commands.items():  # the list has their help cut off
        body = re.sub(rf"^\* `{name}`: .*$", f"* [`{name}`](#spark-mq-{name}): {one.help}", body, flags=re.MULTILINE)
    return "\n" + re.sub(r"```console\n\$ (.*?)\n```", r"```text\n\1\n```", body, flags=re.DOTALL) + "\n\n"


def bars(of: str) -> str | None:
    """Return bars of the medians of one case, ``PROTOCOL,PART,CASE``: the formats and other clients, without limits."""
    protocol, part, number = of.split(",")
    found = report.load(protocol).get(part)
    if found is None:
        return None
    case = found["cases"][int(number)]
    shown = {name: one for name, one in report.drawn(case).items() if one["role"] != "limit"}
    rates = {name: report.middle(one) or 0 for name, one in shown.items()}
    lines = [
        f'<li class="{one["role"]}"><span>{one["label"]}</span>'
        f'<b style="--of:{rates[name] / max(rates.values()):.3f}"></b><span>{rates[name] / 1e6:.3g}</span></li>'
        for name, one in shown.items()
    ]
    return "\n".join([f"{case['name']}, million rows a second:", "", '<ul class="bars">', *lines, "</ul>"]) + "\n"


_SPEED: Final = ("100 B, LZ4, 1 partition", "100 B, LZ4, 4 partitions")
_HEAD: Final = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 720 {height}" role="img" aria-label="Rates of reads" '
    'class="speed" font-size="15" font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
)
_STYLE: Final = """<style>
.speed { --ink: #24292f; --faint: #57606a; --paper: #ffffff; --line: #afb8c1; --ours: #1b6ca8; --peer: #9cc4e4; }
@media (prefers-color-scheme: dark) {
.speed { --ink: #e6edf3; --faint: #9ea7b3; --paper: #0d1117; --line: #4b5563; --ours: #58a6e0; --peer: #29557a; }
}
.speed text { fill: var(--ink); }
.speed .faint { fill: var(--faint); font-size: 13px; }
.speed .name { font-weight: 600; }
</style>"""


def speed() -> str:
    """Return the chart of README.md as SVG: reads of Pulsar compared with other clients, without limits."""
    cases = {case["name"]: case for case in report.load("pulsar")["read"]["cases"]}
    groups = [
        [one for name, one in cases[title]["contenders"].items() if name == "ours" or one["role"] == "peer"]
        for title in _SPEED
    ]
    longest = max(report.middle(one) or 0 for group in groups for one in group)
    lines, y = [], 34
    for title, group in zip(_SPEED, groups, strict=True):
        lines.append(f'<text x="24" y="{y}" class="faint">{title}, million rows a second</text>')
        for one in group:
            rate = report.middle(one) or 0
            width, weight = round(430 * rate / longest), ' class="name"' if one["role"] == "ours" else ""
            y += 28
            lines += [
                f'<text x="24" y="{y}"{weight}>{one["label"]}</text>',
                f'<rect x="190" y="{y - 14}" width="{width}" height="18" rx="2" style="fill: var(--{one["role"]})"/>',
                f'<text x="{200 + width}" y="{y}"{weight}>{rate / 1e6:.3g}</text>',
            ]
        y += 40
    height = y - 18
    paper = "fill: var(--paper); stroke: var(--line)"
    frame = f'<rect x="1" y="1" width="718" height="{height - 2}" rx="10" style="{paper}"/>'
    return "\n".join([_HEAD.format(height=height), _STYLE, frame, *lines, "</svg>\n"])


_PROCESSES: Final = ("jvm", "workers", "driver", "writer")
_LINES: Final[Sequence[tuple[str, Mapping[str, str]]]] = (
    ("resident memory, MiB", {f"{name}_mib": name for name in _PROCESSES}),
    ("open files", {f"{name}_files": name for name in _PROCESSES}),
    ("threads", {f"{name}_threads": name for name in _PROCESSES}),
    ("files on disk", {"offsets_checkpoint_files": "checkpoint", "wal_files": "walDir"}),
)


def endurance() -> str:
    """Return the chart of a long run as SVG: resources of its processes over time, and when the broker was killed."""
    run = json.loads((report.FOLDER / "endurance.json").read_text(encoding="utf-8"))
    samples, width, height, y = run["samples"], 560, 110, 28
    longest = samples[-1]["seconds"]
    text = 'stroke="none" fill='
    lines = []
    for title, columns in _LINES:
        top = max(sample[name] for sample in samples for name in columns)
        marks = "".join(
            f"M{20 + width * at / longest:.0f} {y + 10}v{height}" for at, kind in run["faults"] if kind == "kill"
        )
        lines += [
            f'<text x="20" y="{y}" {text}"currentColor">{title} (up to {top:,.0f})</text>',
            f'<path d="M20 {y + 10}v{height}h{width}" opacity="0.5"/>',
            f'<path d="{marks}" stroke-dasharray="3 4" opacity="0.5"/>',
        ]
        for number, (name, label) in enumerate(columns.items()):
            points = " ".join(
                f"{20 + width * one['seconds'] / longest:.0f},{y + 10 + height * (1 - one[name] / top):.0f}"
                for one in samples
                if one[name] or name == "wal_files"
            )
            colour = _COLOURS[number]
            lines += [
                f'<polyline points="{points}" stroke="{colour}" stroke-width="1.6"/>',
                f'<text x="{width + 34}" y="{y + 24 + 22 * number}" {text}"{colour}">{label}</text>',
            ]
        y += height + 46
    ends = f"0 to {longest / 60:.0f} minutes; dashed: the broker is killed"
    lines.append(f'<text x="20" y="{y - 8}" {text}"currentColor">{ends}</text>')
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 700 {y}" role="img" aria-label="Memory, files and '
        f'threads of a long run" fill="none" stroke="currentColor" font-family="inherit" font-size="14">'
    )
    return "\n".join([head, *lines, "</svg>\n"])


_COLOURS: Final = ("#1b87c8", "#d9822b", "#2f9e6e", "#a15ec0")


def _measured(part: str, protocol: str) -> str | None:
    found = report.load(protocol).get(part)
    return found and report.table(found)


def _scale(protocol: str) -> str:
    part = report.load(protocol)["scale"]
    return f"{report.growth_table(part)}\nMeasured once. {report.note(part).partition('. ')[2]}\n"


# -- pages and pictures

PARTS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "columns": lambda name: read_columns(FORMATS[name].columns),
    "write-columns": lambda name: written_columns(FORMATS[name].columns),
    "options": options,
    "shared-options": shared_options,
    "option-index": option_index,
    "command-line": command_line,
    "bars": bars,
    "bench-scale": _scale,
    **{f"bench-{part}": partial(_measured, part) for part in ("read", "write", "stream", "queue", "history")},
}

_FILE: Final = re.compile(r"!\[[^\]]*\]\(([^)]+)\)|\[[^\]]*\]\((?!\w+:)([^)]+\.json)\)")
"""A picture or a file to download."""
_DRAWING: Final = re.compile(r'^--8<-- "([^"]+)"$', re.MULTILINE)
"""A picture of `docs/images` that becomes a part of the page, so that it has the colours of the page's scheme."""
_PART: Final = re.compile(rf"(<!-- ({'|'.join(PARTS)}):(\S*) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Return a page with its generated parts up to date; parts without results stay as they are."""

    def part(match: re.Match[str]) -> str:
        made = PARTS[match[2]](match[3])
        return match[0] if made is None else match[1] + made

    return _PART.sub(part, text)


def drawings() -> Mapping[Path, str]:
    """Return the pictures that are drawn from the results in ``bench/``."""
    return {DOCS / "images" / "speed.svg": speed(), DOCS / "images" / "endurance.svg": endurance()}


def pages() -> Mapping[Path, str]:
    """Return the text of README.md and of every page of the site."""
    return {path: path.read_text(encoding="utf-8") for path in [README, *sorted(DOCS.rglob("*.md"))]}


def in_checkout(address: str) -> str:
    """Return the path of a file that an address on GitHub names; return other addresses unchanged.

    Example:
        >>> in_checkout(f"{REPOSITORY}/blob/main/docs/index.md"), in_checkout("https://example.com")
        ('docs/index.md', 'https://example.com')
    """
    raw = REPOSITORY.replace("https://github.com", "https://raw.githubusercontent.com")
    return re.sub(rf"^(?:{REPOSITORY}/(?:blob|tree)|{raw})/main/", "", address)


def problems(texts: Mapping[Path, str], configuration: str) -> Iterator[str]:
    """Yield the problems of the site as a whole.

    Args:
        texts: of README.md and of every page.
        configuration: of the site.
    """
    listed = re.findall(r"^\s+- (?:[^\n]+: )?(\S+\.md)$", configuration, re.MULTILINE)
    there = {path.relative_to(DOCS).as_posix() for path in texts if path != README}
    yield from (f"{name}: not in the navigation of mkdocs.yml" for name in sorted(there - {*listed}))
    yield from (f"{name}: in the navigation of mkdocs.yml, and no page" for name in sorted({*listed} - there))
    yield from (
        f"{name}: twice in the navigation of mkdocs.yml" for name in sorted({*listed}) if listed.count(name) > 1
    )
    shown = {
        (path.parent / address).resolve()
        for path, text in texts.items()
        for address in map(in_checkout, map("".join, _FILE.findall(text)))
        if "://" not in address
    }
    shown |= {DOCS / "images" / name for text in texts.values() for name in _DRAWING.findall(text)}
    yield from (
        f"{path.relative_to(ROOT)}: shown on a page, and missing" for path in sorted(shown) if not path.exists()
    )
    files = {path for path in DOCS.rglob("*.*") if path.suffix != ".md" and path.name not in configuration}
    yield from (f"{path.relative_to(ROOT)}: no page shows it" for path in sorted(files - shown))


def main() -> int:
    """Write or check the pages; the exit status is 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Fill and check the pages of the site.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is out of date")
    check: bool = parser.parse_args().check
    texts = pages()
    found = list(problems(texts, CONFIGURATION.read_text(encoding="utf-8")))
    current = {path: (before, filled(before)) for path, before in texts.items()}
    for path, drawn in drawings().items():
        current[path] = (path.read_text(encoding="utf-8") if path.exists() else "", drawn)
    for path, (before, after) in current.items():
        if before != after and check:
            found.append(f"{path.relative_to(ROOT)} is out of date: run `python -m tools.docs` and commit it")
        elif before != after:
            path.write_text(after, encoding="utf-8")
    for one in found:
        print(one, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
