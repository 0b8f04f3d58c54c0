"""The first words of docstrings, where ruff's D401 does not look: it knows verbs, and no "Whether" or "Where"."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src" / "spark_mq_source"
REFUSED = ("What", "Where", "Who", "Whom", "Whose", "How", "As", "Whether", "Which", "Why", "When", "The same", "Of")
# The rooms that are still to be rewritten, as in pyproject.toml.
WAITING = (
    *(f"pulsar/{room}/" for room in ("client", "payload", "protocol", "read", "write")),
    *("pulsar/format.py", "pulsar/inspector.py", "pulsar/offsets.py", "pulsar/pulsar_spark.py"),
    *("nsq/payload/", "tubemq/payload/", "values/json/"),
)
FILES = [path for path in sorted(SOURCES.rglob("*.py")) if not path.relative_to(SOURCES).as_posix().startswith(WAITING)]


def begins_wrong(source: str) -> list[str]:
    """The docstrings of modules, classes, functions and attributes that begin with a refused word."""
    texts = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    return [text.partition("\n")[0] for text in texts if text.startswith(tuple(f"{word} " for word in REFUSED))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCES).as_posix())
def test_a_docstring_begins_with_a_verb_or_a_noun(path: Path) -> None:
    assert begins_wrong(path.read_text(encoding="utf-8")) == []


def test_a_refused_word_is_found() -> None:
    source = 'def f():\n    """Whether it is."""\n\n\nX = 1\n"""As said."""\n\n\nclass C:\n    """A class."""\n'
    assert sorted(begins_wrong(source)) == ["As said.", "Whether it is."]
