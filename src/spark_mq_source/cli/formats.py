"""The formats of `spark-mq`, and the columns of a message that have the same meaning in all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Final

from spark_mq_source.core.errors import OptionError

if TYPE_CHECKING:
    from spark_mq_source.base_format import AnyFormat


@dataclass(frozen=True, slots=True)
class Known:
    """A format, and the columns for the parts of a line of `peek`.

    Attributes:
        module: the module of the format, imported at first use.
        partition: the columns that identify the partition within the topic.
        time: the column with the broker's time or, in TubeMQ, the producer's.
        key: the column most similar to a key; None if messages have none.
        headers: the column with the producer's headers; None if messages have none.
    """

    module: str
    kind: str
    partition: Sequence[str]
    time: str
    key: str | None = None
    headers: str | None = None


FORMATS: Final[Mapping[str, Known]] = {
    "pulsar-native": Known(
        "spark_mq_source.pulsar.format", "PulsarFormat", ("partition",), "publish_time", "key", "properties"
    ),
    "tubemq": Known(
        "spark_mq_source.tubemq.format",
        "TubeMQFormat",
        ("broker_id", "partition"),
        "message_time",
        "message_type",
        "attributes",
    ),
    "nsq": Known("spark_mq_source.nsq.format", "NsqFormat", ("nsqd",), "timestamp"),
}


def load_format(name: str) -> AnyFormat:
    """Load the format of this name.

    Raises:
        OptionError: the format is unknown.
    """
    if name not in FORMATS:
        raise OptionError(f"unknown format {name}; expected one of {', '.join(FORMATS)}")
    known = FORMATS[name]
    format_: AnyFormat = getattr(import_module(known.module), known.kind)()
    return format_
