"""Mutations: small edits of the source that break a guarantee, to prove that the exploration finds such faults.

The mutations of a protocol are in its `mutations.diff`, separated by empty lines. The first line has the name and a
description of the fault. The second line has the number of seeds, from 1 on, until it was found: `N seeds of SCENARIO`
counts seeds of that scenario only; without a number it was not measured. Or it has `test` and the test that fails
instead. The edits follow: a file below `spark_mq_source`, the text to replace (`-`) and its replacement (`+`). The text
must occur in the file once: a mutation that no longer applies is an error.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"

_HEAD = re.compile(
    r"# (?P<name>\S+): (?P<what>.+)\n# (?:(?:\d+ )?seeds(?: of (?P<scenario>\w+))?|test (?P<test>\S+))\n"
)
_EDIT = re.compile(r"--- (?P<file>\S+)\n(?P<old>(?:-.*\n)+)(?P<new>(?:\+.*\n)+)")


@dataclass(frozen=True)
class Mutation:
    """One way to break the program.

    Attributes:
        name: short, for the command line: `end-off-by-one`.
        what: the fault.
        edits: (file below `spark_mq_source`, text, its replacement).
        scenario: the only scenario to run, if all of them would take too long; None for all.
        test: a test of pytest (file or node) that must fail instead, if seeds would take too long.
    """

    name: str
    what: str
    edits: Sequence[tuple[str, str, str]]
    scenario: str | None = None
    test: str | None = None


def mutations(protocol: str) -> Sequence[Mutation]:
    """Return the mutations of a protocol."""
    text = (Path(__file__).parent / protocol / "mutations.diff").read_text()
    return [parse(part) for part in text.rstrip("\n").split("\n\n")]


def parse(text: str) -> Mutation:
    r"""Return the mutation that a part of a `mutations.diff` describes.

    Raises:
        ValueError: the part describes no mutation.

    Example:
        >>> parse("# off-by-one: a range ends early\n# 4 seeds of read\n--- core/a.py\n-if a > b:\n+if a >= b:").edits
        [('core/a.py', 'if a > b:', 'if a >= b:')]
    """
    text = f"{text}\n"
    head = _HEAD.match(text)
    if head is None or _EDIT.sub("", text[head.end() :]):
        raise ValueError(f"not a mutation: {text}")
    edits = [(found["file"], _lines(found["old"]), _lines(found["new"])) for found in _EDIT.finditer(text, head.end())]
    return Mutation(head["name"], head["what"], edits, head["scenario"], head["test"])


def _lines(marked: str) -> str:
    return "\n".join(line[1:] for line in marked.splitlines())


def edited(mutation: Mutation) -> dict[str, str]:
    """Return the text of each file that a mutation changes, with its edits.

    Raises:
        ValueError: a text does not occur in its file exactly once.
    """
    texts: dict[str, str] = {}
    for name, old, new in mutation.edits:
        text = texts.get(name) or (SOURCE / "spark_mq_source" / name).read_text()
        if text.count(old) != 1:
            raise ValueError(f"mutation {mutation.name}: {name} has {text.count(old)} places with {old!r}")
        texts[name] = text.replace(old, new)
    return texts


def mutated_source(mutation: Mutation, folder: Path) -> Path:
    """Copy the source into the folder, apply the edits and return the path of the copy."""
    target = folder / "src"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in edited(mutation).items():
        (target / "spark_mq_source" / name).write_text(text)
    return target
