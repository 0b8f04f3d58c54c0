"""The rows of InLong's messages: each message gives one row for each of its records, or for each row of csv in them."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from spark_mq_source.core.columns import int_array, map_array_of, text_array
from spark_mq_source.core.sql_types import arrow_type_of_ddl, ddl_of, matches
from spark_mq_source.values._loops_python import BadPayloadError
from spark_mq_source.values.decoder import Decoded
from spark_mq_source.values.inlong.fields import RecordDocuments, StreamLayout
from spark_mq_source.values.inlong.messages import MAX_MESSAGE_BYTES, Head, records_of
from spark_mq_source.values.json.decode import json_decoder

if TYPE_CHECKING:
    from spark_mq_source.values.encodings import Encoding

DATA: Final = "data"
_HEAD: Final = arrow_type_of_ddl("groupId string, streamId string, dt timestamp, attributes map<string,string>")
_PIECE_BYTES: Final = 16 << 20
_ROW_BYTES: Final = 256
_ATTRIBUTE_BYTES: Final = 200
"""The bytes of a row besides its cells, and of an attribute besides its texts: an attacker could make millions."""

_NAMES: Final = [field.name for field in _HEAD]


def inlong_type(encoding: Encoding) -> pa.DataType:
    """Return the type of a record: its head, and `data`, which is a struct if the encoding defines its fields.

    Raises:
        ValueError: the definition is not a list of columns.
    """
    data = arrow_type_of_ddl(encoding.definition) if encoding.definition else pa.binary()
    if encoding.definition and not pa.types.is_struct(data):
        raise ValueError(f"inlongFields: {encoding.definition} is one type, expected columns such as a int, b string")
    return pa.struct([*_HEAD, pa.field(DATA, data)])


class InlongDecoder:
    """Decoder of messages into rows of (a part of) a record's type.

    Raises:
        ValueError: a field is unknown or has another type.
    """

    def __init__(self, encoding: Encoding, wanted: pa.DataType) -> None:
        known = inlong_type(encoding)
        if not pa.types.is_struct(wanted):
            raise ValueError(f"the value is {known}, not {wanted}")
        self.type = wanted
        self._layout = encoding.layout or StreamLayout()
        self._documents = self._json = None
        for field in wanted:
            at = known.get_field_index(field.name)
            type_ = known.field(at).type if at >= 0 else None
            if field.name == DATA and encoding.definition and pa.types.is_struct(field.type):
                fields = [*known.field(DATA).type]
                self._documents = RecordDocuments(fields, self._layout)
                self._json = json_decoder(field.type)
                unknown = {inner.name for inner in field.type} - {inner.name for inner in fields}
                if unknown:
                    raise ValueError(f"{', '.join(sorted(unknown))} is not in inlongFields")
            elif type_ is None or not matches(field.type, ddl_of(type_)):
                raise ValueError(f"{field.name} is {type_ or 'no part of a record of InLong'}, not {field.type}")

    def decode(self, payloads: pa.Array, properties: pa.Array | None = None) -> Decoded:
        """Decode messages, with their properties as maps, from the first on until the rows are enough for a batch.

        A message is decoded as a whole: one that has a bad record gives a reason and one NULL.
        """
        properties = pa.nulls(len(payloads)) if properties is None else properties
        bad: dict[int, str] = {}
        while True:
            decoded, found = self._decode(payloads, properties, bad)
            if not found:
                return decoded
            # Again, without the messages whose fields are bad: a message has all its rows or none.
            bad |= found

    def _decode(
        self, payloads: pa.Array, properties: pa.Array, bad: Mapping[int, str]
    ) -> tuple[Decoded, dict[int, str]]:
        """Decode messages; also return the reasons why the fields of messages cannot be decoded."""
        heads: list[Head | None] = [None]
        data: list[bytes | None] = []
        parents, head_of_row = array("i"), array("i")
        reasons, found = dict(bad), {}
        size = messages = 0
        while messages < len(payloads) and size < _PIECE_BYTES:
            row, payload = messages, payloads[messages].as_py()
            rows: Sequence[tuple[Head | None, bytes | None]] = [(None, None)]
            if payload is not None and row not in reasons:
                try:
                    rows, taken = self._rows(payload, dict(properties[row].as_py() or ()))
                    size += taken
                except BadPayloadError as error:
                    reasons[row] = error.why
            for head, cell in rows:
                if head is not heads[-1]:
                    heads.append(head)
                head_of_row.append(len(heads) - 1)
                parents.append(row)
                data.append(cell)
            messages += 1
        cells = text_array(dict(enumerate(data)), len(data), pa.binary())
        if self._json is not None:
            decoded = self._json.decode(cells)
            cells = decoded.values
            for at, why in sorted(decoded.reasons.items(), reverse=True):
                found[parents[at]] = f"row {at - bisect_left(parents, parents[at]) + 1}: {why}"
        values = self._values(heads, head_of_row, cells)
        return Decoded(values, reasons, int_array(parents, pa.int32()), messages), found

    def _rows(self, payload: bytes, properties: Mapping[str, str]) -> tuple[list[tuple[Head, bytes]], int]:
        """Return the rows of a message, and how many bytes they need."""
        rows: list[tuple[Head, bytes]] = []
        streams, documents = self._layout.streams, self._documents
        size = head_size = 0
        last = None
        for number, (head, record) in enumerate(records_of(payload, properties, self._layout.zone)):
            if streams and head.stream_id not in streams:
                if head.has_numbers:
                    raise BadPayloadError(
                        f"record {number + 1}: its stream is the number {head.stream_id}, and inlongStreams may mean "
                        f"its name: add the number to read it"
                    )
                continue
            if head is not last:
                last, texts = head, chain(*head.attributes.items())
                head_size = _ROW_BYTES + _ATTRIBUTE_BYTES * len(head.attributes) + sum(map(len, texts))
            cells = iter((record,)) if documents is None else documents.rows(record, head.attributes)
            try:
                for cell in cells:
                    rows.append((head, cell))
                    size += head_size + len(cell)
                    _check_size(size)
            except BadPayloadError as error:
                raise BadPayloadError(f"record {number + 1}: {error.why}") from None
        return rows, size

    def _values(self, heads: Sequence[Head | None], head_of_row: Sequence[int], data: pa.Array) -> pa.Array:
        if not self.type.num_fields:
            return pa.nulls(len(head_of_row), self.type)
        at = int_array(head_of_row, pa.int32())
        children = [data if field.name == DATA else _column(heads, field).take(at) for field in self.type]
        validity = _bits(heads[head] is not None for head in head_of_row)
        return pa.Array.from_buffers(self.type, len(at), [validity], children=children)


# From buffers: pa.array imports pandas if it is installed, which takes a worker seconds.


def _column(heads: Sequence[Head | None], field: pa.Field) -> pa.Array:
    """Return a column of the heads; NULL or empty without a head."""
    cells: list[Any] = [None if head is None else head[_NAMES.index(field.name)] for head in heads]
    if pa.types.is_map(field.type):
        return map_array_of(
            [{key.encode(): text.encode() for key, text in (one or {}).items()} for one in cells], field.type
        )
    if pa.types.is_timestamp(field.type):
        buffers = [
            _bits(cell is not None for cell in cells),
            int_array([cell or 0 for cell in cells], pa.int64()).buffers()[1],
        ]
        return pa.Array.from_buffers(field.type, len(cells), buffers)
    return text_array(dict(enumerate(cells)), len(cells), field.type)


def _bits(flags: Iterable[bool]) -> pa.Buffer:
    bits = bytearray()
    for row, flag in enumerate(flags):
        if not row & 7:
            bits.append(0)
        bits[-1] |= flag << (row & 7)
    return pa.py_buffer(bits)


def _check_size(size: int) -> None:
    if size > MAX_MESSAGE_BYTES:
        raise BadPayloadError(f"the rows of the message need more than {MAX_MESSAGE_BYTES >> 20} MiB")
