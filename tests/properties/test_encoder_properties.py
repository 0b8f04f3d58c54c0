"""The batching of rows does not change entries, and both loops choose equal partitions; more in directed_pulsar."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_mq_source.core.compression import CODECS
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.pulsar.payload.cipher import PayloadDecryptor, PayloadEncryptor
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, encoding, open_rows
from spark_mq_source.pulsar.payload.layout import NO_PARTITION
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from spark_mq_source.pulsar.protocol.commands import Send

pytest.importorskip("spark_mq_source.pulsar.payload._encode_native", exc_type=ImportError)

TIME = pa.timestamp("us", "UTC")
MAP = pa.map_(pa.string(), pa.string())
NOW_MS = 1_700_000_000_000

text = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.none() | st.binary(max_size=60) | st.sampled_from([b"x" * 300, b"y" * 3000])
keys = st.none() | st.binary(max_size=10) | st.sampled_from([b"a", b"b", b"k" * 90])
times_us = st.integers(1000, 2**63 - 1)
properties = st.none() | st.lists(st.tuples(text, text), max_size=4, unique_by=lambda pair: pair[0])
rows = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "value": values,
            "key": keys,
            "text_key": st.none() | text,
            "ordering_key": keys,
            "event_time": st.none() | times_us,
            "deliver_at": st.none() | st.integers(-(2**63), 2**63 - 1),
            "properties": properties,
        },
    ),
    max_size=30,
)
column_sets = st.sets(st.sampled_from(["key", "text_key", "ordering_key", "event_time", "deliver_at", "properties"]))
configurations = st.fixed_dictionaries(
    {},
    optional={
        "compression": st.sampled_from(CODECS),
        "batching": st.booleans(),
        "batch_bytes": st.sampled_from([1, 50, 200, 1000, 100_000]),
        "batch_rows": st.sampled_from([1, 2, 5, 2**31 - 1]),
        "batching_by_key": st.booleans(),
        "schema_version": st.sampled_from([b"", bytes(8)]),
        "txn_id": st.sampled_from([None, (33, 0), (2**64 - 1, 2**63)]),
    },
)
TYPES = {
    "value": pa.binary(),
    "key": pa.binary(),
    "text_key": pa.string(),
    "ordering_key": pa.binary(),
    "event_time": TIME,
    "deliver_at": TIME,
    "properties": MAP,
}


def batch_of(items: list[dict[str, Any]], names: set[str]) -> pa.RecordBatch:
    # A row is added before and behind, and sliced off again: the arrays then begin within their buffers.
    names = {"value"} | (names - {"text_key"} if "key" in names else names)
    extra: dict[str, Any] = {"value": b"cut off", "key": b"k", "text_key": "k", "properties": [("cut", "off")]}
    padded = [extra, *items, extra]
    arrays = {name: pa.array([row.get(name) for row in padded], TYPES[name]) for name in sorted(names)}
    schema = pa.schema([("key" if name == "text_key" else name, arrays[name].type) for name in arrays])
    return pa.RecordBatch.from_arrays(list(arrays.values()), schema=schema).slice(1, len(items))


def encoded(
    implementation: str,
    batches: list[pa.RecordBatch],
    **configuration: Any,
) -> list[Send]:
    encoder = EntryEncoder(
        producer_id=3,
        producer_name="p",
        sequence_id=126,
        max_message_bytes=8000,
        implementation=implementation,
        **{"batch_bytes": 100_000, "batch_rows": 2**31 - 1, **configuration},
    )
    sends = []
    for batch in batches:
        source = open_rows(batch, implementation)
        at, end = 0, batch.num_rows
        while at < end:
            at = encoder.append(source, None, at, end, now_ms=NOW_MS)
            sends += encoder.take()
    encoder.flush(now_ms=NOW_MS)
    return [send._replace(body=bytes(send.body)) for send in sends + encoder.take()]


@given(rows, column_sets, configurations, st.integers(0, 30))
@settings(deadline=None)
def test_the_batching_of_rows_does_not_change_the_entries(
    items: list[dict[str, Any]], names: set[str], configuration: dict[str, Any], cut: int
) -> None:
    batch = batch_of(items, names)
    pieces = [batch.slice(0, cut), batch.slice(min(cut, batch.num_rows))]
    for implementation in ("native", "python"):
        assert encoded(implementation, pieces, **configuration) == encoded(implementation, [batch], **configuration)


PAIR = ec.generate_private_key(ec.SECP256R1())


def key_of(kind: str, name: str, metadata: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """Return one pair of keys for any name."""
    if kind == "public":
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return PAIR.public_key().public_bytes(serialization.Encoding.PEM, form), {"of": name}
    assert metadata == {"of": name}
    pkcs8, open_ = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return PAIR.private_bytes(serialization.Encoding.PEM, pkcs8, open_), {}


def decoded(implementation: str, sends: list[Send], decryptor: PayloadDecryptor | None = None) -> list[dict[str, Any]]:
    names = ("value", "key", "ordering_key", "event_time", "properties", "message_id", "sequence_id")
    schema = arrow_schema_of({name: COLUMNS.readable[name][0] for name in names})
    limits = {"max_message_bytes": 1 << 20, "max_pending_chunk_bytes": 1 << 20}
    decoder = EntryDecoder(
        schema, topic="t", partition=-1, decryptor=decryptor, implementation=implementation, **limits
    )
    for entry_id, send in enumerate(sends):
        decoder.decode(7, entry_id, send.body)
    return decoder.take_batch().to_pylist()


@given(rows, column_sets, configurations, st.sets(text, min_size=1, max_size=3))
@settings(deadline=None)
def test_encrypted_rows_are_decoded_like_unencrypted_ones(
    items: list[dict[str, Any]], names: set[str], configuration: dict[str, Any], key_names: set[str]
) -> None:
    # Numbers that do not fit into a timestamp are allowed here; another test checks them.
    large = {b"y" * 3000: b"y" * 20_000}
    items = [row | {"value": large.get(row.get("value"), row.get("value"))} for row in items]
    batch = batch_of(items, names - {"event_time"})
    cipher = {"encryptor": PayloadEncryptor(sorted(key_names), key_of, NOW_MS)}
    for implementation in ("native", "python"):
        plain = encoded(implementation, [batch], chunking=True, **configuration)
        secret = encoded(implementation, [batch], chunking=True, **configuration, **cipher)
        assert all(len(send.body) <= 8000 for send in secret)
        found = decoded(implementation, secret, PayloadDecryptor(key_of))
        if any(send.is_chunk for send in secret):
            # Encryption makes more chunks, each with a sequence id and a position.
            assert [row["value"] for row in found] == [row["value"] for row in decoded(implementation, plain)]
        else:
            assert found == decoded(implementation, plain)


@given(st.lists(st.none() | text), st.sampled_from([0, 1]), st.booleans())
@settings(deadline=None)
def test_both_loops_hash_keys_equally(items: list[str | None], hashing: int, is_binary: bool) -> None:
    array_ = pa.array(["cut off", *items], pa.string()).slice(1)
    if is_binary:
        array_ = array_.view(pa.binary())
    hashes = encoding.load("native").hashes_of(array_, hashing)
    assert hashes == encoding.load("python").hashes_of(array_, hashing)
    if is_binary:
        encoded_keys = [None if item is None else base64.b64encode(item.encode()).decode() for item in items]
        assert hashes == encoding.load("python").hashes_of(pa.array(encoded_keys, pa.string()), hashing)


@given(
    st.lists(st.tuples(st.none() | st.integers(-1, 5), st.integers(-1, 100))),
    st.integers(1, 5),
    st.booleans(),
    st.data(),
)
@settings(deadline=None)
def test_both_loops_group_rows_equally(
    items: list[tuple[int | None, int]], partitions: int, has_order: bool, data: st.DataObject
) -> None:
    explicit = pa.array([0, *(item for item, _ in items)], pa.int32()).slice(1)
    hashes = array("i", [number for _, number in items])
    order = None
    if has_order and items:
        order = array("i", data.draw(st.lists(st.integers(0, len(items) - 1), max_size=10)))
    rows = len(items) if order is None else len(order)
    for columns in ((explicit, hashes), (None, hashes), (explicit, None), (None, None)):
        results: list[Any] = []
        for implementation in ("native", "python"):
            try:
                groups = encoding.load(implementation).group_rows(*columns, order, rows, partitions)
                results.append([(partition, indices.tolist()) for partition, indices in groups])
            except IndexError as error:
                results.append(str(error))
        assert results[0] == results[1]
        if isinstance(results[0], list):
            assert sorted(i for _, indices in results[0] for i in indices) == sorted(order or range(rows))
            assert all(NO_PARTITION <= partition < partitions for partition, _ in results[0])
