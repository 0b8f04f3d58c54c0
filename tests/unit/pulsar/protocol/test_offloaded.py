"""The objects of offloaded ledgers: recordings of Pulsar's offloader, and others in pieces of any size."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.pulsar.protocol.metadata import decode_metadata
from spark_mq_source.pulsar.protocol.offloaded import EntryParser, parse_index
from tests.vectors import OFFLOADED_LEDGER

HEADER_BYTES = 128


def objects(blocks: list[list[bytes]], padding: int = 0) -> tuple[bytes, bytes]:
    """Return the data and index objects of a ledger with these entries; each block but the last has this padding."""
    data, places, entry = b"", b"", 0
    for number, entries in enumerate(blocks):
        body = b"".join(struct.pack(">Iq", len(body), entry + n) + body for n, body in enumerate(entries))
        if number < len(blocks) - 1:
            body += (bytes.fromhex("fedcdead") * 10)[:padding]
        places += struct.pack(">qiq", entry, number + 1, len(data))
        head = struct.pack(">Iqqq", 0xFBDBABCB, HEADER_BYTES, HEADER_BYTES + len(body), entry)
        data += head.ljust(HEADER_BYTES, b"\0") + body
        entry += len(entries)
    metadata = bytes([0x08, 1, 0x10, 1, 0x18, 99, 0x20, entry - 1, 0x28, 2])
    size = 32 + len(metadata) + len(places)
    head = struct.pack(">IiqqiI", 0xDE47DE47, size, len(data), HEADER_BYTES, len(blocks), len(metadata))
    return data, head + metadata + places


def entries_of(data: bytes, index: bytes, pieces: int, first: int = 0, max_entry_bytes: int = 100) -> list:
    parsed = parse_index(index)
    block, end = parsed.extent(first, parsed.entries - 1)
    parser = EntryParser(parsed, block, max_entry_bytes=max_entry_bytes)
    parts = (data[at : min(at + pieces, end)] for at in range(block.offset, end, pieces))
    return [(entry, bytes(body)) for part in parts for entry, body in parser.feed(part)]


def test_a_recorded_ledger_has_its_entries_as_brokers_send_them() -> None:
    data, index = (OFFLOADED_LEDGER.with_name(OFFLOADED_LEDGER.name + end).read_bytes() for end in ("", "-index"))
    found = entries_of(data, index, 1000)
    assert [entry for entry, _ in found] == list(range(50))
    for entry, body in found:
        metadata, size = decode_metadata(memoryview(body))
        assert metadata["sequence_id"] == entry
        assert body[6 + 4 + size :] == b"single %d" % entry


@given(
    st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=4), min_size=1, max_size=4),
    st.integers(0, 30),
    st.integers(1, 300),
)
def test_entries_are_the_same_in_any_pieces(blocks: list[list[bytes]], padding: int, pieces: int) -> None:
    data, index = objects(blocks, padding)
    whole = list(enumerate(body for entries in blocks for body in entries))
    assert entries_of(data, index, pieces) == whole
    first = sum(map(len, blocks[:-1]))
    assert entries_of(data, index, pieces, first) == whole[first:]


DATA, INDEX = objects([[b"first", b"second"], [b"third"]], padding=13)


@given(st.integers(0, len(DATA) - 1), st.integers(1, 255), st.integers(1, 300))
@example(at=len(DATA) - len(b"third") - 9, flip=1, pieces=1)  # the last size is one less
def test_a_damaged_object_never_yields_other_entries_silently(at: int, flip: int, pieces: int) -> None:
    whole = entries_of(DATA, INDEX, len(DATA))
    damaged = DATA[:at] + bytes([DATA[at] ^ flip]) + DATA[at + 1 :]
    try:
        found = entries_of(damaged, INDEX, pieces)
    except CorruptMessageError:
        return
    # Bodies have separate checksums.
    assert [entry for entry, _ in found] == list(range(len(found)))
    assert all(len(a[1]) == len(b[1]) for a, b in zip(found, whole, strict=False)) or len(found) < len(whole)


@pytest.mark.parametrize(
    ("index", "words"),
    [
        (b"", "ends after 0 bytes"),
        (INDEX[:40], "before its 2 blocks"),
        (struct.pack(">I", 0x26A66D32) + INDEX[4:], "0x26a66d32 instead of 0xde47de47"),
        (INDEX[:-8] + bytes(8), "do not cover"),
    ],
)
def test_an_incomplete_index_is_refused(index: bytes, words: str) -> None:
    with pytest.raises(CorruptMessageError, match=words):
        parse_index(index)


def test_an_entry_beyond_the_limit_is_refused_before_it_is_stored() -> None:
    with pytest.raises(CorruptMessageError, match=r"entry 0 announces 5 bytes.* maxMessageBytes=4"):
        entries_of(DATA, INDEX, 141, max_entry_bytes=4)
