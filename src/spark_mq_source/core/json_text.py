"""Strict parsing of JSON in options and checkpoints; errors are sentences for the user."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final


def load_json_object(text: str) -> dict[str, object]:
    """Parse a JSON object; duplicate keys are an error.

    Raises:
        ValueError: not a JSON object without duplicate keys; the message says why.

    Example:
        >>> load_json_object('{"a": 1}')
        {'a': 1}
        >>> load_json_object('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ...
        spark_mq_source.core.json_text.JsonTextError: duplicate key "a"
    """
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except JsonTextError:
        raise
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except ValueError:  # Python's limit on the digits of a number
        raise ValueError("not JSON: number has too many digits") from None
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - all of a user's mistakes are ValueErrors
    return document


OFFSETS_VERSION: Final = 1


def versioned_offsets(document: object) -> Mapping[str, object]:
    """Return the document of offsets in a checkpoint.

    Raises:
        ValueError: it has another version, or none.
    """
    if not isinstance(document, Mapping) or "version" not in document:
        raise ValueError('offsets without a "version" are not from this package')
    version = document["version"]
    if type(version) is not int or version != OFFSETS_VERSION:
        raise ValueError(
            f"offsets of version {version!r}, but this release supports only version {OFFSETS_VERSION}; read them with "
            "the release that wrote them"
        )
    return document


class JsonTextError(ValueError):
    """An error found while decoding; its text is for the user."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = dict(pairs)
    if len(named) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonTextError(f'duplicate key "{twice}"')
    return named
