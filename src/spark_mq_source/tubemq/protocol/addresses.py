"""Texts of servers 2.4.0 for brokers, partitions, topics and failures."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_mq_source.core.errors import RemoteProtocolError

PLAIN_PORT: Final = 8123
"""The default port of a broker, without TLS (TBaseConstants)."""

TLS_PORT: Final = 8124
"""Its default port for TLS."""


class Broker(NamedTuple):
    """A broker, as masters write it: `id:host:port`.

    Masters omit a default port, as in `1:127.0.0.1: `: 8123, or to a client over TLS 8124 (2.4.0, BrokerConfEntity).

    Example:
        >>> broker = Broker.parse("1:127.0.0.1:8123")
        >>> broker, str(broker), broker.address
        (Broker(broker_id=1, host='127.0.0.1', port=8123), '1:127.0.0.1:8123', '127.0.0.1:8123')
    """

    broker_id: int
    host: str
    port: int

    @property
    def address(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{self.broker_id}:{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, default_port: int = PLAIN_PORT) -> Broker:
        """Parse the text of a broker.

        Args:
            text: the text.
            default_port: the port of a broker whose text omits it.

        Raises:
            RemoteProtocolError: the text is invalid.
        """
        broker_id, _, address = text.partition(":")
        host, _, port = address.rpartition(":")
        try:
            return cls(int(broker_id), _not_empty(host), default_port if port == " " else int(port))
        except ValueError:
            raise RemoteProtocolError(f"the server names a broker {text!r}, which is not id:host:port") from None


class BrokerPartition(NamedTuple):
    """A partition of a topic on a broker, as masters and brokers write it: `id:host:port#topic:partition`.

    Example:
        >>> partition = BrokerPartition.parse("client@group#1:127.0.0.1:8123#demo:2")
        >>> partition.topic, partition.partition_id, str(partition), partition.subscribed("client", "group")
        ('demo', 2, '1:127.0.0.1:8123#demo:2', 'client@group#1:127.0.0.1:8123#demo:2')
    """

    broker: Broker
    topic: str
    partition_id: int

    def __str__(self) -> str:
        return f"{self.broker}#{self.topic}:{self.partition_id}"

    def subscribed(self, client_id: str, group_name: str) -> str:
        """Return the partition with its reader: an item of `subscribe_info`."""
        return f"{client_id}@{group_name}#{self}"

    @classmethod
    def parse(cls, text: str) -> BrokerPartition:
        """Parse the text of a partition, with or without its reader in front.

        Raises:
            RemoteProtocolError: the text is invalid.
        """
        parts = text.split("#")
        try:
            topic, _, partition_id = parts[-1].rpartition(":")
            return cls(Broker.parse(parts[-2]), _not_empty(topic), int(partition_id))
        except (IndexError, ValueError, RemoteProtocolError):
            raise RemoteProtocolError(
                f"the server names a partition {text!r}, which is not id:host:port#topic:partition"
            ) from None


class TopicMeta(NamedTuple):
    """One topic on one broker.

    Attributes:
        stores: number of its stores; all partitions of one store share an index.
        partitions: number of partitions of each store.
        status: 1 if it can be read (seen on master 2.4.0); None if not reported. Not obeyed: 0 can also mean that the
            broker is down, whose messages must not be left out.
        max_bytes: the largest message that the topic takes; None if it has no limit of its own.

    Example:
        >>> TopicMeta("demo", 1, stores=2, partitions=3).partition_ids
        (0, 1, 2, 10000, 10001, 10002)
    """

    topic: str
    broker_id: int
    stores: int
    partitions: int
    status: int | None = None
    max_bytes: int | None = None

    @property
    def partition_ids(self) -> tuple[int, ...]:
        """Its partition ids: those of store n begin at n * 10000 (server 2.4.0)."""
        return tuple(store * 10_000 + n for store in range(self.stores) for n in range(self.partitions))


def parse_topic_metas(texts: tuple[str, ...]) -> list[TopicMeta]:
    """Parse `topic_meta_info_list` of GET_PART_META: `topic#broker:stores:partitions:status,...` (master 2.4.0).

    Raises:
        RemoteProtocolError: a text is invalid.

    Example:
        >>> parse_topic_metas(("demo#1:2:3:1,2:1:3:1",))[0]
        TopicMeta(topic='demo', broker_id=1, stores=2, partitions=3, status=1, max_bytes=None)
    """
    return [
        TopicMeta(topic, broker_id, stores, partitions, status)
        for topic, (broker_id, stores, partitions, status), _ in _parse_metas(texts, 4)
    ]


def parse_topic_infos(texts: tuple[str, ...]) -> list[TopicMeta]:
    """Parse `topic_infos` of a producer's heartbeat: `topic#broker:partitions:stores,...#`, in a different order.

    The text after the last `#` is the topic's own size limit; without one, that of `appd_config` applies.

    Raises:
        RemoteProtocolError: a text is invalid.

    Example:
        >>> parse_topic_infos(("demo#1:3:2#2097152",))
        [TopicMeta(topic='demo', broker_id=1, stores=2, partitions=3, status=None, max_bytes=2097152)]
    """
    return [
        TopicMeta(topic, broker_id, stores, partitions, max_bytes=int(size) if size.isdecimal() else None)
        for topic, (broker_id, partitions, stores), size in _parse_metas(texts, 3)
    ]


MAX_STORES_AND_PARTITIONS: Final = 100_000
"""Maximum number of partitions on one broker; a larger number means a damaged answer."""


def _parse_metas(texts: tuple[str, ...], numbers: int) -> list[tuple[str, list[int], str]]:
    found = []
    for text in texts:
        topic, _, rest = text.partition("#")
        try:
            places, _, size = _not_empty(rest).partition("#")
            for item in places.split(","):
                values = [int(number) for number in item.split(":")]
                if len(values) != numbers or not 0 <= values[1] * values[2] <= MAX_STORES_AND_PARTITIONS:
                    raise ValueError  # noqa: TRY301 - the same fault as a number that is none
                found.append((_not_empty(topic), values, size.strip()))
        except ValueError:
            raise RemoteProtocolError(f"the master describes a topic by {text!r}, which cannot be read") from None
    return found


def parse_failure(text: str) -> tuple[int, BrokerPartition]:
    """Parse an item of `failure_info` of a broker's heartbeat: `code:id:host:port#topic:partition` (server 2.4.0).

    Raises:
        RemoteProtocolError: the text is invalid.

    Example:
        >>> parse_failure("411:1:127.0.0.1:8133#demo:1")[0]
        411
    """
    code, _, partition = text.partition(":")
    if not code.isdecimal():
        raise RemoteProtocolError(f"the broker reports a failure {text!r}, which cannot be read")
    return int(code), BrokerPartition.parse(partition)


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError
    return text
