"""Three nsqd and two nsqlookupd under chaos, with a writer and a stream: those on PATH, or else embedded brokers.

Both keep all messages on disk and sync positions only at a clean stop: a killed nsqd loses no messages, and redelivers
those that it has delivered since.
"""

from __future__ import annotations

import contextlib
import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import urllib3

from brokers.nsq import NsqdProcess, NsqlookupdProcess, nsqd_on_path
from spark_mq_source.nsq.format import NsqFormat
from spark_mq_source.testing import NsqBroker, NsqLookupd
from tests.chaos.faults import Kind, link_faults
from tests.chaos.loads import PAUSE_S, Load, Numbers, Stream, differences
from tests.fix_net import FaultProxy

BROKERS, LOOKUPDS = 3, 2
TOPIC = "chaos"
READ, TRUTH = "stream", "truth"
"""Channels: the first is read under faults, the second at the end."""
ROW = "value binary, nsqd string, message_id string"
ON_DISK = {"mem_queue_size": 0, "sync_every": 1 << 30, "sync_timeout_ms": 1 << 30}
"""A sync while messages are in flight loses them with the next kill; an nsqd that is killed three times between two
syncs overwrites messages (both seen on 1.3.0). So only clean stops sync, and one follows each kill.
"""

Message = tuple[str, str, bytes]
"""nsqd, id, value."""


class Channel(Stream):
    """A query that ends when its channel is empty: a message may wait for its timeout while triggers are idle."""

    def __init__(self, scene: Scene, name: str, seed: int, given: dict[str, str]) -> None:
        super().__init__(name, seed, NsqFormat(), given, ROW)
        self._scene = scene
        self._channel = given["channel"]

    @property
    def has_all(self) -> bool:
        """Whether all nsqd are empty."""
        # The count of a killed nsqd is negative if it has more messages than it has counted.
        return super().has_all and not any(self._scene.depths(self._channel))


class Scene:
    """The nsqd, their loads and their faults."""

    name = "nsq"

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._links: dict[str, FaultProxy] = {}
        self._lookupd: dict[str, NsqLookupd | NsqlookupdProcess] = {}
        self._nsqd: dict[str, NsqBroker | NsqdProcess] = {}
        self._ended: set[str] = set()
        self._unsynced: set[str] = set()
        self.loads: list[Load] = []

    def start(self) -> None:
        """Start the brokers and prepare the loads."""
        is_real = nsqd_on_path()
        for number in range(LOOKUPDS):
            name = f"nsqlookupd-{number}"
            self._lookupd[name] = NsqlookupdProcess(self._folder / name) if is_real else NsqLookupd()
            self._lookupd[name].start()
            self._stack.callback(self._lookupd[name].stop)
        for number in range(BROKERS):
            name = f"nsqd-{number}"
            settings: dict[str, Any] = {
                "lookupd": list(self._lookupd.values()),
                "node_id": number,
                "msg_timeout_ms": 5_000,
                **ON_DISK,
            }
            made: Any = NsqdProcess(self._folder / name, **settings) if is_real else NsqBroker(**settings)
            self._nsqd[name] = made
            made.start()
            self._stack.callback(made.stop)
            self._ask(name, "POST", f"/topic/create?topic={TOPIC}")
            for channel in (READ, TRUTH):
                self._ask(name, "POST", f"/channel/create?topic={TOPIC}&channel={channel}")
            # A queue whose position was never synced does not survive a kill.
            made.restart()
            host, _, port = made.tcp_address.partition(":")
            self._links[name] = self._stack.enter_context(FaultProxy(host, int(port)))
        self._access = {
            "nsqlookupdHttpAddresses": ",".join(one.http_address for one in self._lookupd.values()),
            "topic": TOPIC,
            "hostMap": ",".join(f"{self._nsqd[name].tcp_address}={link.address}" for name, link in self._links.items()),
            "operationTimeout": "5s",
            "heartbeatInterval": "1s",
        }
        links = ",".join(link.address for link in self._links.values())
        sink = {"nsqdTcpAddresses": links, "topic": TOPIC, "operationTimeout": "5s", "sendTimeout": "60s"}
        self.writer = Numbers("writer", self._seed, NsqFormat(), sink)
        self.stream, self._truth = map(self._channel_load, (READ, TRUTH))
        # A query that has read from an nsqd before its kill does not trust its count afterwards.
        self._truth.step()
        self.loads = [self.writer, self.stream]

    def _channel_load(self, channel: str) -> Channel:
        given = {"channel": channel, "walDir": str(self._folder / channel), "maxInFlight": "200"}
        return Channel(self, channel, self._seed, self._access | given)

    def stop(self) -> None:
        """Stop the brokers."""
        self._stack.close()

    def kinds(self) -> list[Kind]:
        """Return the kinds of faults. NSQ has no checksums, so bytes are not damaged."""
        link = link_faults(self._links, but={"flip"})
        kinds = [Kind("link", f"link {name}", [name], (0, 20), link) for name in self._links]
        for name in self._nsqd:
            kinds += [
                Kind("kill", name, [name], (0, 10), self._killed),
                Kind("stop", name, [name], (0, 10), self._stopped),
                Kind("freeze", name, [name], (1, 30), self._frozen),
            ]
        return kinds + [Kind("stop", name, [name], (0, 15), self._without_lookupd) for name in self._lookupd]

    @contextlib.contextmanager
    def _killed(self, name: str, _: random.Random) -> Iterator[None]:
        self._nsqd[name].crash()
        self._unsynced.add(name)
        with self._down(name):
            yield

    @contextlib.contextmanager
    def _stopped(self, name: str, _: random.Random) -> Iterator[None]:
        self._nsqd[name].stop()
        with self._down(name):
            yield

    @contextlib.contextmanager
    def _down(self, name: str) -> Iterator[None]:
        self._ended.add(name)
        try:
            yield
        finally:
            self._start(name)

    def _start(self, name: str) -> None:
        # Another connection may use its port for a time; then `heal` starts it.
        self._nsqd[name].start()
        if name in self._unsynced:
            self._nsqd[name].restart()
            self._unsynced.discard(name)
        self._ended.discard(name)

    @contextlib.contextmanager
    def _frozen(self, name: str, _: random.Random) -> Iterator[None]:
        nsqd, go_on = self._nsqd[name], threading.Event()
        if isinstance(nsqd, NsqBroker):
            # Its event loop is blocked, so that it accepts connections and answers nothing, as after SIGSTOP.
            assert nsqd._daemon is not None
            nsqd._daemon._loop.call_soon_threadsafe(go_on.wait)
        else:
            assert nsqd._process is not None
            nsqd._process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            go_on.set()
            if isinstance(nsqd, NsqdProcess) and nsqd._process is not None:
                nsqd._process.signal(signal.SIGCONT)

    @contextlib.contextmanager
    def _without_lookupd(self, name: str, _: random.Random) -> Iterator[None]:
        self._lookupd[name].stop()
        try:
            yield
        finally:
            self._lookupd[name].start()

    def heal(self) -> None:
        """Start the nsqd that their faults could not start again."""
        while self._ended:
            name = next(iter(self._ended))
            try:
                self._start(name)
            except (OSError, RuntimeError):
                time.sleep(PAUSE_S)  # there is no event for this

    def _ask(self, name: str, method: str, path: str) -> bytes:
        return urllib3.request(method, f"http://{self._nsqd[name].http_address}{path}", timeout=30.0).data

    def depths(self, channel: str) -> Iterator[int]:
        """Yield the number of unfinished messages of a channel, for each nsqd."""
        for name in self._nsqd:
            stats = json.loads(self._ask(name, "GET", f"/stats?format=json&topic={TOPIC}&channel={channel}"))
            for topic in stats["topics"]:
                yield topic["depth"]
                for one in topic["channels"]:
                    yield one["depth"] + one["in_flight_count"] + one["deferred_count"]

    def check(self) -> Iterator[str]:
        """Yield the messages that were lost, or read more than once.

        The other channel has had no consumer before, so it has each message of the topic. Writes are at least once.
        """
        if not self._truth.steps:
            self._truth.start()
            self._truth.finish()
            self._truth.join()
        if self._truth.problems:
            yield from (f"{TRUTH}: {problem}" for problem in self._truth.problems)
            return
        stored = {_message_of(row) for row in self._truth.rows}
        found = [_message_of(row) for row in self.stream.rows]
        for problem in differences(sorted(stored), found):
            yield f"stream: {problem}"
        times = Counter(value for _, _, value in stored)
        written = set(self.writer.values)
        if lost := written - set(times):
            yield f"written: {len(lost)} missing, such as {sorted(lost)[:5]}"
        if unknown := set(times) - written:
            yield f"written: {len(unknown)} that were never written, such as {sorted(unknown)[:5]}"


def _message_of(row: dict[str, Any]) -> Message:
    return row["nsqd"], row["message_id"], row["value"]
