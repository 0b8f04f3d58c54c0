"""Fixtures of all suites without Spark."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fix_net import FaultProxy
from tests.formats import Format


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Tests may request a broker's fixture by name at run time, which the collection of all tests cannot see.
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.broker)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Return random numbers that differ between tests and are the same in every run."""
    return random.Random(zlib.crc32(request.node.name.encode()))


@pytest.fixture
def link(mq: Format) -> Iterator[FaultProxy]:
    """Return a link to the broker of the format under test that can be made to fail."""
    with mq.proxy() as proxy:
        yield proxy
