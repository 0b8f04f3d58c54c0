"""Payloads of a key and a value, as written by Pulsar's KEY_VALUE schema with the encoding INLINE."""

from __future__ import annotations

from typing import Final

from spark_mq_source.core.implementation import Implementation
from spark_mq_source.values import _pairs_python
from spark_mq_source.values.decoder import ValueDecoder

_decoding: Final = Implementation(_pairs_python)


def pair_decoder(implementation: str | None = None) -> ValueDecoder:
    r"""Return a decoder of pairs into a struct of the bytes of key and value, each of which may be NULL.

    Each part is an int32 with its size, -1 for NULL, and the bytes (`KeyValue.decode` of the Java client).

    Args:
        implementation: ``native`` or ``python``; None for the implementation of this process.

    Example:
        >>> import pyarrow as pa
        >>> pairs = pa.array([b"\0\0\0\1k\xff\xff\xff\xff", b"\0\0\0\1"], pa.binary())
        >>> decoded = pair_decoder().decode(pairs)
        >>> decoded.values.to_pylist(), decoded.reasons
        ([{'key': b'k', 'value': None}, None], {1: 'a pair of key and value that ends too early'})
    """
    decoder: ValueDecoder = _decoding.load(implementation).PairDecoder()
    return decoder
