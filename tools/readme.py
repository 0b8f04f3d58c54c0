"""Generates the tables of README.md from the code: ``python -m tools.readme [--check]``.

A table stands between ``<!-- WHAT:FORMAT -->`` and ``<!-- end -->``; `tables` has them all. With ``--check`` nothing is
written, and a table that differs from the code, or from the results in ``bench/``, is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench import report
from spark_mq_source.core.columns import ColumnTable
from spark_mq_source.core.options import READ, STREAM, WRITE
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.tubemq.format import TubeMQFormat

README: Final = Path(__file__).parent.parent / "README.md"

FORMATS: Final = (PulsarFormat, TubeMQFormat, NsqFormat)
BENCHED: Final = {"pulsar": ("read", "write", "stream"), "tubemq": ("read", "write"), "nsq": ("read", "write")}
"""The parts of each protocol's results that README.md shows."""


def tables() -> dict[str, str]:
    """Every table in Markdown, by its marker."""
    found = {}
    for format_ in FORMATS:
        found[f"columns:{format_.name}"] = read_columns(format_.columns)
        found[f"options:{format_.name}"] = format_.options_type.markdown_table(READ | STREAM)
        found[f"write-columns:{format_.name}"] = written_columns(format_.columns)
        found[f"write-options:{format_.name}"] = format_.options_type.markdown_table(WRITE)
    for protocol, parts in BENCHED.items():
        results = report.load(protocol)
        found |= {f"bench-{part}:{protocol}": report.table(results[part]) for part in parts}
    return found


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
    return " or ".join(types).replace(",", ", ").replace(":", ": ")


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join("|" + "|".join(f" {cell} " if cell else " " for cell in cells) + "|\n" for cells in lines)


_TABLE: Final = re.compile(r"<!-- (?P<marker>[a-z-]+:\S+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """The text with all tables regenerated.

    Raises:
        ValueError: a marker of no table, or a table without its marker.
    """
    known = tables()
    found = sorted(match["marker"] for match in _TABLE.finditer(text))
    if found != sorted(known):
        raise ValueError(f"README.md has the tables {found}, and should have {sorted(known)}")
    return _TABLE.sub(lambda match: f"<!-- {match['marker']} -->\n{known[match['marker']]}<!-- end -->", text)


def main() -> int:
    """Writes or checks README.md; the exit status is 1 if a check fails."""
    parser = argparse.ArgumentParser(prog="python -m tools.readme", description="Fill the tables of README.md.")
    parser.add_argument("--check", action="store_true", help="write nothing, fail if README.md is out of date")
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
