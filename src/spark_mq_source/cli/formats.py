"""The formats of `spark-mq`, and the columns of a message that have the same meaning in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Known:
    """The columns of a format for the parts of a line of `peek`.

    Attributes:
        partition: the columns that identify the partition within the topic.
        time: the column with the broker's time or, in TubeMQ, the producer's.
        key: the column most similar to a key; None if messages have none.
        headers: the column with the producer's headers; None if messages have none.
    """

    partition: Sequence[str]
    time: str
    key: str | None = None
    headers: str | None = None


FORMATS: Final[Mapping[str, Known]] = {
    "pulsar-native": Known(("partition",), "publish_time", "key", "properties"),
    "tubemq": Known(("broker_id", "partition"), "message_time", "message_type", "attributes"),
    "nsq": Known(("nsqd",), "timestamp"),
}
