r"""The lines of `peek`: format strings in the style of kcat, with tokens that have the same meaning in all formats.

See `TOKENS_HELP`. As in kcat, nothing is added to the format string's text, not even the end of a line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from operator import itemgetter
from typing import Any, Final

import typer

from spark_mq_source.cli.formats import Known
from spark_mq_source.cli.text import as_text, microseconds_of
from spark_mq_source.core.errors import OptionError

Row = Mapping[str, Any]

DEFAULT: Final = r"%p %o %d %k %s\n"

TOKENS: Final[Mapping[str, str]] = {
    "t": "topic",
    "p": "partition, - if the topic is not partitioned; tubemq: broker id and partition, as 1:0; nsq: the nsqd",
    "o": "position; pulsar-native: ledger:entry or ledger:entry:batch; tubemq and nsq: the message id",
    "d": "time in UTC; pulsar-native: the publish time; tubemq: the producer's; nsq: nsqd's",
    "T": "the same time in milliseconds since 1970",
    "k": "key; tubemq: the message type; nsq has none, so the default is without it",
    "K": "length of the key in bytes, -1 for NULL",
    "h": "headers as NAME=VALUE,...; pulsar-native: properties; tubemq: attributes; nsq has none",
    "s": "value",
    "S": "length of the value in bytes, -1 for NULL",
}
"""Letters after ``%`` and their meanings; all except ``%d`` are kcat's."""

TOKENS_HELP: Final = "\n\n".join(
    [
        f"The default of `--format` is `{DEFAULT}`, after `%t` unless a topic is given. It can contain:",
        *(f"- `%{letter}`: {meaning}" for letter, meaning in TOKENS.items()),
        "- `%{COLUMN}`: any column of the format",
        r"- `%%`, `\n`, `\t`, `\r`, `\\`, `\xNN`: a percent sign, and characters",
    ]
)
"""The help on tokens in Markdown, with empty lines in its list for older releases of typer."""

_COLORS: Final[Mapping[str, str]] = {
    "t": "cyan",
    "p": "cyan",
    "o": "cyan",
    "d": "blue",
    "T": "blue",
    "k": "green",
    "h": "yellow",
}
_NULL_COLOR: Final = "magenta"
_ESCAPES: Final[Mapping[str, str]] = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\"}
_PARTS: Final = re.compile(
    r"%\{(?P<column>[^}]*)\}|%(?P<token>.)|\\x(?P<code>[0-7][0-9a-fA-F])|\\(?P<escape>.)|(?P<text>[^%\\]+)|(?P<end>.)",
    re.DOTALL,
)


def default_line(known: Known, *, with_topic: bool) -> str:
    """Return the format string of a line with position, time, key and value."""
    line = DEFAULT if known.key else DEFAULT.replace("%k ", "")
    return f"%t {line}" if with_topic else line


class Line:
    r"""A parsed format string.

    Args:
        columns: the names that ``%{COLUMN}`` accepts.

    Attributes:
        columns: the names in ``%{COLUMN}``.

    Raises:
        OptionError: a token, column or escape is unknown.

    Example:
        >>> from spark_mq_source.cli.formats import FORMATS
        >>> line = Line(r"%p %o %s %{attempts}\n", FORMATS["nsq"], ["attempts"])
        >>> line.of({"nsqd": "localhost:4150", "message_id": "0a1b", "value": b"f\xc3\xbcr", "attempts": 1})
        'localhost:4150 0a1b für 1\n'
    """

    def __init__(
        self, template: str, known: Known, columns: Collection[str], *, as_hex: bool = False, in_color: bool = False
    ) -> None:
        self._values = _values(known)
        self._as_hex = as_hex
        self._in_color = in_color
        self.columns: list[str] = []
        self._parts = [self._part(match, columns) for match in _PARTS.finditer(template)]

    def of(self, row: Row) -> str:
        """Return the text of a message."""
        return "".join(part if isinstance(part, str) else part(row) for part in self._parts)

    def _part(self, match: re.Match[str], columns: Collection[str]) -> str | Callable[[Row], str]:
        kind = match.lastgroup or ""
        found = match[kind]
        if kind == "text" or match[0] == "%%":
            return found
        if kind == "code":
            return chr(int(found, 16))
        if kind == "escape" and found in _ESCAPES:
            return _ESCAPES[found]
        if kind == "token" and found in self._values:
            return partial(self._cell, self._values[found], _COLORS.get(found))
        if kind == "column" and found in columns:
            self.columns.append(found)
            return partial(self._cell, itemgetter(found), None)
        if kind == "column":
            raise OptionError(f"--format: no column {found}; expected one of {', '.join(columns)}")
        known = ", ".join(f"%{letter}" for letter in TOKENS)
        raise OptionError(
            f"--format: unknown {match[0]!r}; expected {known}, %{{COLUMN}}, %%, \\n, \\t, \\r, \\\\ or \\xNN"
        )

    def _cell(self, value_of: Callable[[Row], object], color: str | None, row: Row) -> str:
        value = value_of(row)
        text = as_text(value, as_hex=self._as_hex)
        color = _NULL_COLOR if value is None else color
        return typer.style(text, fg=color) if color and self._in_color else text


def _values(known: Known) -> Mapping[str, Callable[[Row], object]]:
    """Return, for each of `TOKENS`, the function that gets its value from a row."""
    time, value = itemgetter(known.time), itemgetter("value")
    key: Callable[[Row], object] = itemgetter(known.key) if known.key else lambda _: None
    headers: Callable[[Row], Any] = itemgetter(known.headers) if known.headers else lambda _: ()
    return {
        "t": itemgetter("topic"),
        "p": lambda row: ":".join("-" if row[name] == -1 else str(row[name]) for name in known.partition),
        "o": itemgetter("message_id"),
        "d": time,
        "T": lambda row: microseconds_of(time(row)) // 1000,
        "k": key,
        "K": lambda row: _length(key(row)),
        "h": lambda row: ",".join(f"{name}={text}" for name, text in headers(row)),
        "s": value,
        "S": lambda row: _length(value(row)),
    }


def _length(value: object) -> int:
    if value is None:
        return -1
    return len(value if isinstance(value, bytes) else as_text(value).encode())
