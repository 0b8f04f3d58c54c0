"""Strategies for messages of a protocol, by the annotations of their fields, and for pieces of bytes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from enum import IntEnum
from functools import cache
from typing import Any

from google.protobuf.descriptor_pb2 import FieldDescriptorProto
from hypothesis import strategies as st

from spark_mq_source.core import protobuf

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
VALUES: Mapping[int, st.SearchStrategy[Any]] = {
    FieldDescriptorProto.TYPE_INT32: INT32,
    FieldDescriptorProto.TYPE_UINT32: st.integers(0, 2**32 - 1),
    FieldDescriptorProto.TYPE_INT64: INT64,
    FieldDescriptorProto.TYPE_UINT64: INT64,
    FieldDescriptorProto.TYPE_BOOL: st.booleans(),
    FieldDescriptorProto.TYPE_DOUBLE: st.floats(allow_nan=False),
    FieldDescriptorProto.TYPE_STRING: TEXT,
    FieldDescriptorProto.TYPE_BYTES: st.binary(max_size=50),
}


def split(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    """Return the bytes in pieces, split at the cuts."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:stop] for start, stop in itertools.pairwise(places)]


@cache
def any_of(kind: type, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return messages of a class; `given` has the values of fields that are not on the wire or are restricted."""
    return st.builds(kind, **{field.name: _values(field) for field in protobuf._fields_of(kind)} | given)


def _values(field: protobuf._Field) -> st.SearchStrategy[Any]:
    if field.wire_type is None:
        values = st.deferred(lambda: any_of(field.kind))  # a message may contain itself
    elif issubclass(field.kind, IntEnum):
        values = st.sampled_from(field.kind)
    else:
        values = VALUES[field.wire_type]
    if field.label == protobuf._REPEATED:
        return st.lists(values, max_size=3).map(tuple)
    return st.none() | values if field.label == protobuf._OPTIONAL and field.default is None else values
