"""The formats by their names."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

from spark_mq_source.core.errors import OptionError

if TYPE_CHECKING:
    from spark_mq_source.base_format import AnyFormat

_CLASSES: Final = {
    "pulsar-native": ("pulsar", "PulsarFormat"),
    "tubemq": ("tubemq", "TubeMQFormat"),
    "nsq": ("nsq", "NsqFormat"),
}
"""Package and class of each format."""


def load_format(name: str) -> AnyFormat:
    """Import a format, and return it.

    Raises:
        OptionError: the format is unknown.
    """
    if name not in _CLASSES:
        raise OptionError(f"unknown format {name}; expected one of {', '.join(_CLASSES)}")
    package, kind = _CLASSES[name]
    format_: AnyFormat = getattr(import_module(f"spark_mq_source.{package}.format"), kind)()
    return format_
