"""Generates parts of README.md and of the site's pages, and checks the site: ``python -m tools.docs [--check]``.

A generated part stands between ``<!-- WHAT:OF -->`` and ``<!-- end -->``; WHAT is one of `PARTS`. With ``--check``
nothing is written, and a part that differs from the code, or from the results in ``bench/``, is an error. So are a page
that the navigation of `mkdocs.yml` does not list, an entry of the navigation without a page, and a picture that is
missing or that no page shows. The build of the site (``make docs``) checks links.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Final

from typer import Context
from typer.cli import get_docs_for_click
from typer.core import TyperGroup
from typer.main import get_command

from bench import report
from spark_mq_source.cli.main import app
from spark_mq_source.core.columns import ColumnTable
from spark_mq_source.core.options import READ, STREAM, WRITE, Scope
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.tubemq.format import TubeMQFormat

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = ROOT / "docs"
README: Final = ROOT / "README.md"
CONFIGURATION: Final = ROOT / "mkdocs.yml"
FORMATS: Final = {one.name: one for one in (PulsarFormat, TubeMQFormat, NsqFormat)}
PAGES: Final = {"pulsar-native": "pulsar.md", "tubemq": "tubemq.md", "nsq": "nsq.md"}
"""The reference of each format."""

_SCOPES: Final[Mapping[Scope, str]] = {
    READ | STREAM | WRITE: "Options to read and to write",
    READ | STREAM: "Options to read",
    READ: "Options to read a batch",
    STREAM: "Options to read a stream",
    WRITE: "Options to write",
}

# -- options


@cache
def _options(format_name: str) -> Mapping[str, tuple[Scope, str, str]]:
    """Name of each option of a format: its scope, its section, and the section without other connectors' names."""
    found = {}
    for one in FORMATS[format_name].options_type.described():
        fact = "Required" if one.default == "required" else f"Default: {one.default or 'not set'}"
        head, tail = f"### `{one.name}` {{ #{one.name.lower()} }}\n\n{one.doc}\n\n*{fact}", ".*\n{ .facts }\n"
        also = f"; also accepted as {', '.join(f'`{alias}`' for alias in one.aliases)}" if one.aliases else ""
        found[one.name] = (one.scope, head + also + tail, head + tail)
    return found


@cache
def _shared() -> Mapping[str, tuple[Scope, str, str]]:
    first, *others = (_options(name) for name in FORMATS)
    return {
        name: (scope, essence, essence)
        for name, (scope, _, essence) in first.items()
        if all(name in other and other[name][::2] == (scope, essence) for other in others)
    }


def _by_scope(found: Mapping[str, tuple[Scope, str, str]]) -> str:
    """Sections under a title for each scope.

    Raises:
        ValueError: a scope without a title.
    """
    if not {scope for scope, _, _ in found.values()} <= set(_SCOPES):
        raise ValueError("an option has a scope that has no title in tools/docs.py")
    parts = []
    for scope, title in _SCOPES.items():
        sections = [section for other, section, _ in found.values() if other == scope]
        if sections:
            parts.append("\n".join([f"## {title}\n", *sections]))
    return "\n" + "\n".join(parts) + "\n"


def options(format_name: str) -> str:
    """A section for each option of a format that not all formats share."""
    return _by_scope({name: one for name, one in _options(format_name).items() if name not in _shared()})


def shared_options(_: str) -> str:
    """A section for each option that is the same in all formats."""
    return _by_scope(_shared())


def option_index(_: str) -> str:
    """All options of all formats by name, with links."""
    rows = [f"| option | {' | '.join(f'`{name}`' for name in FORMATS)} |", "|---|" + ":-:|" * len(FORMATS)]
    names = {name for format_name in FORMATS for name in _options(format_name)}
    for name in sorted(names, key=str.lower):
        cells = [
            f"[{_letters(_options(each)[name][0])}]({'' if name in _shared() else PAGES[each]}#{name.lower()})"
            if name in _options(each)
            else ""
            for each in FORMATS
        ]
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _letters(scope: Scope) -> str:
    return " ".join(letter for one, letter in ((READ, "R"), (STREAM, "S"), (WRITE, "W")) if one & scope)


# -- columns


def read_columns(columns: ColumnTable) -> str:
    """The table of readable columns, in Markdown."""
    rows = [
        (f"`{one.name}`", _types(one.read_as), "yes" if one.by_default else "", one.note)
        for one in columns.columns
        if one.read_as
    ]
    return _markdown(("column", "type", "by default", ""), rows)


def written_columns(columns: ColumnTable) -> str:
    """The table of writable columns, in Markdown."""
    rows = [(f"`{one.name}`", _types(one.written_from), one.write_note) for one in columns.columns if one.written_from]
    return _markdown(("column", "type", ""), rows)


def _types(types: Sequence[str]) -> str:
    return " or ".join(f"`{one}`" for one in types).replace(",", ", ").replace(":", ": ")


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n" for cells in lines)


# -- command line and charts


def command_line(_: str) -> str:
    """What ``--help`` of `spark-mq` and of its commands says."""
    command = get_command(app)
    if not isinstance(command, TyperGroup):
        raise TypeError("spark-mq has one command only")
    text = get_docs_for_click(obj=command, ctx=Context(command, info_name="spark-mq"), name="spark-mq")
    body = text.partition("\n")[2].strip()
    for name, one in command.commands.items():  # the list has their help cut off
        body = re.sub(rf"^\* `{name}`: .*$", f"* [`{name}`](#spark-mq-{name}): {one.help}", body, flags=re.MULTILINE)
    return "\n" + re.sub(r"```console\n\$ (.*?)\n```", r"```text\n\1\n```", body, flags=re.DOTALL) + "\n\n"


def bars(of: str) -> str:
    """Bars of the medians of one case: ``PROTOCOL,PART,CASE``."""
    protocol, part, number = of.split(",")
    case = report.load(protocol)[part]["cases"][int(number)]
    shown = report.drawn(case)
    rates = {name: report.middle(one) or 0 for name, one in shown.items()}
    lines = [
        f'<li class="{one["role"]}"><span>{one["label"]}</span>'
        f'<b style="--of:{rates[name] / max(rates.values()):.3f}"></b><span>{rates[name] / 1e6:.3g}</span></li>'
        for name, one in shown.items()
    ]
    return "\n".join([f"{case['name']}, million rows a second:", "", '<ul class="bars">', *lines, "</ul>"]) + "\n"


def _measured(part: str, protocol: str) -> str:
    return report.table(report.load(protocol)[part])


# -- all of it

PARTS: Final[Mapping[str, Callable[[str], str]]] = {
    "columns": lambda name: read_columns(FORMATS[name].columns),
    "write-columns": lambda name: written_columns(FORMATS[name].columns),
    "options": options,
    "shared-options": shared_options,
    "option-index": option_index,
    "command-line": command_line,
    "bars": bars,
    **{f"bench-{part}": partial(_measured, part) for part in ("read", "write", "stream", "queue")},
}

_PICTURE: Final = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")
_PART: Final = re.compile(rf"(<!-- ({'|'.join(PARTS)}):(\S*) -->\n).*?(?=<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """A page with each generated part made anew."""
    return _PART.sub(lambda match: match[1] + PARTS[match[2]](match[3]), text)


def pages() -> Mapping[Path, str]:
    """The text of README.md and of every page of the site."""
    return {path: path.read_text(encoding="utf-8") for path in [README, *sorted(DOCS.rglob("*.md"))]}


def problems(texts: Mapping[Path, str], configuration: str) -> Iterator[str]:
    """What is wrong with the site as a whole.

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
    shown = {(path.parent / name).resolve() for path, text in texts.items() for name in _PICTURE.findall(text)}
    yield from (
        f"{path.relative_to(ROOT)}: shown on a page, and missing" for path in sorted(shown) if not path.exists()
    )
    files = {path for path in DOCS.rglob("*.*") if path.suffix != ".md" and path.name not in configuration}
    yield from (f"{path.relative_to(ROOT)}: no page shows it" for path in sorted(files - shown))


def main() -> int:
    """Writes or checks the pages; the exit status is 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.docs", description="Fill and check the pages of the site.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if a page is out of date")
    check: bool = parser.parse_args().check
    texts = pages()
    found = list(problems(texts, CONFIGURATION.read_text(encoding="utf-8")))
    for path, before in texts.items():
        after = filled(before)
        if before != after and check:
            found.append(f"{path.relative_to(ROOT)} is out of date: run `python -m tools.docs` and commit it")
        elif before != after:
            path.write_text(after, encoding="utf-8")
    for one in found:
        print(one, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
