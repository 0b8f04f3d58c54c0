"""The formats that the Spark-facing suite runs with: one case each in `formats.FORMATS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from brokers.nsq import nsqd_on_path
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


@pytest.fixture
def every(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[int], Sequence[tuple[FormatCase, Feed]]]:
    """Makes a topic of each format, for what is started once for all of them: `every(partitions)`."""
    cases = [case for case in FORMATS if case.broker != "nsqd" or nsqd_on_path()]
    brokers = [request.getfixturevalue(case.fixture) for case in cases]
    return lambda partitions: [
        (case, case.open(broker, partitions, tmp_path)) for case, broker in zip(cases, brokers, strict=True)
    ]
