"""The official Java client of TubeMQ: one process for all tests, started by the first request."""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from brokers.tubemq import TubeCluster, distribution
from tests.java_program import JavaProgram

if TYPE_CHECKING:
    from typing_extensions import Self

PATIENCE_S = 60.0


@dataclass(frozen=True)
class JavaMessage:
    """A message as the Java client read it.

    Attributes:
        value: its body.
        type: the type compared by filters; None for none.
        time: `yyyyMMddHHmm`; None for none.
        attributes: all of them, as `key=value` joined by commas; None for none.
        id: the message's, which is not unique.
        partition: `broker:topic:partition`.
    """

    value: bytes
    type: str | None
    time: str | None
    attributes: str | None
    id: int
    partition: str


@dataclass(frozen=True)
class Place:
    """The position of a published message."""

    broker_id: int
    partition: int
    message_id: int
    offset: int


class TubeJavaClient:
    """Requests to `TubeClient.java`.

    It cannot be used with secure clusters: its heartbeats carry no user, so masters refuse them, and it has no client
    certificates (2.4.0).
    """

    def __init__(self, log: Path) -> None:
        self._program = JavaProgram("TubeClient.java", distribution() / "lib", log)

    def close(self) -> None:
        """End the process."""
        self._program.close()

    def produce(self, cluster: TubeCluster, topic: str, messages: Sequence[Mapping[str, Any] | bytes]) -> list[Place]:
        """Publish messages; return their positions in the order given, once all are acknowledged.

        Args:
            cluster: the cluster to use.
            topic: must exist.
            messages: a value, or a mapping with value, type, time (`yyyyMMddHHmm`) and attributes (a mapping).
        """
        documents = [_document(m if isinstance(m, Mapping) else {"value": m}) for m in messages]
        places = self._ask(cluster, do="produce", topic=topic, messages=documents)
        return [Place(*place) for place in places]

    def consume(
        self,
        cluster: TubeCluster,
        topic: str,
        group: str,
        count: int,
        *,
        filters: Sequence[str] | None = None,
        balanced: bool = False,
    ) -> list[JavaMessage]:
        """Read this many messages under a group, from its position or the start; confirm them.

        Args:
            cluster: the cluster to use.
            topic: the topic to read.
            group: its only member is this client.
            count: the minimum; more may be returned.
            filters: message types.
            balanced: as a client that assigns its partitions itself, from their starts.
        """
        do = "consume_balanced" if balanced else "consume"
        found = self._ask(cluster, do=do, topics=[topic], group=group, count=count, filters=filters)
        return [_message(document) for document in found]

    def join(
        self,
        cluster: TubeCluster,
        topics: Sequence[str],
        group: str,
        *,
        reading: bool = True,
        session: str | None = None,
        members: int = 1,
        offsets: Mapping[str, int] | None = None,
    ) -> Member:
        """Join a group, whose partitions the masters assign, and read and confirm until `leave`.

        With `session`, `members` members start together, each with its offsets by `broker:topic:partition`.
        """
        name = f"member-{time.monotonic_ns()}"
        start = {"session": session, "members": members, "offsets": offsets}
        self._ask(cluster, do="join", name=name, topics=list(topics), group=group, reading=reading, **start)
        return Member(self, cluster, name)

    def _ask(self, cluster: TubeCluster, **request: Any) -> Any:
        request["masters"] = cluster.master_addresses
        return self._program.ask(request)


@dataclass
class Member:
    """A consumer of a group in the Java program.

    Attributes:
        read: all that it has confirmed until the last request.
        held: the partitions assigned to it, `broker:topic:partition`, each with its position.
    """

    client: TubeJavaClient
    cluster: TubeCluster
    name: str
    read: list[JavaMessage] = field(default_factory=list)
    held: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.leave()

    def look(self) -> Self:
        """Bring `read` and `held` up to date."""
        return self._take("member")

    def leave(self) -> Self:
        """Return its partitions to the group and end."""
        return self._take("leave")

    def wait_until(self, condition: Callable[[Member], bool], what: str) -> Self:
        """Poll until the condition holds.

        Raises:
            AssertionError: it does not hold within a minute.
        """
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self.look()):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"waited in vain until {what}: holds {sorted(self.held)}, has read {len(self.read)}"
                )
            time.sleep(0.05)  # the Java client offers no event for it
        return self

    def _take(self, do: str) -> Self:
        state = self.client._ask(self.cluster, do=do, name=self.name)
        self.read += [_message(document) for document in state["messages"]]
        self.held = state["held"]
        return self


def _document(message: Mapping[str, Any]) -> dict[str, Any]:
    return {k: base64.b64encode(v).decode() if isinstance(v, bytes) else v for k, v in message.items()}


def _message(document: Mapping[str, Any]) -> JavaMessage:
    return JavaMessage(**{**document, "value": base64.b64decode(document["value"])})
