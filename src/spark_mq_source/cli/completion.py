"""Completes names on the command line, for the shells that typer supports: ``spark-mq --install-completion``."""

from __future__ import annotations

import os
from typing import Final

import typer

from spark_mq_source.cli.formats import FORMATS, load_format

_ADDING_SPACE: Final = ("complete_bash", "complete_zsh")
"""Shells that add a space after a name that is the only candidate, unless another candidate begins with it."""


def complete_format(incomplete: str) -> list[str]:
    """Return the formats whose names begin with `incomplete`."""
    return [name for name in FORMATS if name.startswith(incomplete)]


def complete_option(context: typer.Context, incomplete: str) -> list[str]:
    """Return the options of a read that begin with `incomplete`, each with ``=``; of all formats if none is given yet.

    Args:
        context: the words before. An option that is incomplete leaves the arguments unassigned, in `args`.
        incomplete: the beginning of the option.
    """
    given = [str(word) for word in (context.params.get("format_name"), *context.args) if word in FORMATS]
    names = dict.fromkeys(name for one in given[:1] or FORMATS for name in load_format(one).option_names())
    found = [f"{name}=" for name in names if name.startswith(incomplete)]
    if len(found) == 1 and os.environ.get("_SPARK_MQ_COMPLETE") in _ADDING_SPACE:
        found.append(f"{found[0]}VALUE")
    return found
