"""Time zones by their names."""

from __future__ import annotations

from datetime import timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from spark_mq_source.core.errors import OptionError


def time_zone(name: str) -> tzinfo:
    """Return a time zone; only `UTC` exists on a machine without a database of time zones, such as a slim image.

    Raises:
        OptionError: the machine has no such time zone.

    Example:
        >>> time_zone("UTC")
        datetime.timezone.utc
    """
    if name == "UTC":
        return timezone.utc
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise OptionError(
            f"unknown time zone {name!r} on this machine: expected a name such as UTC or Asia/Shanghai; if the machine "
            "has no time zones, run pip install tzdata on it and on all executors"
        ) from None
