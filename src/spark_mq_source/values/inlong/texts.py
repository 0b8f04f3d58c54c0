"""Records as delimited text: the rules of InLong's csv and kv, by which attributes are written, too.

They are those of `StringUtils.splitCsv` and `splitKv` (InLong's sort-format-common 1.11.0): an escape makes the next
character plain, quotes all characters between them.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from spark_mq_source.values._loops_python import BadPayloadError


@dataclass(frozen=True, slots=True)
class Delimiters:
    """The characters with a meaning in a text; None for those without one.

    Attributes:
        field: between the fields of csv, or between the entries of kv.
        key: between key and value of kv.
        line: between rows.
        escape: makes the next character plain.
        quote: makes all characters plain up to the next quote.
    """

    field: str
    key: str | None = None
    line: str | None = None
    escape: str | None = None
    quote: str | None = None

    @property
    def separators(self) -> str:
        """The characters that separate."""
        return self.field + (self.key or "") + (self.line or "")

    @property
    def special(self) -> str:
        """The characters that a text must escape."""
        return self.separators + (self.escape or "") + (self.quote or "")


ATTRIBUTES = Delimiters("&", "=")
"""The text of attributes: `groupId=g&streamId=s`."""


def split_csv(text: str, delimiters: Delimiters, most: int) -> Iterator[list[str]]:
    r"""Yield the rows of a text, each as its fields; of one with more than `most` fields, no more than `most + 1`.

    Raises:
        BadPayloadError: the text ends within quotes, or after an escape.

    Example:
        >>> list(split_csv("a|'b|c'|\\|", Delimiters("|", escape="\\", quote="'"), 3))
        [['a', 'b|c', '|']]
    """
    if delimiters.line is None and _is_plain(text, delimiters):
        yield text.split(delimiters.field, most + 1)[: most + 1]
        return
    row: list[str] = []
    for piece, separator in _pieces(text, delimiters):
        if len(row) <= most:
            row.append(piece)
        if separator != delimiters.field:
            yield row
            row = []


def split_kv(text: str, delimiters: Delimiters, wanted: Container[str] | None = None) -> Iterator[dict[str, str]]:
    """Yield the rows of a text, each as its entries. A value may contain the character between key and value.

    Args:
        text: the text.
        delimiters: its characters with a meaning.
        wanted: the keys of the entries to return; None for all.

    Raises:
        BadPayloadError: an entry has no key; or as for `split_csv`.

    Example:
        >>> list(split_kv("a=1&b=3=4", ATTRIBUTES))
        [{'a': '1', 'b': '3=4'}]
    """
    row: dict[str, str] = {}
    key: str | None = None
    buffer = ""
    for piece, separator in _pieces(text, delimiters):
        buffer += piece
        if separator == delimiters.key:
            key, buffer = (buffer, "") if key is None else (key, buffer + separator)
            continue
        if key is not None:
            if wanted is None or key in wanted:
                row[key] = buffer
        elif text and not (buffer or row or separator):
            return  # after the last line
        elif text:
            raise BadPayloadError(f"{buffer[:40]!r} is an entry without {delimiters.key!r}")
        key, buffer = None, ""
        if separator != delimiters.field:
            yield row
            row = {}


def _pieces(text: str, delimiters: Delimiters) -> Iterator[tuple[str, str]]:
    """Yield the parts of a text, each with the separator after it; the last one has none."""
    escape, quote, separators = delimiters.escape, delimiters.quote, delimiters.separators
    if _is_plain(text, delimiters):
        begin = 0
        for match in _pattern(separators).finditer(text):
            yield text[begin : match.start()], match[0]
            begin = match.end()
        yield text[begin:], ""
        return
    piece: list[str] = []
    is_escaped = is_quoted = False
    for character in text:
        if is_escaped:
            piece.append(character)
            is_escaped = False
        elif is_quoted and character != quote:
            piece.append(character)
        elif character == quote:
            is_quoted = not is_quoted
        elif character == escape:
            is_escaped = True
        elif character in separators:
            yield "".join(piece), character
            piece.clear()
        else:
            piece.append(character)
    if is_escaped or is_quoted:
        raise BadPayloadError(f"the text ends {'after an escape' if is_escaped else 'within quotes'}")
    yield "".join(piece), ""


def _is_plain(text: str, delimiters: Delimiters) -> bool:
    return (delimiters.escape or "\0") not in text and (delimiters.quote or "\0") not in text


@cache
def _pattern(separators: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(separators)}]")


def join_texts(cells: Sequence[str], delimiters: Delimiters, separator: str) -> str:
    r"""Join texts with a separator, with their special characters escaped or quoted.

    Raises:
        ValueError: a text has a special character that can be neither escaped nor quoted.

    Example:
        >>> join_texts(["a|b", "c"], Delimiters("|", escape="\\"), "|")
        'a\\|b|c'
    """
    return separator.join(_plain(cell, delimiters) for cell in cells)


def _plain(text: str, delimiters: Delimiters) -> str:
    special = delimiters.special
    if not any(one in text for one in special):
        return text
    if delimiters.escape is not None:
        return "".join(delimiters.escape + one if one in special else one for one in text)
    quote = delimiters.quote
    if quote is None or quote in text:
        raise ValueError(f"{text[:40]!r} contains one of {special!r}, which needs inlongEscape")
    return f"{quote}{text}{quote}"
