"""The common part of directed fuzzers: choices by seed, columns to read, the comparison of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any


def seeded(
    decodes: Callable[[Random, int, str], int], encodes: Callable[[Random, int, str], int]
) -> Callable[[int], int]:
    """Return a function that compares decoders, or encoders, with the oracle for a seed, and returns the message count.

    It raises an AssertionError with the seed and the compared data at a difference.
    """

    def run(seed: int) -> int:
        compare_loops = encodes if seed % 3 == 2 else decodes
        return compare_loops(Random(seed), seed, "python" if seed % 8 == 7 else "native")

    return run


def random_columns(rng: Random, readable: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return columns and types of a read: all columns half of the time."""
    names = list(readable)
    if rng.random() < 0.5:
        names = rng.sample(names, rng.randint(0, len(names)))
    return {name: rng.choice(readable[name]) for name in names}


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]], origins: Sequence[Any]) -> None:
    """Compare rows cell by cell; where the expected cell is an ellipsis, any content is accepted.

    Raises:
        AssertionError: a cell differs; the error names its column and origin.
    """
    assert len(found) == len(expected), (len(found), len(expected), origins[:1])
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one == other:
            continue
        for name, cell in other.items():
            is_same = bool(one[name]) if cell is Ellipsis else one[name] == cell
            assert is_same, f"{name}: {one[name]!r}, expected {cell!r}; {origins[row]}"
