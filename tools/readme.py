"""Fills the tables of README.md that the code knows better: ``python -m tools.readme [--check]``.

A table stands between ``<!-- WHAT:FORMAT -->`` and ``<!-- end -->``, where WHAT is one of `TABLES`. With ``--check``
nothing is written, and a table that differs from the code is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from spark_mq_source.core.columns import ColumnTable
from spark_mq_source.core.options import READ, STREAM, WRITE
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.tubemq.format import TubeMQFormat

README: Final = Path(__file__).parent.parent / "README.md"

AnyFormat = type[PulsarFormat] | type[TubeMQFormat] | type[NsqFormat]
FORMATS: Final[Mapping[str, AnyFormat]] = {one.name: one for one in (PulsarFormat, TubeMQFormat, NsqFormat)}


def read_columns(columns: ColumnTable) -> str:
    """The columns that can be read, as Markdown."""
    rows = [
        (f"`{one.name}`", _types(one.read_as), "yes" if one.by_default else "", one.note)
        for one in columns.columns
        if one.read_as
    ]
    return _markdown(("column", "type", "by default", ""), rows)


def written_columns(columns: ColumnTable) -> str:
    """The columns that can be written, as Markdown."""
    rows = [(f"`{one.name}`", _types(one.written_from), one.write_note) for one in columns.columns if one.written_from]
    return _markdown(("column", "type", ""), rows)


def _types(types: Sequence[str]) -> str:
    return " or ".join(types).replace(",", ", ").replace(":", ": ")


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n" for cells in lines)


TABLES: Final[Mapping[str, Callable[[AnyFormat], str]]] = {
    "columns": lambda format_: read_columns(format_.columns),
    "options": lambda format_: format_.options_type.markdown_table(READ | STREAM),
    "write-columns": lambda format_: written_columns(format_.columns),
    "write-options": lambda format_: format_.options_type.markdown_table(WRITE),
}

_TABLE: Final = re.compile(rf"<!-- (?P<what>{'|'.join(TABLES)}):(?P<format>\S+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """The text with each table made anew.

    Raises:
        ValueError: a marker for an unknown format, or a format without its markers.
    """
    found = sorted((match["format"], match["what"]) for match in _TABLE.finditer(text))
    wanted = sorted((name, what) for name in FORMATS for what in TABLES)
    if found != wanted:
        raise ValueError(f"README.md has the tables {found}, and should have {wanted}")

    def table(match: re.Match[str]) -> str:
        name, what = match["format"], match["what"]
        return f"<!-- {what}:{name} -->\n{TABLES[what](FORMATS[name])}<!-- end -->"

    return _TABLE.sub(table, text)


def main() -> int:
    """Writes or checks README.md; the exit status is 1 where a check fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.readme", description="Fill the tables of README.md.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail where README.md is out of date")
    check: bool = parser.parse_args().check
    before = README.read_text(encoding="utf-8")
    after = filled(before)
    if before == after:
        return 0
    if check:
        print("README.md is out of date: run `python -m tools.readme` and commit it", file=sys.stderr)
        return 1
    README.write_text(after, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
