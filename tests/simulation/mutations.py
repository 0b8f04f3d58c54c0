"""Known ways to break a guarantee, to prove that the exploration finds them: small edits of the source, one at a time.

Those of each protocol are in its folder (`mutations.py`, `MUTATIONS`). An edit names the text that it replaces, which
must stand there once: a mutation that no longer applies is an error and not a success.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"


@dataclass(frozen=True)
class Mutation:
    """One way to break the program.

    Attributes:
        name: short, for the command line: `A2`, `end-off-by-one`.
        what: what is wrong then, in a sentence.
        edits: (file below `spark_mq_source`, text, what replaces it).
        environment: variables to set, as SPARK_MQ_SOURCE_IMPL=python where what is edited has a compiled twin.
        scenario: the only one to look in, where all together take long; None for all.
        test: a test of pytest (file or node) that must fail instead, where seeds would take too long.
    """

    name: str
    what: str
    edits: Sequence[tuple[str, str, str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    scenario: str | None = None
    test: str | None = None


def mutations(protocol: str) -> Sequence[Mutation]:
    """Those of a protocol."""
    found: Sequence[Mutation] = import_module(f"tests.simulation.{protocol}.mutations").MUTATIONS
    return found


def mutated_source(mutation: Mutation, folder: Path) -> Path:
    """A copy of the source in the folder, with the edits made.

    Raises:
        ValueError: a text is not in its file, or more than once.
    """
    target = folder / "src"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for name, old, new in mutation.edits:
        file = target / "spark_mq_source" / name
        text = file.read_text()
        if text.count(old) != 1:
            raise ValueError(f"mutation {mutation.name}: {name} has {text.count(old)} places with {old!r}")
        file.write_text(text.replace(old, new))
    return target
