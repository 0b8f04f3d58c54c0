"""Prepare docstrings for the site's page of the API: an extension of griffe, named in `mkdocs.yml`.

The docstrings introduce literal blocks by ``::``, and examples by ``Example:``. mkdocstrings expects Markdown, and
shows an interpreter's session as code only under ``Examples:``.
"""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Final

import griffe

__all__ = ["Blocks", "markdown"]

_LITERAL: Final = re.compile(r"^( *)(.*?)::\n\n((?:\1 +\S.*\n|\n)+)", re.MULTILINE)
_EXAMPLE: Final = re.compile(r"^( *)Example:$", re.MULTILINE)


def markdown(docstring: str) -> str:
    r"""Return the docstring with fences around its literal blocks.

    Example:
        >>> print(markdown("A tree:\n\n::\n\n    a\n    └── b\n"))
        A tree:
        <BLANKLINE>
        ```text
        a
        └── b
        ```
    """
    text = _LITERAL.sub(_fenced, docstring.rstrip("\n") + "\n")
    return _EXAMPLE.sub(r"\1Examples:", text).rstrip("\n")


def _fenced(match: re.Match[str]) -> str:
    margin, lead, block = match.groups()
    lines = [f"{lead}:\n"] if lead else []
    # A block in a section, which is indented, is an example.
    lines += [f"```{'python' if margin else 'text'}", *dedent(block).strip("\n").splitlines(), "```"]
    return "\n".join(margin + line if line else "" for line in lines) + "\n\n"


class Blocks(griffe.Extension):
    """Extension that applies `markdown` to every docstring."""

    def on_instance(self, *, obj: griffe.Object, **_: object) -> None:
        """Replace the docstring of an object that was found in the source."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
