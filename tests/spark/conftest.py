"""The formats that the Spark-facing suite runs with: one case each in `formats.FORMATS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.spark.formats import FORMATS, Feed, FormatCase


def _id(case: FormatCase) -> str:
    return f"{case.name}-{case.broker}" if case.broker else case.name


@pytest.fixture(params=[pytest.param(case, id=_id(case), marks=pytest.mark.broker) for case in FORMATS])
def case(request: pytest.FixtureRequest) -> FormatCase:
    """The format under test."""
    return request.param


@pytest.fixture
def feed(case: FormatCase, request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Feed]:
    """Makes topics of the format under test: `feed(partitions)`."""
    broker = request.getfixturevalue(case.fixture)
    return lambda partitions: case.open(broker, partitions, tmp_path)
