"""Divides the limit of one trigger among topic-partitions or servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

NameT = TypeVar("NameT")
SortableT = TypeVar("SortableT", bound=Any)


def share_out(
    backlogs: Mapping[NameT, int], budget: int, costs: Mapping[NameT, float] | None = None
) -> dict[NameT, int]:
    """Divide `budget` in proportion to the backlogs.

    Each name with a backlog gets at least one entry; if the budget is too small, only the first names get one. The
    parts never cost more than the budget, except for a single entry, and no part is larger than its backlog.

    Args:
        backlogs: the number of waiting entries, in the order of turns.
        budget: the budget to divide, at least 1.
        costs: the cost of one entry; 1 by default.

    Returns:
        The parts, in entries and in the order of turns.

    Example:
        >>> share_out({"a": 90, "b": 10, "c": 0}, 20)
        {'a': 18, 'b': 2, 'c': 0}
        >>> share_out({"b": 10, "a": 90}, 1)
        {'b': 1, 'a': 0}
        >>> share_out({"a": 90, "b": 10}, 2000, {"a": 100, "b": 10.0})
        {'a': 19, 'b': 10}
    """
    cost = dict.fromkeys(backlogs, 1) if costs is None else costs
    shares = dict.fromkeys(backlogs, 0)
    left: float = budget
    for name, backlog in backlogs.items():
        if backlog:
            if cost[name] > left and left < budget:
                break
            shares[name] = 1
            left -= cost[name]
    taking = [name for name in shares if shares[name]]
    waiting = sum(cost[name] * (backlogs[name] - 1) for name in taking)
    if waiting <= max(left, 0):
        return shares | {name: backlogs[name] for name in taking}
    for name in taking:
        shares[name] += int(max(left, 0) * (backlogs[name] - 1) // waiting)
    # Rounding leaves a remainder of less than one entry per name, which goes to the longest backlogs.
    spare = budget - sum(cost[name] * shares[name] for name in taking)
    for name in sorted(taking, key=backlogs.__getitem__, reverse=True):
        more = min(int(max(spare, 0) // cost[name]), backlogs[name] - shares[name])
        shares[name] += more
        spare -= more * cost[name]
    return shares


def in_turn(backlogs: Mapping[SortableT, int], served: SortableT | None) -> dict[SortableT, int]:
    """Return `backlogs` in the order of turns: sorted by name, beginning after `served`, the name of the last turn.

    By name, not by index: if a name without a backlog drops out, no other name misses its turn.

    Example:
        >>> list(in_turn({"a": 1, "b": 1, "c": 1}, "b"))
        ['c', 'a', 'b']
    """
    names = sorted(backlogs, key=lambda name: (served is not None and name <= served, name))
    return {name: backlogs[name] for name in names}


def served_last(shares: Mapping[NameT, int], before: NameT | None) -> NameT | None:
    """Return the name that had the last turn, or `before` if all names had one.

    Example:
        >>> served_last({"c": 1, "a": 1, "b": 0}, "b"), served_last({"c": 1, "a": 1, "b": 1}, "b")
        ('a', 'b')
    """
    return before if all(shares.values()) else [name for name in shares if shares[name]][-1]
