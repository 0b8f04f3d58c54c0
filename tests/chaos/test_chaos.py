"""Chaos on real clusters, for a minute; `make chaos` runs it for longer, with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import SCENES, run
from tests.chaos.loads import differences
from tests.chaos.pulsar import Message, first_disorder

SECONDS = 30.0
"""The duration of the faults of each cluster."""


@pytest.mark.slow
@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", list(SCENES))
def test_each_row_is_read_and_written_once_despite_faults(name: str, tmp_path: Path) -> None:
    def lose_a_row(scene: Any) -> None:
        """Lose a row, which the check must find."""
        stream = next(load for load in scene.loads if load.name == "stream")
        lost = stream.rows.pop()
        assert any("1 missing" in problem for problem in scene.check())
        stream.rows += [lost, lost]
        assert list(scene.check())

    done = run(name, tmp_path, 1, SECONDS, lose_a_row)
    assert not done.problems, "\n".join([*done.chaos.happened, *done.problems])
    assert done.chaos.counts
    assert all(load.steps for load in done.loads)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([1, 2, 3], []),
        ([1, 3], ["1 missing, such as [2]"]),
        ([1, 2, 2, 3, 4], ["2 too many, such as [2, 4]"]),
    ],
)
def test_lists_are_compared_with_their_duplicates(found: Sequence[int], text: Sequence[str]) -> None:
    assert list(differences([1, 2, 3], found)) == text


def test_order_is_compared_in_each_partition() -> None:
    messages: list[Message] = [(0, 1, 5, -1, b"a"), (1, 1, 1, -1, b"b"), (0, 1, 6, -1, b"c")]
    assert first_disorder(messages) is None
    assert first_disorder([*messages, messages[0]]) == f"{messages[0]} after {messages[2]}"
