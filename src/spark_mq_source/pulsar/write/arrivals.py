"""Iterates with a timeout, so that the caller can act while no item arrives."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

_ITEM: Final = 0
_END: Final = 1
_ERROR: Final = 2


def arrivals(items: Iterable[T], seconds: Callable[[], float | None]) -> Iterator[T | None]:
    """Yield the items in order, with None for each timeout.

    A separate thread iterates, one item ahead; its exceptions are raised here.

    Args:
        items: iterated only by that thread.
        seconds: called before each wait; returns its timeout in seconds, or None for no timeout.

    Example:
        >>> list(arrivals([1, 2], lambda: None))
        [1, 2]
    """
    found: queue.Queue[tuple[int, object]] = queue.Queue(maxsize=1)
    unwanted = threading.Event()

    def take() -> None:
        try:
            for item in items:
                found.put((_ITEM, item))
                if unwanted.is_set():
                    return
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            found.put((_ERROR, error))
        else:
            found.put((_END, None))

    threading.Thread(target=take, name="spark-mq-source rows", daemon=True).start()
    try:
        while True:
            try:
                kind, what = found.get(timeout=seconds())
            except queue.Empty:
                yield None
                continue
            if kind == _END:
                return
            if kind == _ERROR:
                raise what  # type: ignore[misc]
            yield what  # type: ignore[misc]
    finally:
        # The thread may be blocked in `put`: make room, so that it can end.
        unwanted.set()
        while not found.empty():
            found.get_nowait()
