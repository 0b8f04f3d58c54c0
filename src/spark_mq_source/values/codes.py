"""Codes of steps, which a compiled loop has as a C enum; both are compared when the loop is imported."""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum


def check_codes(codes: type[IntEnum], compiled: Iterable[IntEnum]) -> None:
    """Check that a compiled loop was built with the same codes; names in C may end with an underscore.

    Raises:
        ImportError: the codes differ: the module is older or newer than the package.

    Example:
        >>> from spark_mq_source.values.json.steps import Code
        >>> check_codes(Code, Code)
        >>> check_codes(Code, [])
        Traceback (most recent call last):
        ...
        ImportError: the compiled module was built from another version of this package: build it again
    """
    if [(code.name, code.value) for code in codes] != [(code.name.rstrip("_"), code.value) for code in compiled]:
        raise ImportError("the compiled module was built from another version of this package: build it again")
