"""JSON as users write it into options: strict, and with every mistake in one sentence."""

from __future__ import annotations

import json


def load_json_object(text: str) -> dict[str, object]:
    """A JSON object, in which no name may be there twice.

    Raises:
        ValueError: anything else; the message says what is wrong.

    Example:
        >>> load_json_object('{"a": 1}')
        {'a': 1}
        >>> load_json_object('{"a": 1, "a": 2}')
        Traceback (most recent call last):
        ...
        spark_mq_source.core.json_text.JsonMistake: "a" is there twice
    """
    try:
        document = json.loads(text, object_pairs_hook=_unique)
    except JsonMistake:
        raise
    except RecursionError:
        raise ValueError("JSON that is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except ValueError:  # Python's bound on the digits of a number
        raise ValueError("not JSON: a number with too many digits") from None
    if not isinstance(document, dict):
        raise ValueError("expected a JSON object")  # noqa: TRY004 - all of a user's mistakes are ValueErrors
    return document


class JsonMistake(ValueError):  # noqa: N818 - users see it as part of a sentence only
    """A mistake found while the JSON was decoded, already in words for the user."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    named = dict(pairs)
    if len(named) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise JsonMistake(f'"{twice}" is there twice')
    return named
