"""A session whose connection has closed while other threads use it."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from spark_mq_source.core.errors import TransportError
from spark_mq_source.pulsar.client.session import Session


class Shared(dict[int, Any]):
    """A dictionary from which another thread removes the last entry, between a check and `popitem`."""

    def __bool__(self) -> bool:
        return True


def test_entries_that_another_thread_removes_do_not_keep_the_others_waiting() -> None:
    session: Any = object.__new__(Session)
    failed: list[Exception] = []
    session._connected, answer = Future(), Future[object]()
    session._waiting = Shared({1: answer})
    session._consumers = Shared({1: SimpleNamespace(fail=failed.append)})
    session._producers = Shared({1: SimpleNamespace(fail=failed.append)})
    error = TransportError("closed")
    session._on_closed(error)
    for future in (session._connected, answer):
        with pytest.raises(TransportError):
            future.result(timeout=0)
    assert failed == [error, error]
