"""Check that texts to write are UTF-8: Spark and Arrow do not check them, and a cast of binary can give any bytes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa

from spark_mq_source.core.columns import is_text
from spark_mq_source.core.errors import UnwritableRowError

_PIECE_BYTES = 1 << 20


def check_texts(batch: pa.RecordBatch, names: Collection[str], first_row: int = 0) -> None:
    """Refuse a batch with text that is not UTF-8.

    Args:
        batch: rows to be written.
        names: the columns that become text in a message; checked if of type ``string`` or ``map<string,string>``.
        first_row: the number of the batch's first row within the task.

    Raises:
        UnwritableRowError: a text is not UTF-8; names the first such row of the first such column.

    Example:
        >>> check_texts(pa.record_batch({"key": pa.array(["a", None])}), ["key"])
        >>> check_texts(pa.record_batch({"key": pa.array([b"a", bytes([255])]).view(pa.string())}), ["key"], 1000)
        Traceback (most recent call last):
        ...
        spark_mq_source.UnwritableRowError: row 1001 of the task cannot be a message: its key is not UTF-8 \
(byte 0); make_valid_utf8 replaces such bytes; nothing of its batch was sent
    """
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if name not in names or not batch.num_rows:
            continue
        first, parts = _texts_of(column)
        if all(map(is_utf8, parts)):
            continue
        for row in range(batch.num_rows):
            for text in _cells(column, row, first, parts):
                byte = _first_bad_byte(text)
                if byte >= 0:
                    raise UnwritableRowError(
                        f"row {first_row + row} of the task{_topic_of(batch, name, row)} cannot be a message: its "
                        f"{name} is not UTF-8 (byte {byte}); make_valid_utf8 replaces such bytes; nothing of its "
                        f"batch was sent"
                    )


def _texts_of(column: pa.Array) -> tuple[int, list[pa.Array]]:
    """Return the arrays of text in a column, and the index at which a map's entries begin."""
    if is_text(column.type):
        return 0, [column]
    if not pa.types.is_map(column.type):
        return 0, []
    first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
    return first, [part.slice(first, last - first) for part in (column.keys, column.items) if is_text(part.type)]


def is_utf8(texts: pa.Array) -> bool:
    """Return whether all texts of an array are UTF-8; may be False because of the bytes of a NULL."""
    _, offsets, data = texts.buffers()
    # An array without texts may have no offsets: Java's Arrow writes it with a buffer of 0 bytes.
    if not len(texts) or data is None:
        return True
    ends = memoryview(offsets).cast("i")
    start, end = ends[texts.offset], ends[texts.offset + len(texts)]
    # Nearly all text is ASCII, and that check takes a fifth of the time that Arrow needs for single values.
    pieces = (data.slice(at, min(_PIECE_BYTES, end - at)) for at in range(start, end, _PIECE_BYTES))
    if all(piece.to_pybytes().isascii() for piece in pieces):
        return True
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _cells(column: pa.Array, row: int, first: int, parts: list[pa.Array]) -> Iterator[pa.StringScalar]:
    """Yield the texts of a row, the key of a map before its item."""
    if not column[row].is_valid:
        return
    begin, end = row, row + 1
    if pa.types.is_map(column.type):
        begin, end = column.offsets[row].as_py() - first, column.offsets[row + 1].as_py() - first
    for at in range(begin, end):
        yield from (part[at] for part in parts)


def _first_bad_byte(text: pa.StringScalar) -> int:
    """Return the offset of the first byte that is not UTF-8; -1 if there is none."""
    if text.is_valid:
        try:
            str(text.as_buffer(), "utf-8")
        except UnicodeDecodeError as error:
            return error.start
    return -1


def _topic_of(batch: pa.RecordBatch, name: str, row: int) -> str:
    """Return the row's topic for an error, unless the topic is the faulty cell or not a column."""
    if name == "topic" or "topic" not in batch.schema.names:
        return ""
    topic = batch.column(batch.schema.get_field_index("topic"))[row]
    return f" for topic {str(topic.as_buffer(), 'utf-8', 'backslashreplace')}" if topic.is_valid else ""
