"""Shortest plans of failures that were mended, by what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tests.simulation.explore import Plan

REGRESSIONS: Final[Mapping[str, Plan]] = {}
