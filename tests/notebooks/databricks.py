"""Databricks' source format of notebooks, and stand-ins for the names that Databricks defines in them.

The format, as Databricks exports it: a first line, cells between lines of ``# COMMAND ----------``, and ``# MAGIC``
before each line of a cell that is not Python.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HEAD: Final = "# Databricks notebook source\n"
SETTINGS: Final = "DATABRICKS_STAND_IN"
"""The environment variable with the widgets' values by name, and the secrets by scope and key, as JSON."""


@dataclass(frozen=True)
class Cell:
    """A cell.

    Attributes:
        magic: `md`, `pip`, or another command behind the ``%``; empty for Python.
        text: its lines, without ``# MAGIC`` and the command.
    """

    magic: str
    text: str


def cells(source: str) -> Sequence[Cell]:
    """The cells of a notebook.

    Raises:
        ValueError: this is no notebook, or a cell is only partly magic.
    """
    if not source.startswith(HEAD):
        raise ValueError(f"the first line is not {HEAD!r}")
    return [_cell(part.strip("\n")) for part in re.split(r"^# COMMAND -+$", source[len(HEAD) :], flags=re.MULTILINE)]


def _cell(text: str) -> Cell:
    lines = text.splitlines()
    marked = [re.match(r"# MAGIC ?", line) for line in lines]
    if not any(marked):
        return Cell("", text)
    plain = "\n".join(line[match.end() :] for line, match in zip(lines, marked, strict=True) if match)
    magic = re.fullmatch(r"%(\w+)\s+(.*)", plain, re.DOTALL)
    if magic is None or not all(marked):
        raise ValueError(f"a cell is not wholly magic, or has no command: {text}")
    return Cell(magic[1], magic[2])


class Widgets:
    """`dbutils.widgets`: a job's parameters have precedence over the defaults."""

    def __init__(self, parameters: dict[str, str]) -> None:
        self._parameters = parameters
        self._values: dict[str, str] = {}

    def text(self, name: str, defaultValue: str, label: str | None = None) -> None:  # noqa: N803 - Databricks' name
        self._values[name] = self._parameters.get(name, defaultValue)

    def get(self, name: str) -> str:
        return self._values[name]


class Secrets:
    """`dbutils.secrets`."""

    def __init__(self, scopes: dict[str, dict[str, str]]) -> None:
        self._scopes = scopes

    def get(self, scope: str, key: str) -> str:
        return self._scopes[scope][key]


class Library:
    """`dbutils.library`."""

    def restartPython(self) -> None:  # noqa: N802 - Databricks' name
        """Does nothing: nothing was installed."""


class Utilities:
    """`dbutils`."""

    def __init__(self) -> None:
        settings = json.loads(os.environ[SETTINGS])
        self.widgets = Widgets(settings["widgets"])
        self.secrets = Secrets(settings["secrets"])
        self.library = Library()


def session() -> SparkSession:
    """`spark`."""
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )


def display(frame: DataFrame) -> None:
    """Shows a DataFrame."""
    frame.show()
