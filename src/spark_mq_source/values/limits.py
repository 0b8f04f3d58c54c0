"""The limits of schemas that become columns, against schemas whose columns would exhaust the memory of the driver."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

MAX_DEPTH: Final = 64
"""The maximum depth of types in a schema."""

_MAX_TYPES: Final = 20_000

_T = TypeVar("_T", bound=Hashable)


def check_size(type_: _T, parts_of: Callable[[_T], Iterable[_T]], name_of: Callable[[_T], str]) -> None:
    """Refuse a type that contains itself, is nested too deeply, or has too many types in it.

    Args:
        type_: the type, such as a record.
        parts_of: returns the types directly in a type. A type that is used several times counts once per use, as in
            the columns, but is visited only once.
        name_of: returns the name of a type.

    Raises:
        ValueError: the type cannot be columns; the message gives the reason.

    Example:
        >>> check_size("a", {"a": "bb", "b": "cc", "c": ""}.__getitem__, str)
        >>> check_size("a", {"a": "b", "b": "ca", "c": ""}.__getitem__, str)
        Traceback (most recent call last):
        ...
        ValueError: a contains itself
    """
    known: dict[_T, tuple[int, int]] = {}
    around: list[_T] = []

    def measure(one: _T) -> tuple[int, int]:
        """Return the depth of a type and the number of types in it."""
        if one in around:
            raise ValueError(f"{name_of(one)} contains itself")
        if one not in known:
            around.append(one)
            # The depth is compared on the way down too, because Python limits the depth of calls.
            parts = [measure(part) for part in parts_of(one)] if len(around) <= MAX_DEPTH else [(MAX_DEPTH, 0)]
            around.pop()
            depth, count = 1 + max((part[0] for part in parts), default=0), 1 + sum(part[1] for part in parts)
            if depth > MAX_DEPTH:
                raise ValueError(f"{name_of(one)} is nested more than {MAX_DEPTH} types deep")
            if count > _MAX_TYPES:
                raise ValueError(f"{name_of(one)} consists of more than {_MAX_TYPES} types")
            known[one] = depth, count
        return known[one]

    measure(type_)
