"""Known ways to break a guarantee, which prove that the exploration finds them: small edits of the source.

Those of a protocol are in its `mutations.diff`, separated by empty lines. A mutation begins with its name and what is
wrong then. The second line has the seeds until it was found, from 1 on: `N seeds of SCENARIO` are those of that
scenario alone; without a number it was not measured. Or it has `test` and the test that fails instead. Then come the
edits: a file below `spark_mq_source`, the text that is replaced (`-`) and its replacement (`+`). The text must be in
the file once: a mutation that no longer applies is an error.
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
        what: what is wrong then.
        edits: (file below `spark_mq_source`, text, its replacement).
        scenario: the only one to look in, where all together take long; None for all.
        test: a test of pytest (file or node) that must fail instead, where seeds would take too long.
    """

    name: str
    what: str
    edits: Sequence[tuple[str, str, str]]
    scenario: str | None = None
    test: str | None = None


def mutations(protocol: str) -> Sequence[Mutation]:
    """Return those of a protocol."""
    text = (Path(__file__).parent / protocol / "mutations.diff").read_text()
    return [parse(part) for part in text.rstrip("\n").split("\n\n")]


def parse(text: str) -> Mutation:
    r"""Return the mutation that a part of a `mutations.diff` describes.

    Raises:
        ValueError: it describes none.

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
        ValueError: a text is not in its file, or more than once.
    """
    texts: dict[str, str] = {}
    for name, old, new in mutation.edits:
        text = texts.get(name) or (SOURCE / "spark_mq_source" / name).read_text()
        if text.count(old) != 1:
            raise ValueError(f"mutation {mutation.name}: {name} has {text.count(old)} places with {old!r}")
        texts[name] = text.replace(old, new)
    return texts


def mutated_source(mutation: Mutation, folder: Path) -> Path:
    """Return a copy of the source in the folder, with the edits made."""
    target = folder / "src"
    shutil.copytree(SOURCE, target, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in edited(mutation).items():
        (target / "spark_mq_source" / name).write_text(text)
    return target
