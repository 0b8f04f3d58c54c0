"""Rows as InLong's messages: each row becomes an InLongMsg of version 1 with one record, uncompressed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_mq_source.core.columns import map_array_of, text_array
from spark_mq_source.core.errors import OptionError, UnwritableRowError
from spark_mq_source.core.sql_types import ddl_of, matches
from spark_mq_source.values.inlong.decode import DATA, inlong_type
from spark_mq_source.values.inlong.fields import CSV, JSON, StreamLayout
from spark_mq_source.values.inlong.messages import GROUP_ID, INLONG_MSG, STREAM_ID
from spark_mq_source.values.inlong.texts import join_texts
from spark_mq_source.values.json.encode import json_texts

if TYPE_CHECKING:
    from spark_mq_source.core.columns import ColumnTable
    from spark_mq_source.values.encodings import Encoding

_MAGIC: Final = b"\x0f\1"
_MAX_ATTRIBUTES: Final = 0xFFFF
_REQUIRED: Final = ("groupId", "streamId", DATA)


class InlongEncoder:
    """Encoder of structs of `groupId`, `streamId`, `data` and, if they have them, `dt` and `attributes`.

    Args:
        type_: the type of the structs; `data` is binary, text, or a struct of fields.

    Raises:
        OptionError: the type does not fit; all problems in one sentence.
    """

    def __init__(self, encoding: Encoding, type_: pa.DataType, column: str) -> None:
        self._layout = encoding.layout or StreamLayout()
        known = inlong_type(encoding)
        fields = {field.name: field.type for field in type_} if pa.types.is_struct(type_) else {}
        problems = [f"it lacks {name}" for name in _REQUIRED if name not in fields]
        for name, kind in fields.items():
            at = known.get_field_index(name)
            if name == DATA and pa.types.is_struct(kind):
                problems += self._problems_of_fields(kind, known.field(DATA).type)
            elif name == DATA and (encoding.definition or not (pa.types.is_binary(kind) or pa.types.is_string(kind))):
                problems.append(f"data is {kind}, expected {'a struct' if encoding.definition else 'binary or string'}")
            elif name != DATA and at < 0:
                problems.append(f"{name} is no part of a record of InLong")
            elif name != DATA and not matches(kind, ddl_of(known.field(at).type)):
                problems.append(f"{name} is {kind}, expected {ddl_of(known.field(at).type)}")
        if problems:
            raise OptionError(f"column {column} is {type_}, which cannot be written as inlong: {'; '.join(problems)}")

    def _problems_of_fields(self, kind: pa.StructType, defined: pa.DataType) -> Iterable[str]:
        if pa.types.is_struct(defined) and [field.name for field in kind] != [field.name for field in defined]:
            yield f"data has other fields than inlongFields ({', '.join(field.name for field in defined)})"
        if self._layout.kind != JSON:
            yield from (
                f"data.{field.name} is {field.type}, for which {self._layout.kind} has no text"
                for field in kind
                if pa.types.is_nested(field.type) or pa.types.is_binary(field.type)
            )

    def encode(self, values: pa.StructArray) -> pa.Array:
        """Return the message of each struct; NULL for NULL.

        Raises:
            UnwritableRowError: a struct cannot be a message; names the field.
        """
        columns = _columns(values)
        cells: dict[str, Sequence[Any]] = {name: column.to_pylist() for name, column in columns.items() if name != "dt"}
        if "dt" in columns:
            cells["dt"] = columns["dt"].cast(pa.timestamp("us", "UTC")).view(pa.int64()).to_pylist()
        cells[DATA] = self._records(values.field(DATA))
        rows = zip(*cells.values(), strict=True)
        try:
            messages = [
                _message(dict(zip(cells, row, strict=True))) if is_valid else None
                for row, is_valid in zip(rows, values.is_valid().to_pylist(), strict=True)
            ]
        except ValueError as error:
            raise UnwritableRowError(str(error)) from None
        return text_array(dict(enumerate(messages)), len(messages), pa.binary())

    def _records(self, data: pa.Array) -> Sequence[bytes | None]:
        if not pa.types.is_struct(data.type):
            return data.cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
        if self._layout.kind == JSON:
            return json_texts(data, text_times=True).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
        names = [field.name for field in data.type]
        columns = [_texts(column) for column in data.flatten()]
        rows: Iterable[Sequence[str | None]] = zip(*columns, strict=True) if columns else [()] * len(data)
        is_text = [pa.types.is_string(field.type) for field in data.type]
        try:
            return [
                self._record(names, row, is_text) if is_valid else None
                for row, is_valid in zip(rows, data.is_valid().to_pylist(), strict=True)
            ]
        except ValueError as error:
            raise UnwritableRowError(f"data: {error}") from None

    def _record(self, names: Sequence[str], cells: Sequence[str | None], is_text: Sequence[bool]) -> bytes:
        delimiters, null_text = self._layout.delimiters, self._layout.null_text
        for name, cell, text in zip(names, cells, is_text, strict=True):
            if cell is not None and cell == null_text:
                raise ValueError(f"{name} has the text that inlongNullText makes NULL")
            if cell is None and text and null_text is None and self._layout.kind == CSV:
                raise ValueError(f"{name} is NULL, which csv cannot tell from an empty text: set inlongNullText")
        if self._layout.kind == CSV:
            record = join_texts(
                [null_text or "" if cell is None else cell for cell in cells], delimiters, delimiters.field
            )
        else:
            record = delimiters.field.join(
                join_texts((name, cell), delimiters, delimiters.key or "")
                for name, cell in zip(names, cells, strict=True)
                if cell is not None
            )
        if not record:
            raise ValueError("all fields are empty or NULL, and InLong's Sort leaves out an empty record")
        return record.encode()


def message_columns(values: pa.StructArray, table: ColumnTable) -> dict[str, pa.Array]:
    """Return the columns by which InLong knows a message: properties and, in TubeMQ, its type and time."""
    columns = _columns(values)
    marks = {b"version": INLONG_MSG.encode(), b"msgEnType": INLONG_MSG.encode()}
    names = zip(columns["groupId"].to_pylist(), columns["streamId"].to_pylist(), strict=True)
    properties = [
        {**marks, GROUP_ID.encode(): (group or "").encode(), STREAM_ID.encode(): (stream or "").encode()}
        for group, stream in names
    ]
    found = {table.properties: map_array_of(properties, pa.map_(pa.string(), pa.string()))}
    if "message_type" in table.writable:
        found["message_type"] = columns["streamId"]
        if "dt" in columns:
            found["message_time"] = columns["dt"]
    return found


def _columns(values: pa.StructArray) -> dict[str, pa.Array]:
    """Return the fields of structs, without the data."""
    fields = zip((field.name for field in values.type), values.flatten(), strict=True)
    return {name: column for name, column in fields if name != DATA}


def _texts(column: pa.Array) -> Sequence[str | None]:
    if pa.types.is_string(column.type):
        return column.to_pylist()  # type: ignore[no-any-return]
    is_local = pa.types.is_timestamp(column.type) and not column.type.tz
    texts = json_texts(column, text_times=True).to_pylist()
    # InLong writes times without a zone with a space.
    return [text and text.strip('"').replace("T", " ") if is_local else text and text.strip('"') for text in texts]


def _message(cells: Mapping[str, Any]) -> bytes:
    """Return the message of a row.

    Raises:
        ValueError: the row has a NULL that a message cannot have, or its attributes cannot be written.
    """
    missing = [name for name in _REQUIRED if cells[name] is None]
    if missing:
        raise ValueError(f"{', '.join(missing)} is NULL")
    time_us = cells.get("dt")
    named = {"groupId": cells["groupId"], "streamId": cells["streamId"]}
    if time_us is not None:
        named["dt"] = str(time_us // 1000)
    # The columns count more than attributes of the same names, which a row that was read has.
    pairs = named | {key: text for key, text in cells.get("attributes") or () if key not in named}
    for key, text in pairs.items():
        if text is None or "&" in f"{key}{text}" or "=" in key or not key:
            raise ValueError(f"the attribute {key[:80]!r} is NULL, or has a character that separates attributes")
    attributes = _modified_utf8("&".join(f"{key}={text}" for key, text in pairs.items()))
    if len(attributes) > _MAX_ATTRIBUTES:
        raise ValueError(f"the attributes have {len(attributes)} bytes, but at most {_MAX_ATTRIBUTES} can be written")
    record: bytes = cells[DATA]
    head = struct.pack(">qiH", (time_us or 0) // 1000, 1, len(attributes)) + attributes
    return _MAGIC + head + struct.pack(">ixi", len(record) + 5, len(record)) + record + _MAGIC


def _modified_utf8(text: str) -> bytes:
    """Return a text as Java's `writeUTF` writes it; see `messages._modified_utf8`."""
    if text.isascii() and "\0" not in text:
        return text.encode()
    units = text.encode("utf-16-be")
    halves = "".join(chr(code) for (code,) in struct.iter_unpack(">H", units))
    return halves.encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
