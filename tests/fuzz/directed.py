"""What the fuzzers that are directed by seeds share: what a seed decides, columns to read, the comparison of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any


def seeded(
    decodes: Callable[[Random, int, str], int], encodes: Callable[[Random, int, str], int]
) -> Callable[[int], int]:
    """Return what compares decoders, or encoders, with the oracle for a seed, and tells how many messages it compared.

    Both raise an AssertionError where something differs; it names the seed and what was compared.
    """

    def run(seed: int) -> int:
        compare_loops = encodes if seed % 3 == 2 else decodes
        return compare_loops(Random(seed), seed, "python" if seed % 8 == 7 else "native")

    return run


def random_columns(rng: Random, readable: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return columns and types of a read: all that there are half of the time."""
    names = list(readable)
    if rng.random() < 0.5:
        names = rng.sample(names, rng.randint(0, len(names)))
    return {name: rng.choice(readable[name]) for name in names}


def compare(found: list[dict[str, Any]], expected: list[dict[str, Any]], origins: Sequence[Any]) -> None:
    """Compare rows cell by cell; of a cell that is to be an ellipsis any content will do.

    Raises:
        AssertionError: a cell differs; names its column and where it came from.
    """
    assert len(found) == len(expected), (len(found), len(expected), origins[:1])
    for row, (one, other) in enumerate(zip(found, expected, strict=True)):
        if one == other:
            continue
        for name, cell in other.items():
            is_same = bool(one[name]) if cell is Ellipsis else one[name] == cell
            assert is_same, f"{name}: {one[name]!r}, expected {cell!r}; {origins[row]}"
