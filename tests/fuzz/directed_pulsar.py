"""Directed fuzzing of Pulsar's loops: a seed makes entries and rows, which are compared with the oracle."""

from __future__ import annotations

from array import array
from base64 import b64encode
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import (
    CorruptMessageError,
    EncryptedMessageError,
    MQSourceError,
    UnsupportedFeatureError,
    UnwritableRowError,
)
from spark_mq_source.core.sql_types import arrow_schema_of
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.encoder import EntryEncoder, open_rows
from spark_mq_source.pulsar.payload.messages import EntryDecoder
from tests.fuzz.directed import compare, random_columns, seeded
from tests.oracles import pulsar_messages as oracle
from tests.oracles.fields import CorruptError, crc32c, damaged, put_fields, put_varint, rows_of

ENTRIES = 400
ROWS = 120
TEXTS = ("", "a", "k", "ä", "key-17", "😀" * 3, "x" * 130)
ERRORS = {
    CorruptError: CorruptMessageError,
    oracle.EncryptedError: EncryptedMessageError,
    oracle.UnsupportedError: UnsupportedFeatureError,
}


# Decoding


def run_decoder(rng: Random, seed: int, loops: str) -> int:
    """Decode entries, and compare rows, errors and counts."""
    columns = random_columns(rng, COLUMNS.readable)
    options: dict[str, Any] = {
        "on_corrupt": rng.choice(["fail", "skip", "null"]),
        "max_message_bytes": rng.choice([1 << 20, 1 << 20, 600]),
        "max_pending_chunk_bytes": 1 << 24,
        "verify_checksum": rng.random() < 0.2,
    }
    is_raw = rng.random() < 0.5
    reader = oracle.Reader(
        {name: type_ == "string" for name, type_ in columns.items()},
        on_corrupt=options["on_corrupt"],
        is_raw=is_raw,
        verifies=options["verify_checksum"],
        max_message_bytes=options["max_message_bytes"],
        max_pending_chunk_bytes=options["max_pending_chunk_bytes"],
    )
    decoder = EntryDecoder(
        arrow_schema_of(columns),
        topic="t",
        partition=3,
        on_encrypted="raw" if is_raw else "fail",
        max_batch_rows=rng.choice([1, 5, 1 << 20]),
        implementation=loops,
        **options,
    )
    expected: list[dict[str, Any]] = []
    batches: list[pa.RecordBatch] = []
    # The origin of each expected row, for the description of a difference.
    origins: list[tuple[Any, ...]] = []
    makes_damage = rng.random() < 0.5
    compared = 0
    chunked: list[bytes] = []
    made: list[bytes] = []
    for number in range(ENTRIES):
        if not chunked and rng.random() < 0.1:
            chunked = random_chunks(rng)
        if chunked and rng.random() < 0.5:
            body = chunked.pop(0)
        elif not made or number % 4 == 0 or rng.random() < 0.1:
            body = random_entry(rng, makes_damage=makes_damage)
            made.append(body)
        else:
            # Another delivery of the same entry.
            body = rng.choice(made[-9:])
        # An entry may be redelivered.
        position = (7, number - (rng.random() < 0.05))
        how = random_delivery(rng)
        case = (seed, number, loops, columns, options, is_raw, position, how, body.hex())
        wanted: Any
        try:
            rows = reader.decode(position, body, *how, is_sound=not makes_damage)
            wanted = len(rows)
        except (CorruptError, oracle.EncryptedError, oracle.UnsupportedError) as error:
            rows, wanted = [], ERRORS[type(error)]
        outcome: Any
        before = decoder.rows
        try:
            outcome = decoder.decode(*position, memoryview(body), *how)
            assert decoder.rows == before + outcome, case
            while decoder.unfinished:
                batches.append(decoder.take_batch())
                outcome += decoder.decode_rest()
        except MQSourceError as error:
            outcome = type(error)
            assert decoder.rows == before, case
        decoder.orphan = None
        assert (outcome, decoder.corrupt_entries) == (wanted, reader.corrupt_entries), (outcome, wanted, case)
        compared += max(1, len(rows))
        expected += rows
        origins += [case] * len(rows)
    batches.append(decoder.take_batch())
    compare(rows_of(batches), expected, origins)
    return compared


def random_delivery(rng: Random) -> tuple[Any, ...]:
    """Return the delivery of an entry: ack set, first and last index, whether its rows are wanted, redeliveries."""
    ack_set = [rng.getrandbits(64) - (rng.getrandbits(1) << 63) for _ in range(rng.randint(1, 2))]
    first = 0 if rng.random() < 0.8 else rng.randint(0, 6)
    last = oracle.MAX_INT if rng.random() < 0.8 else rng.randint(0, 9)
    return (
        () if rng.random() < 0.7 else [word if -(2**63) <= word < 2**63 else -1 for word in ack_set],
        first, last, rng.random() < 0.95, rng.choice([0, 0, 3, 2**31, 2**32 - 1]),
    )  # fmt: skip


def random_text(rng: Random) -> bytes:
    """Return bytes that are mostly text."""
    return rng.choice(TEXTS).encode() if rng.random() < 0.97 else rng.choice([b"\xff", b"a\xed\xa0\x80", b"\xe2\x82"])


def random_key(rng: Random, name: str, contents: list[tuple[str, Any]]) -> None:
    """Add a key, sometimes in base64."""
    if rng.random() < 0.5:
        return
    key = random_text(rng)
    if rng.random() < 0.3:
        contents.append((f"{name}_b64_encoded", 1))
        key = b64encode(rng.randbytes(rng.randint(0, 9))) if rng.random() < 0.9 else b"YQ="
        key = key.rstrip(b"=") if rng.random() < 0.3 else key
    contents.append((name, key))


def random_time(rng: Random) -> int:
    """Return a time in ms, nearly always within the range of timestamps."""
    return rng.choice([0, 1, 1_700_000_000_123, 2**64 - 5]) if rng.random() < 0.98 else rng.choice([2**62, 2**63])


def random_properties(rng: Random, contents: list[tuple[str, Any]]) -> None:
    """Add properties of few keys, so that some repeat; sometimes more than are compared one by one."""
    if rng.random() < 0.5:
        return
    count = rng.choice([1, 2, 3, 17, 40]) if rng.random() < 0.3 else rng.randint(1, 3)
    for _ in range(count):
        pair = [("key", random_text(rng)), ("value", random_text(rng))]
        if rng.random() < 0.01:
            del pair[rng.randint(0, 1)]
        contents.append(("properties", put_fields(rng, oracle.PAIR_FIELDS, pair)))


def random_message(rng: Random, *, makes_damage: bool) -> bytes:
    """Return a message of a batch; sometimes its size is wrong, so that the next one begins anywhere."""
    value = rng.choice([b"", b"v", rng.randbytes(rng.randint(0, 40)), "wert ä".encode()])
    contents: list[tuple[str, Any]] = []
    if rng.random() < 0.5:
        # Nearly all messages have this form, for which the loops have a fast path.
        if rng.random() < 0.5:
            contents.append(("partition_key", rng.choice(TEXTS).encode()))
        contents.append(("payload_size", len(value)))
        if rng.random() < 0.5:
            contents.append(("sequence_id", rng.choice([0, 5, 300, 2**63 + 1])))
        head = b"".join(put_fields(Random(1), oracle.SINGLE_FIELDS, [one]) for one in contents)
        return len(head).to_bytes(4, "big") + head + value
    random_key(rng, "partition_key", contents)
    random_properties(rng, contents)
    lies = makes_damage and rng.random() < 0.02
    contents.append(("payload_size", rng.choice([-1, len(value) + 1, 2**31]) if lies else len(value)))
    for name, make in (
        ("compacted_out", lambda: rng.random() < 0.2),
        ("event_time", lambda: random_time(rng)),
        ("ordering_key", lambda: random_text(rng)),
        ("sequence_id", lambda: rng.getrandbits(64)),
        ("null_value", lambda: rng.random() < 0.3),
        ("null_partition_key", lambda: rng.random() < 0.3),
    ):
        if rng.random() < 0.3:
            contents.append((name, int(made) if isinstance(made := make(), bool) else made))
    head = put_fields(rng, oracle.SINGLE_FIELDS, contents)
    return len(head).to_bytes(4, "big") + head + value


def random_metadata(rng: Random) -> list[tuple[str, Any]]:
    """Return the fields of an entry's metadata that do not depend on its kind; sometimes a required one is missing."""
    contents: list[tuple[str, Any]] = [
        ("producer_name", random_text(rng) if rng.random() < 0.9 else b"n" * rng.choice([127, 128, 2000])),
        ("sequence_id", rng.choice([0, 7, 2**64 - 1])),
        ("publish_time", random_time(rng)),
    ]
    if rng.random() < 0.02:
        del contents[rng.randint(0, 2)]
    random_key(rng, "partition_key", contents)
    random_properties(rng, contents)
    for name, make in (
        ("replicated_from", lambda: random_text(rng)),
        ("event_time", lambda: random_time(rng)),
        ("schema_version", lambda: rng.randbytes(rng.randint(0, 9))),
        ("schema_id", lambda: rng.randbytes(rng.randint(0, 9))),
        ("ordering_key", lambda: random_text(rng)),
        ("deliver_at_time", lambda: rng.getrandbits(64)),
        ("txnid_least_bits", lambda: rng.getrandbits(64)),
        ("txnid_most_bits", lambda: 0),
        ("highest_sequence_id", lambda: rng.getrandbits(20)),
        ("null_value", lambda: rng.getrandbits(1)),
        ("null_partition_key", lambda: rng.getrandbits(1)),
        ("num_chunks_from_msg", lambda: rng.choice([0, 1])),
        ("uuid", lambda: b"u"),
    ):
        if rng.random() < 0.25:
            contents.append((name, make()))
    if rng.random() < 0.02:
        contents.append(("marker_type", rng.randint(0, 12)))
    return contents


def random_entry(rng: Random, *, makes_damage: bool) -> bytes:
    """Return an entry: a single message or a batch, sometimes compressed, encrypted, compacted or damaged."""
    if makes_damage and rng.random() < 0.05:
        return random_garbage(rng)
    contents = random_metadata(rng)
    codec = rng.choice([0, 0, 0, 1, 2, 3, 4])
    harms = rng.choice(["metadata", "payload", "body"]) if makes_damage and rng.random() < 0.5 else ""
    payload = rng.choice(TEXTS).encode() if rng.random() < 0.5 else rng.randbytes(rng.randint(0, 300))
    if rng.random() < 0.6:
        messages = rng.randint(1, 12) if rng.random() < 0.95 else rng.randint(60, 140)
        payload = b"".join(random_message(rng, makes_damage=makes_damage) for _ in range(messages))
        if rng.random() < 0.03:
            messages = rng.choice([0, -1, messages + 1, messages - 1, 2**31 - 1])
        contents.append(("num_messages_in_batch", messages))
        if rng.random() < 0.2:
            left_out: list[int | bytes] = [rng.randint(-1, 12) for _ in range(rng.randint(1, 5))]
            if rng.random() < 0.5:
                left_out = [b"".join(map(put_varint, left_out))]  # type: ignore[arg-type]
            contents += [("compacted_batch_indexes", index) for index in left_out]
    if harms == "payload":
        payload = damaged(rng, payload)
    if rng.random() < 0.03 and harms != "metadata":
        pair = put_fields(rng, oracle.PAIR_FIELDS, [("key", b"m"), ("value", b"1")])
        keys = [("key", b"k"), ("value", rng.randbytes(4)), ("metadata", pair)]
        contents = [(name, b"t" if name in {"producer_name", "replicated_from"} else made) for name, made in contents
                    if name not in {"partition_key", "properties"}]  # fmt: skip
        contents.append(("encryption_keys", put_fields(rng, oracle.KEY_FIELDS, keys)))
        contents += [("encryption_algo", b"AES"), ("encryption_param", bytes(12))] * rng.getrandbits(1)
        harms = ""
    if codec and harms != "body":
        size = len(payload) if rng.random() < 0.97 else max(0, len(payload) + rng.choice([-1, 1]))
        contents += [("compression", codec if rng.random() < 0.99 else 9), ("uncompressed_size", size)]
        payload = oracle.COMPRESS[codec](payload)
    return framed(rng, contents, payload, harms)


def random_garbage(rng: Random) -> bytes:
    """Return the valid beginning of an entry followed by fields of any number and wire type, or random bytes."""
    fields = b"".join(bytes([rng.getrandbits(7)]) + rng.randbytes(rng.randint(0, 11)) for _ in range(rng.randint(0, 4)))
    head = bytes.fromhex(rng.choice(["", "0a017010001800", "0a0170100018005803"])) + fields
    single = len(fields).to_bytes(4, "big") + b"\x18\x02" + fields
    garbage = len(head).to_bytes(4, "big") + head + rng.choice([b"", single * 3, rng.randbytes(60)])
    return rng.choice([garbage, garbage, rng.randbytes(rng.randint(0, 100)), b"\x0e\x02\xff\xff\xff\xff"])


def framed(rng: Random, contents: list[tuple[str, Any]], payload: bytes, harms: str = "") -> bytes:
    """Return the bytes of an entry, sometimes with a checksum and the broker's metadata."""
    metadata = put_fields(rng, oracle.METADATA_FIELDS, contents)
    if harms == "metadata":
        metadata = damaged(rng, metadata)
    body = len(metadata).to_bytes(4, "big") + metadata + payload
    if rng.random() < 0.6:
        value = crc32c(body) if rng.random() < 0.97 else rng.getrandbits(32)
        body = b"\x0e\x01" + value.to_bytes(4, "big") + body
    if rng.random() < 0.4:
        said = [("broker_timestamp", random_time(rng)), ("index", rng.choice([0, 9, 2**63 + 3]))]
        head = put_fields(rng, oracle.BROKER_FIELDS, rng.sample(said, rng.randint(0, 2)))
        body = b"\x0e\x02" + len(head).to_bytes(4, "big") + head + body
    return damaged(rng, body) if harms == "body" else body


def random_chunks(rng: Random) -> list[bytes]:
    """Return the chunks of a message, sometimes repeated, left out or of a wrong size."""
    value = rng.randbytes(rng.randint(2, 200))
    count = rng.randint(2, 5)
    contents = random_metadata(rng)
    contents = [one for one in contents if one[0] not in {"num_chunks_from_msg", "uuid"}]
    size = -(-len(value) // count)
    total = len(value) + (rng.random() < 0.05)
    contents += [
        ("uuid", rng.choice([b"p-1", b"p-2"])),
        ("num_chunks_from_msg", count),
        ("total_chunk_msg_size", total),
    ]
    chunks = [
        framed(rng, [*contents, ("chunk_id", number)], value[number * size : (number + 1) * size])
        for number in range(count)
    ]
    if rng.random() < 0.3:
        at = rng.randint(0, count - 1)
        chunks[at:at] = chunks[: rng.randint(0, count)]
    if rng.random() < 0.2:
        del chunks[rng.randint(0, len(chunks) - 1)]
    return chunks


# Encoding


def random_batch(rng: Random) -> pa.RecordBatch:
    """Return rows to write: sliced, with NULLs, sometimes of empty arrays."""
    rows = rng.choice([0, 1, 5, ROWS])
    whole = rows + rng.randint(0, 9)
    most = rng.choice([3, 40, 900])

    def some(make: Any, nulls: float = 0.1) -> list[Any]:
        return [None if rng.random() < nulls else make() for _ in range(whole)]

    def text() -> str:
        return rng.choice(TEXTS)

    def time() -> int:
        return rng.choice([1000, 1_700_000_000_123_456, 2**62]) if rng.random() < 0.999 else rng.choice([0, -5, 999])

    def pairs() -> list[tuple[str, str | None]]:
        return [(f"{n}{text()}", text() if rng.random() < 0.999 else None) for n in range(rng.randint(0, 3))]

    moment = rng.choice([pa.timestamp("us", "UTC"), pa.timestamp("us")])
    key = rng.choice([pa.binary(), pa.string()])
    is_text_value = rng.random() < 0.3
    columns = {
        "key": pa.array(some(text if key == pa.string() else lambda: rng.randbytes(rng.randint(0, 9)), 0.3), key),
        "ordering_key": pa.array(some(lambda: rng.randbytes(rng.randint(0, 3)), 0.5), pa.binary()),
        "event_time": pa.array(some(time, 0.3), moment),
        "deliver_at": pa.array(some(time, 0.95), moment),
        "properties": pa.array(some(pairs, 0.3), pa.map_(pa.string(), pa.string())),
    }
    names = rng.sample(list(columns), rng.randint(0, len(columns)))
    value = some(text if is_text_value else lambda: rng.randbytes(rng.randint(0, most)))
    columns["value"] = pa.array(value, pa.string() if is_text_value else pa.binary())
    names.insert(rng.randint(0, len(names)), "value")
    start = rng.randint(0, whole - rows)
    return pa.record_batch({name: columns[name] for name in names}).slice(start, rows)


def run_encoder(rng: Random, seed: int, loops: str) -> int:
    """Encode rows, read the entries with the oracle, and compare."""
    options: dict[str, Any] = {
        "sequence_id": rng.choice([0, 126, 2**31, 2**62]),
        "max_message_bytes": rng.choice([700, 2000, 1 << 20]),
        "batch_bytes": rng.choice([1, 100, 5000]),
        "batch_rows": rng.choice([1, 3, 1000]),
        "batching": rng.random() < 0.8,
        "batching_by_key": rng.random() < 0.3,
        "chunking": rng.random() < 0.7,
        "compression": rng.choice(oracle.CODECS),
        "schema_version": rng.choice([b"", b"\0\0\0\0\0\0\0\1"]),
        "txn_id": rng.choice([None, (3, 4)]),
    }
    encoder = EntryEncoder(producer_id=1, producer_name="pröd", implementation=loops, **options)
    expected: list[dict[str, Any]] = []
    for _ in range(rng.randint(1, 3)):
        batch = random_batch(rng)
        rows = [written(cells) for cells in rows_of([batch])]
        order = None
        if rng.random() < 0.3 and rows:
            order = array("i", (rng.randrange(len(rows)) for _ in range(rng.randint(0, len(rows)))))
            rows = [rows[row] for row in order]
        case = (seed, loops, options, batch.schema)
        at = 0
        try:
            while at < len(rows):
                at = encoder.append(open_rows(batch, loops), order, at, len(rows), now_ms=5)
        except UnwritableRowError as error:
            encoder.flush(now_ms=5)
            bad = next((row for row, cells in enumerate(rows) if cells["bad"]), len(rows))
            if "larger than" in str(error) or "leave no room" in str(error):
                count = len(entries_of(encoder, options, expected + rows, case))
                cells = rows[count - len(expected)]
                assert not cells["bad"], case
                assert cells["size"] >= options["max_message_bytes"] - 400, case
                return max(1, count)
            assert bad < len(rows), case
            entries_of(encoder, options, expected + rows[:bad], case, ends=True)
            return max(1, len(expected) + bad)
        assert not any(cells["bad"] for cells in rows), case
        expected += rows
    encoder.flush(now_ms=5)
    entries_of(encoder, options, expected, case, ends=True)
    return max(1, len(expected))


def written(cells: dict[str, Any]) -> dict[str, Any]:
    """Return the row that a reader should get, and whether it can be written."""
    pairs = cells.get("properties") or []
    value, key = cells["value"], cells.get("key")
    event, deliver_at = (
        None if cells.get(name) is None else cells[name] // 1000 for name in ("event_time", "deliver_at")
    )
    size = len(value or b"") + len(key or b"") * 2 + sum(len(k) * 4 + len(v or "") * 4 for k, v in pairs)
    return {
        "value": value,
        "key": key,
        "ordering_key": cells.get("ordering_key"),
        "event_time": None if event is None else event * 1000,
        "properties": pairs,
        "deliver_at": deliver_at,
        "bad": (event is not None and event <= 0) or any(item is None for _, item in pairs),
        "size": size,
    }


def entries_of(
    encoder: EntryEncoder, options: dict[str, Any], rows: list[dict[str, Any]], case: Any, *, ends: bool = False
) -> list[dict[str, Any]]:
    """Read the sent entries, compare them with the first rows, and return them."""
    names = ("value", "key", "ordering_key", "event_time", "properties", "sequence_id", "message_id")
    reader = oracle.Reader(dict.fromkeys(names, False), max_message_bytes=1 << 24)
    found: list[dict[str, Any]] = []
    for number, send in enumerate(encoder.take()):
        body = bytes(send.body)
        assert len(body) <= options["max_message_bytes"], case
        entry = oracle.Entry.of(body)
        read = reader.decode((7, number), body)
        said = entry.metadata
        assert (said.producer_name, said.publish_time) == ("pröd".encode(), 5), case
        assert said.sequence_id == send.sequence_id, case
        assert said.schema_version == options["schema_version"], case
        assert (send.txnid_least_bits, send.txnid_most_bits) == (options["txn_id"] or (None, None)), case
        assert send.is_chunk == entry.is_chunk == said.HasField("chunk_id"), case
        if entry.is_batch:
            assert len(read) == send.num_messages == entry.messages <= options["batch_rows"], case
            assert said.sequence_id == read[0]["sequence_id"], case
            assert (send.highest_sequence_id or said.sequence_id) == read[-1]["sequence_id"], case
            assert not said.HasField("deliver_at_time"), case
            keys = [row["key"] if row["ordering_key"] is None else row["ordering_key"] for row in read]
            assert not options["batching_by_key"] or all(key == keys[0] for key in keys), case
            # The key of the first message, for a subscription of type Key_Shared.
            first = read[0]
            key = oracle.unbase64(said.partition_key) if said.partition_key_b64_encoded else said.partition_key
            assert (key if said.HasField("partition_key") else None) == first["key"], case
            assert (said.ordering_key if said.HasField("ordering_key") else None) == first["ordering_key"], case
        for row in read:
            row["deliver_at"] = said.deliver_at_time if said.HasField("deliver_at_time") else None
        found += read
    ids = [row.pop("sequence_id") for row in found]
    assert not ids or ids[0] >= options["sequence_id"], case
    assert all(one < other for one, other in pairwise(ids)), case
    assert options["chunking"] or ids == list(range(options["sequence_id"], options["sequence_id"] + len(ids))), case
    for row in found:
        del row["message_id"]
    wanted = [{name: cells[name] for name in cells if name not in {"bad", "size"}} for cells in rows]
    assert len(found) == len(wanted) if ends else len(found) < len(wanted), (len(found), len(wanted), case)
    compare(found, wanted[: len(found)], [case] * len(found))
    return found


run = seeded(run_decoder, run_encoder)
