"""Decoder of pairs of key and value for the interpreter: the twin of ``_pairs_native``."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from spark_mq_source.core.columns import KEY, VALUE
from spark_mq_source.values._loops_python import BadPayloadError, RowDecoder

PAIR: Final = pa.struct([(KEY, pa.binary()), (VALUE, pa.binary())])
TOO_SHORT: Final = "a pair of key and value that ends too early"


class PairDecoder(RowDecoder):
    r"""Splitter of payloads of a key and a value, as written by Pulsar's KEY_VALUE schema with the encoding INLINE.

    Each part is an int32 with its size, -1 for NULL, and the bytes (`KeyValue.decode` of the Java client).

    Example:
        >>> decoded = PairDecoder().decode(pa.array([b"\0\0\0\1k\xff\xff\xff\xff", b"\0\0\0\1"], pa.binary()))
        >>> decoded.values.to_pylist(), decoded.reasons
        ([{'key': b'k', 'value': None}, None], {1: 'a pair of key and value that ends too early'})
    """

    def __init__(self) -> None:
        super().__init__(PAIR)

    def _read_row(self, payload: bytes) -> dict[str, bytes | None]:
        key, at = _take_part(payload, 0)
        value, _ = _take_part(payload, at)
        return {KEY: key, VALUE: value}


def _take_part(payload: bytes, at: int) -> tuple[bytes | None, int]:
    begin = at + 4
    size = int.from_bytes(payload[at:begin], "big", signed=True)
    if begin > len(payload) or begin + size > len(payload):
        raise BadPayloadError(TOO_SHORT)
    return (None, begin) if size < 0 else (payload[begin : begin + size], begin + size)
