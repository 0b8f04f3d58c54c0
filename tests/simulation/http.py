"""HTTP in a simulated world: functions of the model brokers answer the requests of `net.http` to urllib3."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import urllib3
from urllib3.exceptions import NewConnectionError, ReadTimeoutError

from tests.simulation.clockwork import here, namespace

Answer = tuple[int, Any]
"""A status, and the JSON value of the body."""

Handler = Callable[[str, str, Mapping[str, str]], Answer | None]
"""A function of a method, a path and the parameters of query and form; None leaves the request unanswered."""


def serve(address: str, handler: Handler | None) -> None:
    """Answer HTTP at `host:port` with a handler; None stops it, and connections are refused."""
    handlers = _handlers()
    if handler is None:
        handlers.pop(address, None)
    else:
        handlers[address] = handler


def _handlers() -> dict[str, Handler]:
    from tests.simulation.network import network

    return network().https


class _Response:
    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        self.headers: dict[str, str] = {}
        self._body = body

    def read(self, n: int | None = None) -> bytes:
        taken = self._body[:n]
        self._body = self._body[len(taken) :]
        return taken

    def close(self) -> None:
        pass


class _PoolManager:
    def __init__(self, **_: object) -> None:
        pass

    def __enter__(self) -> _PoolManager:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def request(
        self, method: str, url: str, *, body: str | None = None, timeout: urllib3.Timeout, **_: Any
    ) -> _Response:
        world = here()
        parts = urlsplit(url)
        world.sleep(0.002)
        handler = _handlers().get(parts.netloc)
        if handler is None:
            raise NewConnectionError(None, f"{url}: connection refused by the simulated network")  # type: ignore[arg-type]
        found = handler(method, parts.path, dict(parse_qsl(parts.query)) | dict(parse_qsl(body or "")))
        if found is None:
            world.sleep(float(timeout.total or 60.0))
            raise ReadTimeoutError(None, url, "no answer in the simulated network")  # type: ignore[arg-type]
        status, answer = found
        return _Response(status, json.dumps(answer).encode())


def urllib3_stand_in(original: types.ModuleType) -> types.ModuleType:
    """Return the module `urllib3` with a simulated `PoolManager`."""
    return namespace(original, PoolManager=_PoolManager)
