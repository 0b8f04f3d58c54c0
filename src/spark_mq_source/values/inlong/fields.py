"""The fields of a stream's records: csv and kv become JSON objects, so that one decoder makes the columns of all."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Final

import pyarrow as pa

from spark_mq_source.values._loops_python import BadPayloadError
from spark_mq_source.values.inlong.texts import Delimiters, split_csv, split_kv

CSV, KV, JSON = "csv", "kv", "json"
PIPES: Final = Delimiters("|")
_PREDEFINED: Final = re.compile(r"__addcol([0-9]{1,9})_")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_FLOAT: Final = re.compile(r"([+-]?)0*([0-9]*)\.?([0-9]*)((?:[eE][+-]?[0-9]{1,9})?)")


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """The layout of the records of a read or write.

    Attributes:
        delimiters: those of csv or kv.
        null_text: the text of NULL; None if that is an empty text, except for strings.
        streams: the streams that are read; empty for all.
    """

    kind: str = CSV
    delimiters: Delimiters = PIPES
    null_text: str | None = None
    streams: tuple[str, ...] = ()
    zone: str = "UTC"


class RecordDocuments:
    r"""Conversion of records to JSON objects.

    Raises:
        ValueError: a field of csv or kv has a type with parts.

    Example:
        >>> fields = pa.struct([("a", pa.int32()), ("b", pa.string())])
        >>> list(RecordDocuments(fields, StreamLayout()).rows(b"1|x", {}))
        [b'{"a": 1, "b": "x"}']
    """

    def __init__(self, fields: Iterable[pa.Field], layout: StreamLayout) -> None:
        self._layout = layout
        fields = [*fields]
        self._names = [field.name for field in fields]
        self._keys = [f"{json.dumps(name)}: " for name in self._names]
        self._values = [_value_of(field.type) for field in fields]
        nested = [field.name for field in fields if pa.types.is_nested(field.type)]
        if nested and layout.kind != JSON:
            raise ValueError(f"{', '.join(nested)} has a type with parts, which {layout.kind} does not have")

    def rows(self, record: bytes, attributes: Mapping[str, str]) -> Iterator[bytes]:
        """Yield the object of each row of a record.

        Raises:
            BadPayloadError: the record does not have this layout.
        """
        if not record:
            return  # as InLong's deserializers
        if self._layout.kind == JSON:
            yield record
            return
        try:
            text = record.decode()
        except UnicodeDecodeError:
            raise BadPayloadError("the text is not UTF-8") from None
        before = [*_predefined(attributes)]
        if self._layout.kind == CSV:
            most = max(len(self._names) - len(before), 0)
            lines = chain(split_csv(text, self._layout.delimiters, most), (None,))
            for number, (cells, following) in enumerate(pairwise(lines)):
                # A separator after the last line begins no row, unless a row is one field, which may be empty.
                if not (number and following is None and cells == [""] and most != 1):
                    yield self._object([*before, *(cells or ())])
        else:
            names = self._names[len(before) :]
            for entries in split_kv(text, self._layout.delimiters, names):
                yield self._object([*before, *(entries.get(name) for name in names)])

    def _object(self, cells: Sequence[str | None]) -> bytes:
        if len(cells) > len(self._names):
            raise BadPayloadError(f"there are more fields than the {len(self._names)} of inlongFields")
        # The fields that a row does not reach are NULL.
        values = (
            key + ("null" if cell is None or self._is_null(cell, value) else value(cell))
            for key, cell, value in zip(self._keys, cells, self._values, strict=False)
        )
        return f"{{{', '.join(values)}}}".encode()

    def _is_null(self, cell: str, value: Callable[[str], str]) -> bool:
        null_text = self._layout.null_text
        return cell == null_text if null_text is not None else not cell and value is not json.dumps


def _predefined(attributes: Mapping[str, str]) -> Iterator[str | None]:
    """Yield the fields that InLong puts before those of a record: the attributes `__addcol1__name`, ..."""
    found = {int(match[1]): text for key, text in attributes.items() if (match := _PREDEFINED.match(key))}
    yield from (found.get(number + 1) for number in range(len(found)))


def _value_of(type_: pa.DataType) -> Callable[[str], str]:
    """Return the function that makes JSON of a text: an invalid value stays a text, which the decoder refuses."""
    if pa.types.is_string(type_):
        return json.dumps
    if pa.types.is_integer(type_):
        return lambda text: str(int(text)) if _INTEGER.fullmatch(text := text.strip()) else json.dumps(text)
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return _float
    if pa.types.is_boolean(type_):
        return lambda text: text if (text := text.strip().lower()) in ("true", "false") else json.dumps(text)
    return lambda text: json.dumps(text.strip())


def _float(text: str) -> str:
    text = text.strip()
    match = _FLOAT.fullmatch(text)
    if match is None or not re.search("[0-9]", text.lower().partition("e")[0]):
        return json.dumps(text)
    sign, whole, fraction, exponent = match.groups()
    return f"{sign.strip('+')}{whole or 0}.{fraction or 0}{exponent}"
