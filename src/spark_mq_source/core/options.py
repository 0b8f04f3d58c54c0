"""Options of a format: declared once as fields of a frozen dataclass, parsed strictly, documented from the declaration.

::

    @dataclass(frozen=True, kw_only=True, repr=False)
    class NsqOptions(Options):
        format_name: ClassVar[str] = "nsq"
        max_in_flight: int = option("Messages outstanding.", default=2500, check=between(1, 2**31 - 1))

    options = NsqOptions.from_spark({"maxinflight": "100"}, READ)

Instances come only from `Options.from_spark`, which reports all problems in one sentence, so that a user can correct
them together. Names are case-insensitive, because Spark passes keys in lower case.

No error or `repr` shows a secret. Spark redacts options in plans and its UI by name only, so a secret must be named
...token, ...password or ...secret.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import inspect
import logging
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from spark_mq_source.core.errors import OptionError

if TYPE_CHECKING:
    from typing_extensions import Self

logger = logging.getLogger(__name__)


class Scope(enum.Flag):
    """The uses of an option; `Options.from_spark` takes one, a field may have several."""

    READ = enum.auto()  # spark.read
    STREAM = enum.auto()  # spark.readStream
    WRITE = enum.auto()  # df.write and writeStream


class StrEnum(str, enum.Enum):
    """An enumeration of words: a member is its word, as in Python's own class of this name, which 3.10 lacks."""

    __str__ = str.__str__


class Section(StrEnum):
    """The sections of the reference, in its order."""

    CONNECT = "Connect"
    AUTHENTICATE = "Authenticate and encrypt"
    ENCRYPT = "Encrypt payloads end to end"
    CHOOSE = "Choose what to read"
    SHARE = "Share a subscription"
    DRAIN = "Drain a queue, and keep what was read"
    WRITE = "Write"
    LIMIT = "Limit rows, bytes and tasks"
    VALUES = "Decode and encode values"
    FAIL = "Failures and timeouts"


READ: Final = Scope.READ
STREAM: Final = Scope.STREAM
WRITE: Final = Scope.WRITE

_MAX_SHOWN: Final = 200
# Options that Spark adds to those of a sink (DataStreamWriter, pyspark 4.0 to 4.3); they are ignored.
_SPARKS_OWN: Final = {"checkpointlocation": WRITE, "queryname": WRITE}
# Options of Spark's Kafka source and sink, with the options that mean the same here; each format has some of them.
_KAFKAS: Final[Mapping[str, tuple[str, ...]]] = {
    "kafka.bootstrap.servers": ("serviceUrl", "masters", "nsqdTcpAddresses"),
    "kafka.group.id": ("subscription", "group", "channel"),
    "groupidprefix": ("subscription", "group", "channel"),
    "subscribe": ("topics", "topic"),
    "assign": ("topics", "topic"),
    "subscribepattern": ("topicsPattern", "topics", "topic"),
    "startingoffsetsbytimestamp": ("startingTimestamp",),
    "endingoffsetsbytimestamp": ("endingTimestamp",),
    "maxoffsetspertrigger": ("maxRowsPerTrigger",),
    "minoffsetspertrigger": ("minRowsPerTrigger",),
}


@dataclass(frozen=True, slots=True)
class _Declared:
    """The arguments of `option`, stored in the field's metadata."""

    doc: str
    default_text: str | None
    scope: Scope
    secret: bool
    check: Callable[[Any], object] | None
    name: str | None
    parse: Callable[[str], Any] | None
    unit: str
    section: Section | None


@dataclass(frozen=True, slots=True)
class Described:
    """One option of a class, with its parser; `doc` and `default` are Markdown for the reference."""

    field: dataclasses.Field[Any]
    declared: _Declared
    name: str
    aliases: tuple[str, ...]
    doc: str
    parse: Callable[[str], Any]
    section: Section

    @property
    def required(self) -> bool:
        """True if there is no default."""
        return self.field.default is dataclasses.MISSING

    @property
    def scope(self) -> Scope:
        """The uses of the option."""
        return self.declared.scope

    @property
    def default(self) -> str:
        """The default; empty if there is none."""
        default = self.field.default
        if self.declared.default_text is not None:
            return self.declared.default_text
        if self.required:
            return "required"
        if default is None or default == ():
            return ""
        if isinstance(default, bool):
            return f"`{str(default).lower()}`"
        return f"`{default.value if isinstance(default, enum.Enum) else default}`"

    @property
    def names(self) -> tuple[str, ...]:
        """All names that users can give."""
        return (self.name, *self.aliases)

    def read(self, written: str, text: str) -> Any:  # noqa: ANN401 - the type is the field's own
        """Parse and check a value. A ValueError contains the text unless it is secret."""
        try:
            value = self.parse(text)
            if self.declared.check is not None:
                self.declared.check(value)
        except ValueError as error:
            reason = str(error)
            if self.declared.secret:
                shown, reason = "***", reason.replace(text, "***") if text else reason
            else:
                shown = _without_credentials(text if len(text) <= _MAX_SHOWN else text[:_MAX_SHOWN] + "...")
            raise ValueError(f"{written}={shown!r}: {reason}") from None
        return value


def option(
    doc: str,
    *,
    default: Any = dataclasses.MISSING,  # noqa: ANN401 - of the field's type
    default_text: str | None = None,
    scope: Scope = READ | STREAM,
    secret: bool = False,
    check: Callable[[Any], object] | None = None,
    name: str | None = None,
    parse: Callable[[str], Any] | None = None,
    unit: str = "",
    section: Section | None = None,
) -> Any:  # noqa: ANN401 - of the field's type
    """Declare an option: a field of a frozen dataclass that inherits `Options`.

    Args:
        doc: description for the reference, in Markdown.
        default: the default value; without one the option is required.
        default_text: the default for the reference, if it differs from the value (``64m``).
        scope: the uses of the option.
        secret: whether to hide the value; the name must be one that Spark redacts.
        check: raises ValueError with the reason if a value is invalid.
        name: name of the option, if it is not the field's name in camelCase.
        parse: converts the text, raising ValueError with the reason; by default derived from the field's type (bool,
            int, str, an enum of texts, or one of these or None).
        unit: suffix of the field's name that the option's name does not have.
        section: the section of the reference, if it differs from that of the preceding option.
    """
    declared = _Declared(doc, default_text, scope, secret, check, name, parse, unit, section)
    return dataclasses.field(default=default, repr=not secret, metadata={_Declared: declared})


INT32_MAX: Final = (1 << 31) - 1


def duration_option(doc: str, default: str | None, *, least: str = "1ms", **more: Any) -> Any:  # noqa: ANN401
    """Declare an option in milliseconds: the field's name ends in ``_ms``, the option's name does not.

    Args:
        doc: see `option`.
        default: a duration as text, such as ``30s``, or None.
        least: the shortest valid duration, as text; the longest is the largest int32.
        more: further arguments of `option`; a `check` replaces the check of these limits.
    """
    check = between(parse_duration_ms(least), INT32_MAX, f"from {least} to 24 days")
    return _quantity(doc, default, parse_duration_ms, {"unit": "_ms", "check": check} | more)


def size_option(doc: str, default: str | None, *, least: str = "1", most: str = "2g", **more: Any) -> Any:  # noqa: ANN401
    """Declare an option in bytes.

    Args:
        doc: see `option`.
        default: a size as text, such as ``64m``, or None.
        least: the smallest valid size, as text.
        most: the largest valid size, as text; ``2g`` means the largest int32.
        more: further arguments of `option`.
    """
    check = between(parse_size_bytes(least), min(parse_size_bytes(most), INT32_MAX), f"from {least} to {most}")
    return _quantity(doc, default, parse_size_bytes, {"check": check} | more)


def _quantity(doc: str, default: str | None, parse: Callable[[str], int], more: dict[str, Any]) -> Any:  # noqa: ANN401
    """Declare an option whose default is a text to parse, which the reference shows."""
    if default is not None:
        more = {"default_text": f"`{default}`"} | more
    return option(doc, default=None if default is None else parse(default), **{"parse": parse} | more)


@dataclass(frozen=True, kw_only=True, repr=False)
class Options:
    """The base of each format's options, and of each group of options that formats share.

    A format inherits the groups that it needs; the reference lists its own options first, then the groups in order.
    Each class checks its own options in its own `_problems`, which calls no other class's.

    Example:
        >>> @dataclass(frozen=True, kw_only=True, repr=False)
        ... class ExampleOptions(Options):
        ...     format_name: ClassVar[str] = "example"
        ...     aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {"serviceUrl": ("service.url",)}
        ...     service_url: str = option("Address of the broker.")
        ...     auth_token: str | None = option("Token of the client.", default=None, secret=True)
        ...     fail_on_data_loss: bool = option("Fail if messages are lost.", default=True)
        >>> ExampleOptions.from_spark({"service.url": "mq://h", "authtoken": "eyJh"}, READ)
        ExampleOptions(service_url='mq://h', auth_token='***')
        >>> ExampleOptions.from_spark({"failOnDataLoss": "ture", "servceUrl": "mq://h"}, READ)
        Traceback (most recent call last):
        ...
        spark_mq_source.OptionError: format 'example': serviceUrl: required but not set; \
failOnDataLoss='ture': expected true or false; servceurl: unknown option (did you mean serviceUrl?)
    """

    format_name: ClassVar[str] = ""

    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Alternative names of options, as in other connectors."""

    notes: ClassVar[Mapping[str, str]] = {}
    """Sentences that the reference appends to the description of a shared option."""

    parsers: ClassVar[Mapping[str, Callable[[str], Any]]] = {}
    """Parsers that replace those of shared options."""

    debug: bool = option(
        "Whether Spark shows an error with Python's tracebacks, for a bug report. Otherwise it shows one sentence, "
        "with a link to its explanation.",
        default=False,
        scope=READ | STREAM | WRITE,
        section=Section.FAIL,
    )

    @classmethod
    def from_spark(cls, options: Mapping[str, str], scope: Scope) -> Self:
        """Parse the options that Spark passes to a data source.

        Reads ignore options of writes and vice versa, with a warning in the log: one set of options can serve both.

        Args:
            options: texts by case-insensitive name.
            scope: READ, STREAM or WRITE; READ | STREAM, if the use is not known yet, checks only the rules for both.

        Raises:
            OptionError: missing, misspelt, malformed or contradictory options; all problems in one sentence.
        """
        given = {key.lower(): text for key, text in options.items() if text is not None}
        problems = list(cls.translate(given, scope))
        known = [one for one in cls.described() if scope & one.scope]
        values: dict[str, Any] = {}
        mentioned: set[str] = set()
        for one in known:
            written = [name for name in one.names if name.lower() in given]
            texts = [given.pop(name.lower()) for name in written]
            if len(written) > 1:
                problems.append(f"{' and '.join(written)} are the same option: set only one")
            elif written:
                try:
                    values[one.field.name] = one.read(written[0], texts[0])
                except ValueError as error:
                    problems.append(str(error))
            elif one.required:
                problems.append(f"{one.name}: required but not set")
            if written:
                mentioned.add(one.field.name)
        problems += cls._inapplicable(given, known, scope)
        # Invalid options get their default here, so that the other options can still be checked.
        placeholders = {one.field.name: None for one in cls.described() if one.required}
        candidate = cls(**{**placeholders, **values})
        for kind in reversed(cls.__mro__):
            if "_problems" in vars(kind):
                problems += vars(kind)["_problems"](candidate, scope, frozenset(mentioned))
        if problems:
            raise OptionError(f"format {cls.format_name!r}: {'; '.join(problems)}")
        return candidate

    @classmethod
    def _inapplicable(cls, given: Iterable[str], known: Sequence[Described], scope: Scope) -> Iterator[str]:
        """Yield a problem for each option that does not apply; only log options of the other direction."""
        elsewhere = {name.lower(): one for one in cls.described() if not scope & one.scope for name in one.names}
        for key in given:
            other = elsewhere.get(key)
            if scope in _SPARKS_OWN.get(key, Scope(0)):
                continue
            if other is not None and (scope is WRITE) != (other.scope == WRITE):
                warn_of_ignored(cls.format_name, other.name, _DOING[scope])
            elif other is not None:
                yield f"{other.name}: has no meaning when {_DOING[scope]}"
            elif key in ("path", "paths"):
                yield f"{key}: load() and save() take no path here; use options to name what to read or write"
            else:
                yield f"{_without_credentials(key)}: unknown option{_hint(key, known)}"

    @classmethod
    def translate(cls, given: dict[str, str], scope: Scope) -> Iterable[str]:
        """Translate options of other connectors in place; return the problems.

        For translations that an alias cannot express, such as one option that becomes two. Keys are lower case.
        """
        del given, scope
        return ()

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """Yield the contradictions between options, one sentence each.

        A missing or invalid field has its default here (or None); its problem is already reported.

        Args:
            scope: READ, STREAM or WRITE.
            given: the fields that the user set, valid or not.
        """
        del scope, given
        yield from ()

    @classmethod
    def name_of(cls, field: str) -> str:
        """Return the name of the option that a field declares."""
        return next(one.name for one in cls.described() if one.field.name == field)

    @classmethod
    def set_together(cls, one: str, other: str, given: frozenset[str]) -> Iterator[str]:
        """Yield a problem if only one of two fields is given."""
        if (one in given) != (other in given):
            yield f"{cls.name_of(one)} and {cls.name_of(other)} go together: set both"

    @classmethod
    def set_one(cls, one: str, other: str, given: frozenset[str]) -> Iterator[str]:
        """Yield a problem if both of two fields are given."""
        if {one, other} <= given:
            yield f"{cls.name_of(one)} and {cls.name_of(other)} contradict each other: set only one"

    @classmethod
    def set_exactly_one(cls, fields: Sequence[str], given: frozenset[str]) -> Iterator[str]:
        """Yield a problem unless exactly one of some fields is given."""
        chosen = [cls.name_of(name) for name in fields if name in given]
        if len(chosen) != 1:
            names = ", ".join(map(cls.name_of, fields))
            yield f"set exactly one of {names}" + (f", not {' and '.join(chosen)}" if chosen else "")

    @classmethod
    def names(cls, scope: Scope = READ | STREAM | WRITE) -> tuple[str, ...]:
        """Return all names accepted in any use of `scope`, including aliases."""
        return tuple(name for one in cls.described() if one.scope & scope for name in one.names)

    @classmethod
    @functools.cache  # because Spark parses options for every step of a query
    def described(cls) -> Sequence[Described]:
        """Return all options, in the order of the fields."""
        hints = typing.get_type_hints(cls)
        fields = {field.name: field for field in dataclasses.fields(cls) if _Declared in field.metadata}
        ordered = [fields.pop(name) for group in cls.__mro__ for name in fields_of(group) if name in fields]
        known = []
        section = Section.CONNECT
        for field in ordered:
            declared: _Declared = field.metadata[_Declared]
            section = declared.section or section
            first, *rest = field.name.removesuffix(declared.unit).split("_")
            name = declared.name or first + "".join(part.capitalize() for part in rest)
            doc = declared.doc + cls.notes.get(name, "")
            parse = cls.parsers.get(name) or declared.parse or _parser_of(hints[field.name], field.name)
            known.append(Described(field, declared, name, cls.aliases.get(name, ()), doc, parse, section))
        unknown = {*cls.aliases, *cls.notes, *cls.parsers} - {one.name for one in known}
        if unknown:
            raise TypeError(f"{cls.__name__} has no such options: {sorted(unknown)}")
        return tuple(known)

    def __repr__(self) -> str:
        """Show the options that differ from their defaults, with secrets as ``***``."""
        shown = []
        for one in self.described():
            value = getattr(self, one.field.name)
            if value != one.field.default:
                text = repr("***") if one.declared.secret else _without_credentials(repr(value))
                shown.append(f"{one.field.name}={text}")
        return f"{type(self).__name__}({', '.join(shown)})"


_DOING: Final = {READ: "reading a batch", STREAM: "reading a stream", WRITE: "writing", READ | STREAM: "reading"}


def fields_of(group: type[object]) -> tuple[str, ...]:
    """Return the fields that a group itself declares.

    Example:
        >>> @dataclass(frozen=True, kw_only=True, repr=False)
        ... class PaceOptions(Options):
        ...     max_rows: int = option("Maximum.", default=1)
        >>> fields_of(PaceOptions)
        ('max_rows',)
    """
    own = inspect.get_annotations(group)
    return tuple(one.name for one in dataclasses.fields(group) if one.name in own) if is_dataclass(group) else ()


def _parser_of(hint: Any, field_name: str) -> Callable[[str], Any]:  # noqa: ANN401 - a type hint has no better type
    if isinstance(hint, types.UnionType):
        wanted = [one for one in hint.__args__ if one is not types.NoneType]
        if len(wanted) == 1:
            hint = wanted[0]
    if hint in _PARSERS:
        return _PARSERS[hint]
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return lambda text: _parse_enum(hint, text)
    raise TypeError(f"{field_name}: no parser for {hint}; give option(parse=...)")


@functools.cache
def warn_of_ignored(format_name: str, name: str, doing: str) -> None:
    """Log once per process that an option has no effect: Spark parses options for every step of a query."""
    logger.warning("format %r: option %s has no effect when %s", format_name, name, doing)


def _hint(key: str, known: Sequence[Described]) -> str:
    names = {name: one.name for one in known for name in one.names}
    if key in _KAFKAS or key.startswith("kafka."):
        here = next((name for name in _KAFKAS.get(key, ()) if name in names), None)
        return f" (that is Spark's Kafka source{f'; here it is {here}' if here else ''})"
    meant = similar(key, names)
    return f" (did you mean {names[meant]}?)" if meant else ""


def similar(name: str, known: Iterable[str]) -> str | None:
    """Return the most similar known name; None if no name is similar.

    Example:
        >>> similar("publishtime", ["publish_time", "event_time"])
        'publish_time'
    """
    # Compared without separators, so that auth_token and auth.token match authToken.
    names = {_normalized(one): one for one in known}
    close = difflib.get_close_matches(_normalized(name), names, n=1, cutoff=0.7)
    return names[close[0]] if close else None


def _normalized(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _without_credentials(text: str) -> str:
    """Hide the part of URLs before an @, which may be a password."""
    return re.sub(r"//.*@", "//***@", text, flags=re.DOTALL)


def parse_bool(text: str) -> bool:
    """Parse true or false in any case; Spark passes Python's True as ``true``.

    Raises:
        ValueError: any other text, including ``1`` and ``yes``.

    Example:
        >>> parse_bool("True")
        True
    """
    if text.lower() not in ("true", "false"):
        raise ValueError("expected true or false")
    return text.lower() == "true"


def parse_int(text: str) -> int:
    """Parse an integer in decimal digits.

    Raises:
        ValueError: any other text, including ``1_000`` and ``1e3``.

    Example:
        >>> parse_int("-12")
        -12
    """
    if not re.fullmatch(r"[-+]?[0-9]{1,19}", text, re.ASCII):
        raise ValueError("expected a whole number")
    return int(text)


def parse_text(text: str) -> str:
    """Check a text and return it.

    Raises:
        ValueError: the text is empty, or has spaces around it (which are invisible in errors and paths).
    """
    if not text.strip():
        raise ValueError("set, but empty")
    if text != text.strip():
        raise ValueError("has spaces around it")
    return text


def parse_list(text: str) -> tuple[str, ...]:
    """Split a comma-separated list and strip spaces.

    Raises:
        ValueError: an empty list or item.

    Example:
        >>> parse_list("a, b")
        ('a', 'b')
    """
    items = tuple(item.strip() for item in text.split(","))
    if not all(items):
        raise ValueError("expected a comma-separated list without empty names")
    return items


def parse_duration_ms(text: str) -> int:
    """Parse a duration into milliseconds: ``500ms``, ``30s``, ``5m``, ``1h``, or a plain number of milliseconds.

    Raises:
        ValueError: any other text.

    Example:
        >>> parse_duration_ms("30s"), parse_duration_ms("250")
        (30000, 250)
    """
    match = re.fullmatch(r"([0-9]{1,15})(ms|s|m|h)?", text.lower(), re.ASCII)
    if not match:
        raise ValueError("expected a duration such as 500ms, 30s, 5m or a plain number of milliseconds")
    return int(match[1]) * {None: 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[match[2]]


def parse_size_bytes(text: str) -> int:
    """Parse a size into bytes: ``64k``, ``64m`` or ``64mb``, ``1g`` (powers of 1024), or a plain number.

    Raises:
        ValueError: any other text.

    Example:
        >>> parse_size_bytes("64m"), parse_size_bytes("100")
        (67108864, 100)
    """
    match = re.fullmatch(r"([0-9]{1,15})([kmg])?b?", text.lower(), re.ASCII)
    if not match:
        raise ValueError("expected a size such as 64k, 64m, 1g or a plain number of bytes")
    return int(match[1]) * {None: 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}[match[2]]


def _parse_enum(kind: type[enum.Enum], text: str) -> enum.Enum:
    for member in kind:
        if text.lower() == member.value.lower():
            return member
    raise ValueError(f"expected {' or '.join(str(member.value) for member in kind)}")


_PARSERS: Final[dict[Any, Callable[[str], Any]]] = {bool: parse_bool, int: parse_int, str: parse_text}


def at_least(least: int) -> Callable[[int], None]:
    """Make a `check` for a minimum.

    Example:
        >>> at_least(1)(0)
        Traceback (most recent call last):
        ...
        ValueError: must be at least 1
    """

    def check(value: int) -> None:
        if value < least:
            raise ValueError(f"must be at least {least}")

    return check


def between(least: int, most: int, text: str = "") -> Callable[[int], None]:
    """Make a `check` for an inclusive range, shown to the user as `text`.

    Example:
        >>> between(1, 10)(11)
        Traceback (most recent call last):
        ...
        ValueError: must be from 1 to 10
    """

    def check(value: int) -> None:
        if not least <= value <= most:
            raise ValueError(f"must be {text or f'from {least} to {most}'}")

    return check
