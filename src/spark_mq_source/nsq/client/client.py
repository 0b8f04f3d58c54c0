"""Discovery of nsqd, their backlogs and their limits: the HTTP interfaces of nsqlookupd and nsqd.

nsqlookupd lists the nsqd to read from and write to. All nsqlookupd are queried at once and their answers merged,
because they do not share their data. nsqd's own HTTP interface improves plans if it is reachable, but is not required.
Source of the answers: recorded from nsqd and nsqlookupd 1.3.0.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlencode

from spark_mq_source.core.errors import MQSourceError, RemoteProtocolError, TopicNotFoundError, TransportError
from spark_mq_source.net.retry import Deadline
from spark_mq_source.net.transport import TlsSettings
from spark_mq_source.nsq.client.session import Session
from spark_mq_source.nsq.options import NsqOptions, parse_address

logger = logging.getLogger(__name__)

_OPTIONAL_SECONDS: Final = 1.0
"""Timeout of a request whose answer is optional."""
_UNREACHABLE_SECONDS: Final = 60.0
"""Time for which an HTTP interface that did not answer gets no further optional requests."""

_NO_SUCH_TOPIC: Final = "TOPIC_NOT_FOUND"
"""Text in the body of nsqlookupd's 404 to a lookup (nsqlookupd 1.3.0)."""

_Interface = tuple[str, TlsSettings]
"""The URL of an HTTP interface, and the TLS settings: with other certificates it may be reachable."""

_unreachable_until: dict[_Interface, float] = {}
"""The end of the pause, in monotonic seconds; shared by the process, because each task has a new client."""
_unreachable_reasons: dict[_Interface, str] = {}
"""The reason why an HTTP interface did not answer the last time."""


@dataclass(frozen=True, slots=True)
class Nsqd:
    """One nsqd.

    Attributes:
        name: ``host:port`` as the nsqd announces itself, or as the user named it: its identity, independent of
            `hostMap`.
        http_url: the expected URL of its HTTP interface; None if unknown.
    """

    name: str
    host: str
    port: int
    http_url: str | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """A topic on an nsqd: what one connection consumes."""

    topic: str
    nsqd: Nsqd

    @classmethod
    def of_plan(cls, topic: str, nsqd: Mapping[str, Any]) -> Source:
        """Return a source from its form in a plan."""
        return cls(topic, Nsqd(**nsqd))

    @property
    def name(self) -> str:
        """The identity of the source: message ids are unique only for a topic and an nsqd (seen on nsqd 1.3.0)."""
        return f"{self.topic} on {self.nsqd.name}"


@dataclass(frozen=True, slots=True)
class Topology:
    """The nsqd and channels of a topic.

    Attributes:
        nsqds: the nsqd that have the topic, in a stable order; all of `nsqdTcpAddresses`.
        channels: the topic's channels known to nsqlookupd.
        is_known: whether an nsqlookupd knows the topic. It may list no nsqd: those that have the topic are then down.
    """

    nsqds: tuple[Nsqd, ...]
    channels: frozenset[str]
    is_known: bool


@dataclass(frozen=True, slots=True)
class ChannelStats:
    """Statistics of a channel from an nsqd: an estimate, a moment old.

    Attributes:
        exists: whether the nsqd has the channel; if not, the only messages are the topic's.
        depth: messages that wait in the channel; after a kill of nsqd fewer, even less than 0 (seen on 1.3.0).
        topic_depth: messages that wait in the topic, which passes them to every channel.
        in_flight: messages delivered to consumers and not finished.
        deferred: messages that wait for their delivery time.
        is_paused: whether the channel delivers nothing.
        is_topic_paused: whether the topic passes nothing to its channels; they deliver what they have (nsqd 1.3.0,
            topic.go).
        started_s: when nsqd started, in seconds since 1970.
    """

    exists: bool
    depth: int = 0
    topic_depth: int = 0
    in_flight: int = 0
    deferred: int = 0
    is_paused: bool = False
    is_topic_paused: bool = False
    started_s: int = field(default=0, compare=False)


class NsqClient:
    """Client that finds nsqd and opens connections to them, according to the options.

    Example:
        ::

            client = NsqClient(options)
            for nsqd in client.fetch_topology("flights").nsqds:
                with client.open_session(nsqd) as session:
                    ...
    """

    def __init__(self, options: NsqOptions) -> None:
        self._options = options
        self._mapped = dict(options.host_map)
        self._tls = TlsSettings.of(options)

    def open_session(self, nsqd: Nsqd) -> Session:
        """Open a connection to an nsqd, negotiated and authorized.

        Raises:
            MQSourceError: see `Session`.
        """
        try:
            return Session(self._options, nsqd.host, nsqd.port)
        except MQSourceError as error:
            hint = "" if nsqd.name == _address(nsqd.host, nsqd.port) else f" (which announces {nsqd.name}; see hostMap)"
            raise error.within(f"nsq{hint}") from error

    def fetch_topology(self, topic: str) -> Topology:
        """Return the nsqd that have a topic, and its channels.

        Raises:
            MQSourceError: no nsqlookupd answered, or an answer was invalid.
        """
        found = dict(self._given())
        channels: set[str] = set()
        answers = self._get_lookupds(f"/lookup?{urlencode({'topic': topic})}")
        for url, answer in answers:
            for producer in _objects(answer, "producers", url):
                nsqd = self._nsqd_of(producer, url)
                found.setdefault(nsqd.name, nsqd)
            names = answer.get("channels")
            channels.update(name for name in names if isinstance(name, str)) if isinstance(names, list) else None
        return Topology(tuple(found[name] for name in sorted(found)), frozenset(channels), bool(answers))

    def fetch_topics(self) -> list[str]:
        """Return the names of all topics, from each nsqlookupd and from the nsqd of `nsqdTcpAddresses`.

        Raises:
            TransportError: an nsqd does not report its topics.
            MQSourceError: no nsqlookupd answered.
        """
        names: set[str] = set()
        for _, answer in self._get_lookupds("/topics"):
            listed = answer.get("topics")
            names.update(name for name in listed if isinstance(name, str)) if isinstance(listed, list) else None
        for _, nsqd in self._given():
            of_nsqd = self.fetch_channels(nsqd)
            if of_nsqd is None:
                raise TransportError(
                    f"nsq: {nsqd.name} does not report its topics ({self.missing_stats_reason(nsqd)}); set "
                    f"nsqdHttpAddresses, or topics instead of topicsPattern"
                )
            names.update(of_nsqd)
        return sorted(names)

    def fetch_writable(self, topic: str | None) -> tuple[Nsqd, ...]:
        """Return the nsqd to write to: all of them, whether they have the topic or not, except tombstoned ones.

        Raises:
            MQSourceError: no nsqlookupd answered, or an answer was invalid.
        """
        found = dict(self._given())
        for url, answer in self._get_lookupds("/nodes"):
            for producer in _objects(answer, "producers", url):
                if _is_tombstoned(producer, topic):
                    continue
                nsqd = self._nsqd_of(producer, url)
                found.setdefault(nsqd.name, nsqd)
        return tuple(found[name] for name in sorted(found))

    def fetch_stats(self, nsqd: Nsqd, topic: str, channel: str) -> ChannelStats | None:
        """Return the statistics of a channel; None if the HTTP interface does not answer."""
        # All channels: if the channel is missing, nsqd 1.3.0 omits the topic too.
        answer = self._get_stats(nsqd, topic)
        if answer is None:
            return None
        started_s = _number(answer.get("start_time"))
        topics = answer.get("topics") or ()
        of_topic = next((one for one in topics if one.get("topic_name") == topic), None)
        if of_topic is None:
            return ChannelStats(exists=False, started_s=started_s)
        channels = of_topic.get("channels") or ()
        found: Mapping[str, Any] = next((one for one in channels if one.get("channel_name") == channel), {})
        return ChannelStats(
            exists=bool(found),
            depth=_depth(found),
            topic_depth=_depth(of_topic),
            in_flight=_number(found.get("in_flight_count")),
            deferred=_number(found.get("deferred_count")),
            is_paused=bool(found.get("paused")),
            is_topic_paused=bool(of_topic.get("paused")),
            started_s=started_s,
        )

    def fetch_channels(self, nsqd: Nsqd, topic: str = "") -> dict[str, list[str]] | None:
        """Return the channels of one or each topic of an nsqd; None if the HTTP interface does not answer."""
        answer = self._get_stats(nsqd, topic)
        if answer is None:
            return None
        topics = answer.get("topics") or ()
        return {one["topic_name"]: [each["channel_name"] for each in one.get("channels") or ()] for one in topics}

    def missing_stats_reason(self, nsqd: Nsqd) -> str:
        """Return the reason why `fetch_stats` returned None; empty if unknown."""
        return _unreachable_reasons.get((nsqd.http_url or "", self._tls), "")

    def fetch_setting(self, nsqd: Nsqd, name: str, default: int) -> int:
        """Return a number of an nsqd's configuration, such as `max_msg_size`; `default` if it does not report it."""
        return _number(self._http_get(nsqd, f"/config/{name}"), default)

    # -- addresses

    def _given(self) -> Iterable[tuple[str, Nsqd]]:
        https = self._options.nsqd_http_addresses
        for index, (host, port) in enumerate(self._options.nsqd_tcp_addresses):
            name = _address(host, port)
            reached = self._reached(host, port)
            if https:
                yield name, Nsqd(name, *reached, https[index])
            else:
                # The next port, as with nsqd's defaults (4150 and 4151); `_http_get` verifies it.
                yield name, Nsqd(name, *reached, f"http://{_address(reached[0], reached[1] + 1)}")

    def _nsqd_of(self, producer: Mapping[str, object], url: str) -> Nsqd:
        host, port, http_port = (producer.get(name) for name in ("broadcast_address", "tcp_port", "http_port"))
        if not isinstance(host, str) or not isinstance(port, int) or not isinstance(http_port, int):
            raise RemoteProtocolError(f"{url}: an nsqd without an address; is this the HTTP address of an nsqlookupd?")
        http = _address(*self._reached(host, http_port))
        return Nsqd(_address(host, port), *self._reached(host, port), f"http://{http}")

    def _reached(self, host: str, port: int) -> tuple[str, int]:
        whole = self._mapped.get(_address(host, port))
        return parse_address(whole or self._mapped.get(host, _bracketed(host)), port)

    # -- requests

    def _get_lookupds(self, path: str) -> Sequence[tuple[str, Mapping[str, object]]]:
        """Return the answers of all nsqlookupd that gave one; an empty sequence if none knows the topic."""
        urls = self._options.nsqlookupd_http_addresses
        if not urls:
            return ()
        now = time.monotonic()
        # One that is down is skipped, unless there is no other.
        fresh = [url for url in urls if _unreachable_until.get((url, self._tls), 0.0) <= now]
        deadline = Deadline.after_ms(self._options.operation_timeout_ms)
        # A new one also has a short timeout, unless it is the only one.
        seconds = deadline.remaining_seconds() if len(urls) == 1 else min(deadline.remaining_seconds(), 2.0)
        answered, failures = self._get_all(fresh, path, seconds)
        if not answered and (failures or not fresh) and not deadline.expired:
            answered, failures = self._get_all(urls, path, deadline.remaining_seconds())
        if not answered and failures:
            url, error = failures[0]
            raise error.within(f"nsq: asking nsqlookupd {url}") from error
        for url, error in failures:
            logger.warning("nsqlookupd %s did not answer, the others did: %s", url, error)
        return [(url, answer) for url, answer in answered if answer is not None]

    def _get_all(
        self, urls: Sequence[str], path: str, timeout_seconds: float
    ) -> tuple[list[tuple[str, Mapping[str, object] | None]], list[tuple[str, MQSourceError]]]:
        if not urls:
            return [], []
        options = self._options
        # As Go clients do (go-nsq 1.1.0); nsqlookupd itself ignores it.
        headers = {"Authorization": f"Bearer {options.auth_secret}"} if options.lookupd_authorization else {}

        def ask(url: str) -> Mapping[str, object] | MQSourceError | None:
            try:
                answer = self._fetch(url + path, timeout_seconds, headers)
            except TopicNotFoundError as error:
                # Any other 404 is from another program, such as an nsqd (nsqlookupd 1.3.0: {"message": ...}).
                if _NO_SUCH_TOPIC in (error.broker_message or ""):
                    return None
                msg = (
                    f"{url}{path}: HTTP status 404 without {_NO_SUCH_TOPIC}; is this the HTTP address of an nsqlookupd?"
                )
                return RemoteProtocolError(msg)
            except MQSourceError as error:
                return error
            if isinstance(answer, dict):
                # Under "data" in nsqlookupd before 1.0.
                inner = answer.get("data", answer)
                if isinstance(inner, dict):
                    return inner
            return RemoteProtocolError(f"{url}: not an answer of nsqlookupd")

        with ThreadPoolExecutor(len(urls), thread_name_prefix="nsqlookupd") as pool:
            answers = list(zip(urls, pool.map(ask, urls), strict=True))
        failures = [(url, answer) for url, answer in answers if isinstance(answer, MQSourceError)]
        for url, answer in answers:
            if isinstance(answer, TransportError):
                _unreachable_until[url, self._tls] = time.monotonic() + _UNREACHABLE_SECONDS
            else:
                _unreachable_until.pop((url, self._tls), None)
        return [(url, answer) for url, answer in answers if not isinstance(answer, MQSourceError)], failures

    def _get_stats(self, nsqd: Nsqd, topic: str) -> Mapping[str, Any] | None:
        wanted = {"format": "json", "topic": topic, "include_clients": "false", "include_mem": "false"}
        answer = self._http_get(nsqd, f"/stats?{urlencode(wanted)}")
        return answer.get("data", answer) if isinstance(answer, dict) else None  # under "data" in nsqd before 1.0

    def _http_get(self, nsqd: Nsqd, path: str) -> object:
        """Return an answer of nsqd's HTTP interface; None without one."""
        url = nsqd.http_url
        if url is None or _unreachable_until.get((url, self._tls), 0.0) > time.monotonic():
            return None
        try:
            is_guess = not self._options.nsqd_http_addresses and nsqd.name in dict(self._given())
            if is_guess and not self._is_of(url, nsqd):
                _unreachable_reasons[url, self._tls] = (
                    f"{url} is not the HTTP interface of {nsqd.name}; set nsqdHttpAddresses"
                )
                return None
            return self._fetch(url + path, _OPTIONAL_SECONDS, {}, retries=False)
        except MQSourceError as error:
            logger.info("%s: no HTTP interface at %s, going on without: %s", nsqd.name, url, error)
            _unreachable_reasons[url, self._tls] = str(error)
            _unreachable_until[url, self._tls] = time.monotonic() + _UNREACHABLE_SECONDS
            return None

    def _is_of(self, url: str, nsqd: Nsqd) -> bool:
        """Return whether a guessed HTTP interface belongs to this nsqd."""
        info = self._fetch(url + "/info", _OPTIONAL_SECONDS, {}, retries=False)
        announced = parse_address(nsqd.name, 0)[1]
        return isinstance(info, dict) and info.get("data", info).get("tcp_port") in {announced, nsqd.port}

    def _fetch(self, url: str, timeout_seconds: float, headers: Mapping[str, str], *, retries: bool = True) -> object:
        from spark_mq_source.net.http import fetch_json  # noqa: PLC0415 - a fifth of what a task imports, and few need it

        return fetch_json(
            url,
            headers=headers,
            tls=self._tls,
            timeout_seconds=timeout_seconds,
            address="nsqd's or nsqlookupd's HTTP address",
            retries=retries,
        )


def _address(host: str, port: int) -> str:
    return f"{_bracketed(host)}:{port}"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _objects(answer: Mapping[str, object], name: str, url: str) -> Iterable[Mapping[str, object]]:
    found = answer.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise RemoteProtocolError(f"{url}: {name} is not a list; is this the HTTP address of an nsqlookupd?")
    return found


def _is_tombstoned(producer: Mapping[str, object], topic: str | None) -> bool:
    topics, tombstones = producer.get("topics"), producer.get("tombstones")
    if not isinstance(topics, list) or not isinstance(tombstones, list):
        return False
    return (topic, True) in zip(topics, tombstones, strict=False)


def _depth(counted: Mapping[str, object]) -> int:
    value = counted.get("depth")
    return value if isinstance(value, int) else 0


def _number(value: object, otherwise: int = 0) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else otherwise
