"""Stand-ins for external dependencies of the program under test: threads, clocks, random numbers, sockets, HTTP.

`install()` iterates over the modules of `spark_mq_source` and replaces every global that *is* such an object: the
module `threading` with one of the same interface over fibers, the class `Future` with one that waits by the world's
clock, and so on. The program under test thus needs no hooks for tests, and a module added later is simulated as well.
The replacements last until the process ends or `uninstall()` is called; while no world runs, the package must not be
called.
"""

from __future__ import annotations

import concurrent.futures
import copy
import importlib
import itertools
import os
import pkgutil
import queue
import random
import selectors
import socket
import sys
import threading
import time
import types
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from spark_mq_source.core.buffer import BLOCK_BYTES, ReceiveBuffer
from tests.simulation import http, network
from tests.simulation.clockwork import here, namespace

# -- locks


class Lock:
    """A `threading.Lock`. Another fiber may run when it is acquired or released."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: Any = None
        self._depth = 0
        self._waiters: deque[Any] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = here()
        world.pause()
        me = world.current
        if self._owner is not None and self._owner is me and self.reentrant:
            self._depth += 1
            return True
        until = None if timeout < 0 else world.now + timeout
        while self._owner is not None:
            if not blocking:
                return False
            self._waiters.append(me)
            if not world.park(None if until is None else until - world.now):
                return False
        self._owner, self._depth = me or self, 1
        return True

    def release(self) -> None:
        world = here()
        world.check_alive()
        self._depth -= 1
        if self._depth > 0:
            return
        self._owner = None
        if self._waiters:
            world.wake(self._waiters.popleft())
        world.pause()

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def _forget(self) -> int:
        """Release it at any depth and return the depth; for `Condition.wait`."""
        depth, self._depth = self._depth, 1
        self.release()
        return depth

    def _remember(self, depth: int) -> None:
        self.acquire()
        self._depth = depth

    def _is_owned(self) -> bool:
        return self._owner is not None and self._owner in (here().current, self)


class RLock(Lock):
    """A `threading.RLock`."""

    reentrant = True


class Condition:
    """A `threading.Condition`."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self.acquire = self._lock.acquire
        self.release = self._lock.release
        self._waiters: deque[Any] = deque()

    def __enter__(self) -> Condition:
        self._lock.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        world = here()
        if not self._lock._is_owned():
            raise RuntimeError("cannot wait on un-acquired lock")
        me = world.current
        self._waiters.append(me)
        depth = self._lock._forget()
        # A fiber that is not among the waiters was notified: the lock may have been released and the wake-up have
        # come before it could wait.
        until = None if timeout is None else world.now + timeout
        notified = True
        while me in self._waiters:
            if not world.park(None if until is None else until - world.now):
                notified = me not in self._waiters
                if not notified:
                    self._waiters.remove(me)
                break
        self._lock._remember(depth)
        return notified

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        world = here()
        until = None if timeout is None else world.now + timeout
        result = predicate()
        while not result:
            left = None if until is None else until - world.now
            if left is not None and left <= 0:
                break
            self.wait(left)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        world = here()
        world.check_alive()
        if not self._lock._is_owned():
            raise RuntimeError("cannot notify on un-acquired lock")
        for _ in range(min(n, len(self._waiters))):
            world.wake(self._waiters.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiters))


class Event:
    """A `threading.Event`."""

    def __init__(self) -> None:
        self._condition = Condition(Lock())
        self._flag = False

    def is_set(self) -> bool:
        here().pause()
        return self._flag

    def set(self) -> None:
        with self._condition:
            self._flag = True
            self._condition.notify_all()

    def clear(self) -> None:
        with self._condition:
            self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._condition:
            return bool(self._condition.wait_for(lambda: self._flag, timeout))


class Thread:
    """A `threading.Thread`, which is a fiber of the process that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self.name = name or "thread"
        self.daemon = daemon
        self._fiber: Any = None

    @property
    def ident(self) -> int | None:
        return None if self._fiber is None else id(self._fiber)

    def start(self) -> None:
        if self._fiber is not None:
            raise RuntimeError("threads can only be started once")
        self._fiber = here().spawn(self.run, self.name)
        self._fiber.thread = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.done

    def join(self, timeout: float | None = None) -> None:
        if self._fiber is None:
            raise RuntimeError("cannot join thread before it is started")
        here().join(self._fiber, timeout)


def current_thread() -> Any:
    """Return the `Thread` of the running fiber, or the fiber if it has none."""
    if _is_foreign():
        return threading.current_thread()
    fiber = here().current
    return getattr(fiber, "thread", fiber)


# -- futures


class Future(concurrent.futures.Future):
    """A `concurrent.futures.Future` that waits by the world's clock."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = Condition()


class ThreadPoolExecutor:
    """A `ThreadPoolExecutor` that runs each call in a new fiber."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "pool", **_: object) -> None:
        self._name = thread_name_prefix
        self._started: list[Future] = []

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        future = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = call(*args, **kwargs)
            except Exception as error:  # noqa: BLE001 - the caller gets it
                future.set_exception(error)
            else:
                future.set_result(result)

        self._started.append(future)
        here().spawn(run, self._name)
        return future

    def map(self, call: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None) -> Iterator[Any]:
        futures = [self.submit(call, *arguments) for arguments in zip(*iterables, strict=False)]
        return (future.result(timeout) for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for future in self._started:
            if wait and not future.cancelled():
                concurrent.futures.Future.exception(future)

    def __enter__(self) -> ThreadPoolExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


# -- clocks, random numbers, the operating system


def _is_foreign() -> bool:
    """Return whether this is a real thread: idle connections of earlier tests live for some seconds."""
    return threading.current_thread() is not threading.main_thread()


def monotonic() -> float:
    """Replace `time.monotonic`; each reading advances the clock a little."""
    if _is_foreign():
        return time.monotonic()
    world = here()
    world.check_alive()
    world.now += 1e-6
    return world.now


def _wall() -> float:
    monotonic()
    return here().wall


def _uuid4() -> uuid.UUID:
    return uuid.UUID(int=here().dice("uuid").getrandbits(128), version=4)


class _Dice:
    """The functions of `random`, with the world's generator."""

    def __getattr__(self, name: str) -> Any:
        return getattr(random if _is_foreign() else here().dice("program"), name)


def _refuse(what: str) -> Callable[..., Any]:
    def refuse(*_: object, **__: object) -> Any:
        raise NotImplementedError(f"{what} has no stand-in in the simulated world")

    return refuse


THREADING = namespace(
    threading,
    Lock=Lock,
    RLock=RLock,
    Condition=Condition,
    Event=Event,
    Thread=Thread,
    current_thread=current_thread,
    get_ident=lambda: id(here().current),
    local=_refuse("threading.local"),
    Timer=_refuse("threading.Timer"),
    Semaphore=_refuse("threading.Semaphore"),
    BoundedSemaphore=_refuse("threading.BoundedSemaphore"),
    Barrier=_refuse("threading.Barrier"),
)
TIME = namespace(
    time,
    monotonic=monotonic,
    perf_counter=monotonic,
    monotonic_ns=lambda: int(monotonic() * 1e9),
    perf_counter_ns=lambda: int(monotonic() * 1e9),
    time=_wall,
    time_ns=lambda: int(_wall() * 1e9),
    sleep=lambda seconds: time.sleep(seconds) if _is_foreign() else here().sleep(seconds),
)
QUEUE = namespace(queue, Queue=_refuse("queue.Queue"), SimpleQueue=_refuse("queue.SimpleQueue"))
SELECTORS = namespace(selectors, DefaultSelector=network.Selector)
SOCKET = namespace(
    socket,
    socketpair=network.socketpair,
    create_connection=_refuse("a socket"),
    gethostname=lambda: "host",
    getaddrinfo=lambda *_, **__: [()],
)
OS = namespace(os, getpid=lambda: here().here.pid)
UUID = namespace(uuid, uuid4=_uuid4)

_REPLACED: dict[int, Any] = {
    id(original): replacement
    for original, replacement in (
        (threading, THREADING),
        (time, TIME),
        (queue, QUEUE),
        (selectors, SELECTORS),
        (socket, SOCKET),
        (os, OS),
        (uuid, UUID),
        (random, _Dice()),
        (concurrent.futures.Future, Future),
        (concurrent.futures.ThreadPoolExecutor, ThreadPoolExecutor),
    )
}


def _modules(package: str) -> Iterator[types.ModuleType]:
    """Import and yield the modules of a package, except Spark's side and programs, which are not simulated."""
    root = importlib.import_module(package)
    yield root
    for found in pkgutil.walk_packages(root.__path__, f"{package}."):
        if found.name.split(".")[1] in {"cli", "testing"} or found.name.endswith("__main__"):
            continue
        if found.name.rsplit(".", 1)[-1].startswith("_") and found.name.endswith("_native"):
            continue
        yield importlib.import_module(found.name)


_undo: list[tuple[types.ModuleType | type, str, Any]] = []

RECEIVE_BLOCK_BYTES = 64 << 10

_STATE = (dict, list, set, deque, itertools.count)
"""Types of globals that keep state between calls: counters and caches of one process."""

_fresh: list[tuple[types.ModuleType, str, Any]] = []


def install(package: str = "spark_mq_source") -> None:
    """Replace the imports of the package's modules; safe to call again."""
    from spark_mq_source.net import driver, transport
    from spark_mq_source.net import http as net_http
    from spark_mq_source.pulsar.client.warm import WATCH_THREAD

    if _undo:
        return
    for thread in threading.enumerate():
        if thread.name == WATCH_THREAD:
            # It lives for seconds after a test, and would use stand-ins of the package while it closes connections.
            thread.join()
    # A world opens many connections and sends little on each: receive buffers of megabytes would take most of its time.
    ReceiveBuffer.__init__.__defaults__ = (RECEIVE_BLOCK_BYTES,)
    _undo.append((driver, "RECEIVE_BYTES", driver.RECEIVE_BYTES))
    driver.RECEIVE_BYTES = RECEIVE_BLOCK_BYTES // 4
    connect, urllib3_ = transport.connect, net_http.urllib3
    by_identity = _REPLACED | {id(connect): network.connect, id(urllib3_): http.urllib3_stand_in(urllib3_)}
    for module in _modules(package):
        for name, value in list(vars(module).items()):
            replacement = by_identity.get(id(value))
            if replacement is not None and not name.startswith("__"):
                _undo.append((module, name, value))
                setattr(module, name, replacement)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                # A class of the package with a replaced base.
                bases = tuple(by_identity.get(id(base), base) for base in value.__bases__)
                if bases != value.__bases__:
                    _undo.append((value, "__bases__", value.__bases__))
                    value.__bases__ = bases
    # Real objects that were created when a module was imported: locks that are globals.
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith(f"{package}."):
            for name, value in list(vars(module).items()):
                if isinstance(value, type(threading.Lock())):
                    _undo.append((module, name, value))
                    setattr(module, name, Lock())
                elif isinstance(value, itertools.count) or (isinstance(value, _STATE) and not value):
                    _fresh.append((module, name, copy.copy(value)))


def reset() -> None:
    """Reset the globals of modules that an earlier world has changed, so that the same plan gives the same run."""
    for module, name, value in _fresh:
        if isinstance(value, itertools.count):
            setattr(module, name, copy.copy(value))
        else:
            getattr(module, name).clear()


def uninstall() -> None:
    """Restore the originals."""
    _fresh.clear()
    ReceiveBuffer.__init__.__defaults__ = (BLOCK_BYTES,)
    while _undo:
        module, name, value = _undo.pop()
        setattr(module, name, value)
