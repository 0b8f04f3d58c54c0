"""Fixtures of the unit tests of TubeMQ."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from spark_mq_source.core.options import WRITE
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.options import TubeMQOptions
from tests.unit.tubemq.scripted import Server


def options_for(*servers: Server, **options: Any) -> TubeMQOptions:
    given = {"masters": ",".join(server.address for server in servers), "requestTimeout": "60s"} | options
    return TubeMQOptions.from_spark(given, WRITE)


@pytest.fixture
def server() -> Iterator[Callable[..., Server]]:
    """Return a function that starts servers; stop them when the test ends."""
    with contextlib.ExitStack() as stack:

        def start(answers: Any = None, **more: Any) -> Server:
            started = Server(answers, **more)
            stack.callback(started.stop)
            return started

        yield start


@pytest.fixture
def client(server: Any, closing: Callable[[TubeMQClient], TubeMQClient]) -> Callable[..., TubeMQClient]:
    """Return a function that makes clients of servers; close the clients before the servers."""
    return lambda *servers, **options: closing(TubeMQClient(options_for(*servers, **options)))
