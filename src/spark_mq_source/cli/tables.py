"""Prints the rows of a command, as a table or as lines of JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import NoneType
from typing import Final

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from spark_mq_source.cli.text import as_json, as_text

_UNLIMITED: Final = 100_000
_UNPARTITIONED: Final = "not partitioned"
_NO_PARTITION: Final = (("partition", -1), ("partitions", 0))
"""Columns and values of topics that are not partitioned, which only JSON shows as numbers."""


def show(rows: Iterable[Mapping[str, object]], *, json: bool) -> None:
    """Print rows of the same shape.

    Args:
        rows: a table needs all rows before it prints; JSON prints each row at once.
        json: whether to print one line of JSON per row (nothing if there are no rows).
    """
    if json:
        for row in rows:
            print(as_json(row))  # noqa: T201 - a command line prints
        return
    console = Console()
    found = list(rows)
    if found:
        console.print(table_of(found, console))
    else:
        console.print("nothing")


def table_of(rows: Sequence[Mapping[str, object]], console: Console) -> Table:
    """Make a table that fits the console's width. Longer text wraps to the next line, so nothing is cut off.

    Args:
        rows: at least one row, all of the same shape.
        console: the output. Its width is the terminal's, or else 80 columns or the variable COLUMNS.

    Example:
        >>> console = Console(width=80)
        >>> rows = [{"latest": {"ledger": 309, "entry": 0, "batch": -1}, "partition": 0}]
        >>> console.print(table_of(rows, console))
        latest  partition
        309:0           0
    """
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in rows[0]:
        numbers = all(type(row[name]) in (int, NoneType) for row in rows)
        table.add_column(name, justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(_UNPARTITIONED if one in _NO_PARTITION else as_text(one[1])) for one in row.items()))
    if Measurement.get(console, console.options.update(max_width=_UNLIMITED), table).maximum > console.width:
        table.padding = (0, 2, 1, 0)  # an empty line between rows, because some have several lines
    return table
