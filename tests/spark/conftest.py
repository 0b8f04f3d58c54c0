"""The formats that the Spark-facing suite runs with: TubeMQ and NSQ join by one case each in `formats.FORMATS`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.spark.formats import FORMATS, Feed, FormatCase


@pytest.fixture(params=[pytest.param(case, id=case.name, marks=pytest.mark.broker) for case in FORMATS])
def case(request: pytest.FixtureRequest) -> FormatCase:
    """The format under test."""
    return request.param


@pytest.fixture
def feed(case: FormatCase, request: pytest.FixtureRequest) -> Callable[[int], Feed]:
    """Makes topics of the format under test: `feed(partitions)`."""
    broker = request.getfixturevalue(case.fixture)
    return lambda partitions: case.open(broker, partitions)
