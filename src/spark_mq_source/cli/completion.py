"""Completes names on the command line, for the shells that typer supports: ``spark-mq --install-completion``."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing, suppress
from typing import Final

import typer

from spark_mq_source.cli.formats import FORMATS
from spark_mq_source.cli.profiles import load_profile, load_profiles
from spark_mq_source.cli.sources import Source
from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.formats import load_format

_ADDING_SPACE: Final = ("complete_bash", "complete_zsh")
"""Shells that add a space after the only candidate, unless another candidate begins with it."""
_QUICK: Final = "operationTimeout=2s"
"""The timeout of a completion: users do not wait longer for a name."""
_DEFAULT_NAMESPACE: Final = "persistent://public/default/"


def complete_format(incomplete: str) -> list[str]:
    """Return the formats whose names begin with `incomplete`."""
    return _beginning(incomplete, FORMATS)


def complete_profile(incomplete: str) -> list[str]:
    """Return the profiles whose names begin with `incomplete`; none if their file is invalid."""
    with suppress(MQSourceError):
        return _beginning(incomplete, load_profiles())
    return []


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the broker's topics whose names begin with `incomplete`, short in Pulsar's default namespace.

    Args:
        context: the words before, with the format and its options, or a profile; see `complete_option`.
        incomplete: the beginning of the name.
    """
    with suppress(MQSourceError):
        source = Source.of(_profile(context), _format(context), None, [_QUICK, *(context.params.get("option") or ())])
        with closing(source.open_lister(every=True)) as inspector:
            return _beginning(
                incomplete, (str(row["topic"]).removeprefix(_DEFAULT_NAMESPACE) for row in inspector.topics())
            )
    return []


def complete_option(context: typer.Context, incomplete: str) -> list[str]:
    """Return the options of a read that begin with `incomplete`, each with ``=``; those of all formats without one.

    Args:
        context: the words before. An incomplete option leaves the arguments unassigned, in `args`.
        incomplete: the beginning of the option.
    """
    given, profile = _format(context), _profile(context)
    with suppress(MQSourceError):
        given = given or (profile and load_profile(profile).format_name)
    formats = [given] if given else FORMATS
    names = dict.fromkeys(name for one in formats for name in load_format(one).option_names())
    found = [f"{name}=" for name in _beginning(incomplete, names)]
    if len(found) == 1 and os.environ.get("_SPARK_MQ_COMPLETE") in _ADDING_SPACE:
        found.append(f"{found[0]}VALUE")
    return found


def _format(context: typer.Context) -> str | None:
    words = (context.params.get("format_name"), *context.args)
    return next((str(word) for word in words if word in FORMATS), None)


def _profile(context: typer.Context) -> str | None:
    name: str | None = context.find_root().params.get("profile")
    return name


def _beginning(incomplete: str, names: Iterable[str]) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]
