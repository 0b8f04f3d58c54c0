"""Fills the tables of README.md that the code knows better: ``python -m tools.readme [--check]``.

A table stands between ``<!-- options:FORMAT -->``, or ``<!-- write-options:FORMAT -->``, and ``<!-- end -->``. With
``--check`` nothing is written, and a table that differs from the code is an error.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spark_mq_source.core.options import READ, STREAM, WRITE, Options, Scope
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.tubemq.options import TubeMQOptions

README: Final = Path(__file__).parent.parent / "README.md"
FORMATS: Final[Mapping[str, type[Options]]] = {
    "pulsar-native": PulsarOptions,
    "tubemq": TubeMQOptions,
    "nsq": NsqOptions,
}

SCOPES: Final[Mapping[str, Scope]] = {"options": READ | STREAM, "write-options": WRITE}

_TABLE: Final = re.compile(r"<!-- (?P<what>options|write-options):(?P<format>\S+) -->\n.*?<!-- end -->", re.DOTALL)


def filled(text: str) -> str:
    """The text with each table made anew.

    Raises:
        ValueError: a marker for an unknown format, or a format without its markers.
    """
    found = sorted((match["format"], match["what"]) for match in _TABLE.finditer(text))
    wanted = sorted((name, what) for name in FORMATS for what in SCOPES)
    if found != wanted:
        raise ValueError(f"README.md has the option tables {found}, and should have {wanted}")

    def table(match: re.Match[str]) -> str:
        name, what = match["format"], match["what"]
        return f"<!-- {what}:{name} -->\n{FORMATS[name].markdown_table(SCOPES[what])}<!-- end -->"

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
