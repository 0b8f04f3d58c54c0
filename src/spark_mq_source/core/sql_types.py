"""Conversion between Spark's SQL types (DDL) and Arrow's, without Spark."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import pyarrow as pa

_SIMPLE: Final[Mapping[str, pa.DataType]] = {
    "void": pa.null(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SYNONYMS: Final[Mapping[str, str]] = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "dec": "decimal",
    "numeric": "decimal",
    "timestamp_ltz": "timestamp",
}
_INTERVAL: Final = ("interval", "day", "to", "second")
_NAMES: Final[Mapping[pa.DataType, str]] = {
    **{type_: name for name, type_ in _SIMPLE.items()},
    pa.duration("us"): " ".join(_INTERVAL),
}
_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_TOKENS: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.|'')*')|([A-Za-z0-9_]+)|([<>(),:]))", re.ASCII)
_MAX_NESTING: Final = 100


def arrow_schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of columns given as name and SQL type.

    Raises:
        ValueError: a text is not a type.

    Example:
        >>> arrow_schema_of({"id": "struct<ledger:bigint,entry:bigint>"}).field("id").type
        StructType(struct<ledger: int64, entry: int64>)
    """
    return pa.schema([(name, arrow_type_of_ddl(text)) for name, text in columns.items()])


@lru_cache(maxsize=256)
def arrow_type_of_ddl(text: str) -> pa.DataType:
    """Return the Arrow type of a SQL type; for a list of columns, their struct, as in Spark's `from_json`.

    Raises:
        ValueError: the text is neither; the message gives the place.

    Example:
        >>> arrow_type_of_ddl("a int, b array<struct<`x y`: decimal(10, 2)>>")
        StructType(struct<a: int32, b: list<item: struct<x y: decimal128(10, 2)>>>)
        >>> str(arrow_type_of_ddl("map<string,timestamp>"))
        'map<string, timestamp[us, tz=UTC]>'
        >>> arrow_type_of_ddl("interval day to second"), arrow_type_of_ddl("took interval day to second")
        (DurationType(duration[us]), StructType(struct<took: duration[us]>))
    """
    tokens = _tokens(text)
    if len(tokens) > 1 and tokens[1] not in ("<", "(") and tuple(map(str.lower, tokens)) != _INTERVAL:
        return _Parser(tokens).whole(columns=True)
    return _Parser(tokens).whole(columns=False)


def ddl_of(type_: pa.DataType) -> str:
    """Return the SQL type of an Arrow type, as `arrow_type_of_ddl` and Spark read it.

    Raises:
        ValueError: Spark has no such type.

    Example:
        >>> ddl_of(pa.struct([("a", pa.int32()), ("b c", pa.list_(pa.decimal128(10, 2)))]))
        'struct<a:int,`b c`:array<decimal(10,2)>>'
    """
    if pa.types.is_struct(type_):
        return f"struct<{','.join(f'{quoted(field.name)}:{ddl_of(field.type)}' for field in type_)}>"
    if pa.types.is_list(type_):
        return f"array<{ddl_of(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{ddl_of(type_.key_type)},{ddl_of(type_.item_type)}>"
    if pa.types.is_decimal128(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_) and type_.unit == "us":
        return "timestamp_ntz" if type_.tz is None else "timestamp"
    if type_ not in _NAMES:
        raise ValueError(f"Spark has no type for {type_}")
    return _NAMES[type_]


def ddl_of_schema(schema: pa.Schema) -> str:
    """Return the columns of a schema in the form of `.schema()`.

    Raises:
        ValueError: Spark has no such type.

    Example:
        >>> ddl_of_schema(pa.schema([("topic", pa.string()), ("value", pa.int64())]))
        'topic string, value bigint'
    """
    return ", ".join(f"{quoted(field.name)} {ddl_of(field.type)}" for field in schema)


def quoted(name: str) -> str:
    """Return the name of a column or field in DDL, quoted if necessary.

    Example:
        >>> quoted("a"), quoted("a b"), quoted("`")
        ('a', '`a b`', '````')
    """
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def matches(type_: pa.DataType, text: str) -> bool:
    """Return whether an Arrow type corresponds to a SQL type.

    Inner fields of maps and lists may have any name, and timestamps any zone or, for ``timestamp_ntz``, none.

    Args:
        type_: type of a column.
        text: a SQL type; ``struct`` alone matches any struct.

    Raises:
        ValueError: the text is not a type.

    Example:
        >>> matches(pa.int32(), "int"), matches(pa.large_string(), "string"), matches(pa.timestamp("us"), "timestamp")
        (True, False, True)
        >>> matches(pa.struct([("a", pa.int64())]), "struct<a:bigint>"), matches(pa.struct([]), "struct")
        (True, True)
    """
    if text == "struct":
        return bool(pa.types.is_struct(type_))
    return _are_alike(type_, arrow_type_of_ddl(text))


def _are_alike(type_: pa.DataType, other: pa.DataType) -> bool:
    if pa.types.is_timestamp(other):
        return bool(pa.types.is_timestamp(type_)) and type_.unit == "us"
    if not pa.types.is_nested(other):
        return bool(type_.equals(other))
    if type_.id != other.id or type_.num_fields != other.num_fields:
        return False
    if pa.types.is_map(other):
        return _are_alike(type_.key_type, other.key_type) and _are_alike(type_.item_type, other.item_type)
    if pa.types.is_list(other):
        return _are_alike(type_.value_type, other.value_type)
    return all(a.name == b.name and _are_alike(a.type, b.type) for a, b in zip(type_, other, strict=True))


def _tokens(text: str) -> list[str]:
    tokens, at = [], 0
    text = text.rstrip()
    while at < len(text):
        match = _TOKENS.match(text, at)
        if match is None:
            raise ValueError(
                f"{text[at:].strip()[:20]!r} is not valid in a Spark schema such as a int, b array<string>"
            )
        tokens.append(match[0].strip())
        at = match.end()
    return tokens


class _Parser:
    """Parser of Spark's DDL (SqlBaseParser.g4, rules `dataType` and `colTypeList`) for the types that Arrow has."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self, *, columns: bool) -> pa.DataType:
        type_ = self._fields("") if columns else self._type()
        if self._at < len(self._tokens):
            raise self._syntax_error("the end")
        return type_

    def _type(self) -> pa.DataType:
        self._depth += 1
        if self._depth > _MAX_NESTING:
            raise ValueError(f"more than {_MAX_NESTING} types within each other")
        try:
            return self._type_named(self._next("a type"))
        finally:
            self._depth -= 1

    def _type_named(self, token: str) -> pa.DataType:
        name = _SYNONYMS.get(token.lower(), token.lower())
        if name in _SIMPLE:
            return _SIMPLE[name]
        if name == "decimal":
            return self._decimal()
        if name == _INTERVAL[0]:
            for word in _INTERVAL[1:]:
                self._expect(word)
            return pa.duration("us")
        if name not in ("array", "map", "struct"):
            raise ValueError(
                f"{token!r} is not a type that a value can have (known: {', '.join(_SIMPLE)}, decimal(p, s), "
                f"{' '.join(_INTERVAL)}, array<>, map<,>, struct<:>)"
            )
        self._expect("<")
        if name == "array":
            type_ = pa.list_(self._type())
        elif name == "map":
            key = self._type()
            self._expect(",")
            type_ = pa.map_(key, self._type())
        else:
            type_ = self._fields(">")
        self._expect(">")
        return type_

    def _decimal(self) -> pa.DataType:
        precision, scale = 10, 0
        if self._peek() == "(":
            self._expect("(")
            precision = self._number()
            if self._peek() == ",":
                self._expect(",")
                scale = self._number()
            self._expect(")")
        if not 1 <= precision <= 38 or scale > precision:
            raise ValueError(
                f"decimal({precision}, {scale}) is not valid: precision is 1 to 38, and scale at most the precision"
            )
        return pa.decimal128(precision, scale)

    def _fields(self, end: str) -> pa.StructType:
        fields: list[pa.Field] = []
        while self._peek() != end:
            if fields:
                self._expect(",")
            name = self._next("a name")
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            elif not _PLAIN_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is not a plain name: write `{name}`")
            if self._peek() == ":":
                self._expect(":")
            type_ = self._type()
            if self._peek().lower() == "not":
                self._at += 1
                self._expect("null")
            if self._peek().lower() == "comment":
                self._at += 1
                self._next("a comment")
            fields.append(pa.field(name, type_))
        return pa.struct(fields)

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self, what: str) -> str:
        if self._at == len(self._tokens):
            raise ValueError(f"a Spark schema ends where {what} is missing")
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if self._peek().lower() != token:
            raise self._syntax_error(repr(token))
        self._at += 1

    def _number(self) -> int:
        token = self._next("a number")
        if not token.isdecimal():
            raise ValueError(f"expected a number in a decimal type, not {token!r}")
        return int(token)

    def _syntax_error(self, expected: str) -> ValueError:
        found = self._peek()
        where = f"not {found!r}" if found else "but it ends"
        return ValueError(f"a Spark schema has {expected} after {' '.join(self._tokens[: self._at])[-40:]!r}, {where}")
