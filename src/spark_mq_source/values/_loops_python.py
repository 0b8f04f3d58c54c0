"""The base of the interpreted loops over values: the twin of ``_loops_native``."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from spark_mq_source.values.decoder import Decoded, reason_of


class BadPayloadError(Exception):
    """The error of a payload that cannot be decoded; `path` grows from the inside to the outside."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.path: list[str] = []

    @property
    def reason(self) -> str:
        return reason_of(self.path, self.why)


class RowDecoder:
    """Decoder of payloads, one by one, into values of the Arrow type `type_`; see `decoder.ValueDecoder`."""

    def __init__(self, type_: pa.DataType) -> None:
        self.type = type_

    def decode(self, payloads: pa.Array) -> Decoded:
        values: list[Any] = []
        reasons: dict[int, str] = {}
        for row, payload in enumerate(payloads):
            data = payload.as_py()
            value = None
            if data is not None:
                try:
                    value = self._read_row(data)
                except BadPayloadError as bad:
                    reasons[row] = bad.reason
            values.append(value)
        return Decoded(pa.array(values, self.type), reasons)

    def _read_row(self, payload: bytes) -> Any:  # noqa: ANN401 - of any type
        """Decode a payload.

        Raises:
            BadPayloadError: the payload cannot be decoded.
        """
        raise NotImplementedError
