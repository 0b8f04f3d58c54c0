"""The errors that brokers answer with: the parts that the tables of all protocols' codes share."""

from __future__ import annotations

from typing import Final, NamedTuple

from spark_mq_source.core.errors import BrokerError

MAX_WORDS_CHARACTERS: Final = 500
"""Maximum length of a broker's message in an error, which may contain a whole stack trace."""

AGAIN: Final = "this is usually temporary and is retried"


class Code(NamedTuple):
    """A row of a table of codes."""

    name: str
    kind: type[BrokerError]
    remedy: str


def refusal(known: Code, refused: str, words: str, context: str, code: int | None = None) -> BrokerError:
    """Return the error of a row: the request, what the broker `refused`, the beginning of its words, and the remedy.

    Example:
        >>> print(refusal(Code("Busy", BrokerError, AGAIN), "the broker refused with Busy (5)", "wait", "SUBSCRIBE"))
        SUBSCRIBE: the broker refused with Busy (5): wait; this is usually temporary and is retried
    """
    text = " ".join(words.split())
    if len(text) > MAX_WORDS_CHARACTERS:
        text = f"{text[:MAX_WORDS_CHARACTERS]}..."
    sentence = f"{refused}{': ' if text else ''}{text}; {known.remedy}"
    return known.kind(
        f"{context}: {sentence}" if context else sentence, code=code, code_name=known.name, broker_message=words
    )
