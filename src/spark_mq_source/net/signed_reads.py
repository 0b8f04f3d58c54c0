"""Reads of parts of objects, by URLs that obstore signs, directly into allocated memory.

This takes about half the CPU time of obstore's own requests, which put each part together in new memory: 279 ns
instead of 521 for 1 KiB, in parts of 8 MiB from a server on the same machine.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies

from spark_mq_source.core.buffer import fill

TIMEOUT_SECONDS: Final = 30.0
"""The wait for a connection or for the next bytes, as obstore's."""

_PARTIAL_CONTENT: Final = 206


class SignedReads:
    """Requests that are never repeated: after one that fails, the caller asks obstore.

    If the first request on a connection fails, as with a server of another authority, all later parts are obstore's.

    Args:
        sign: returns the URL of an object at a path, or raises OSError or ValueError.
    """

    def __init__(self, sign: Callable[[str], str]) -> None:
        self._sign = sign
        self._urls: dict[str, SplitResult] = {}
        self._idle: deque[HTTPConnection] = deque()
        self.is_usable = not getproxies().keys() & {"http", "https"}

    def read_part(self, path: str, offset: int, into: memoryview) -> bool:
        """Fill this memory with a part of an object; return whether that succeeded."""
        if not self.is_usable:
            return False
        connection = None
        is_new = True
        try:
            url = self._urls.get(path) or self._urls.setdefault(path, urlsplit(self._sign(path)))
            try:
                connection, is_new = self._idle.pop(), False
            except IndexError:
                kind = HTTPSConnection if url.scheme == "https" else HTTPConnection
                connection = kind(url.netloc, timeout=TIMEOUT_SECONDS)
            last = offset + len(into) - 1
            connection.request("GET", f"{url.path}?{url.query}", headers={"Range": f"bytes={offset}-{last}"})
            response = connection.getresponse()
            is_whole = response.status == _PARTIAL_CONTENT and response.length == len(into)
            if is_whole and fill(into, response.readinto) == len(into):
                self._idle.append(connection)
                return True
        except (OSError, HTTPException, ValueError):
            pass
        if connection is not None:
            connection.close()
        self._urls.pop(path, None)
        self.is_usable = not is_new
        return False

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()
