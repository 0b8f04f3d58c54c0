"""Items of an iterator as they come, for whoever has something else to do when none comes in time."""

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
    """The items, in order, and None wherever none has come in time.

    A thread of its own takes them, one ahead of what is asked for; what the iterator raises is raised here.

    Args:
        items: taken by that thread alone.
        seconds: asked before each wait: how long it may take; None for as long as it takes.

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
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is the other thread's
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
        # One put may wait for room; the next one would find it, and the thread its end.
        unwanted.set()
        while not found.empty():
            found.get_nowait()
