"""The interface of all decoders of message values into a Spark column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Decoded:
    """The values of one batch.

    Attributes:
        values: one value per payload, of the decoder's type; NULL if the payload is NULL or cannot be decoded.
        reasons: by row of the batch, why a payload cannot be decoded, with the path of the field.
        parents: with several values per payload, the row of each value's payload; None for one value per payload.
        payloads: with several values per payload, how many payloads were decoded.
    """

    values: pa.Array
    reasons: Mapping[int, str]
    parents: pa.Array | None = None
    payloads: int = 0


class ValueDecoder(Protocol):
    """A decoder of payloads that were all written with one schema."""

    type: pa.DataType
    """The Arrow type of the values in Spark."""

    def decode(self, payloads: pa.Array) -> Decoded:
        """Decode the values of a binary array.

        A payload that cannot be decoded gives a reason, never an exception, and does not affect other rows. Memory is
        bounded by the payloads' bytes times a factor that the schema determines.
        """


def reason_of(path: Sequence[str], why: str) -> str:
    """Return a reason with the path of its field, which is given from the inside to the outside.

    Example:
        >>> reason_of(["[3]", ".b", ".a"], "the text is not UTF-8")
        'field a.b[3]: the text is not UTF-8'
        >>> reason_of([], "not JSON")
        'not JSON'
    """
    where = "".join(reversed(path)).removeprefix(".")
    return f"field {where}: {why}" if where else why
