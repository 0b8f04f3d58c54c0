"""The objects that Pulsar's offloaders make of a ledger, as those of object stores write them (seen on broker 4.0.8).

All numbers are big-endian. The index, `UUID-ledger-ID-index`:

=====  ==========================================
bytes  field
=====  ==========================================
4      magic, 0xDE47DE47
4      size of the index
8      size of the data object
8      size of the header of each block
4      number of blocks
4      size of the ledger's metadata
...    the metadata, BookKeeper's LedgerMetadataFormat (protobuf)
20     for each block: first entry (8), part (4), offset in the data object (8)
=====  ==========================================

The data, `UUID-ledger-ID`, is blocks: a header (magic 0xFBDBABCB, 4; size of the header, 8; size of the block, 8; first
entry, 8; zeros), then entries (size, 4; number, 8; the bytes that brokers send after a MESSAGE's command), and at the
end 0xFEDCDEAD again and again, where the next entry did not fit.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from spark_mq_source.core.errors import CorruptMessageError
from spark_mq_source.core.protobuf_fields import take_fields

OBJECT_DRIVERS: Final = frozenset({"s3", "aws-s3", "google-cloud-storage", "azureblob", "aliyun-oss"})
"""The drivers that write these objects, in small letters."""

INDEX_MAGIC: Final = 0xDE47DE47
BLOCK_MAGIC: Final = 0xFBDBABCB
PADDING: Final = 0xFEDCDEAD
_PADDING_BYTES: Final = PADDING.to_bytes(4, "big") * 3

MAX_INDEX_BYTES: Final = 16 << 20
"""The size of the largest index object accepted: 838,860 blocks, at S3's smallest parts 4 TB of data."""

_INDEX_HEAD: Final = struct.Struct(">IiqqiI")
_INDEX_BLOCK: Final = struct.Struct(">qiq")
_BLOCK_HEAD: Final = struct.Struct(">Iqqq")
_ENTRY_HEAD: Final = struct.Struct(">Iq")
_LAST_ENTRY_TAG: Final = 0x20
_MAX_HEADER_BYTES: Final = 4096


class Block(NamedTuple):
    """A block of a data object: its first entry, and its offset."""

    first_entry: int
    offset: int


@dataclass(frozen=True, slots=True)
class LedgerIndex:
    """The index of an offloaded ledger."""

    entries: int
    data_bytes: int
    header_bytes: int
    blocks: tuple[Block, ...]

    def extent(self, first: int, last: int) -> tuple[Block, int]:
        """Return the block with the entry `first`, and the offset after the block with the entry `last`.

        Example:
            >>> LedgerIndex(30, 900, 128, (Block(0, 0), Block(10, 300), Block(20, 600))).extent(12, 15)
            (Block(first_entry=10, offset=300), 600)
        """
        begin = max(block for block in self.blocks if block.first_entry <= first)
        return begin, next((block.offset for block in self.blocks if block.first_entry > last), self.data_bytes)


def parse_index(data: bytes) -> LedgerIndex:
    """Parse an index object.

    Raises:
        CorruptMessageError: it is not a whole index of this version.
    """
    if len(data) < _INDEX_HEAD.size:
        raise CorruptMessageError(f"the index ends after {len(data)} bytes")
    magic, _, data_bytes, header_bytes, count, metadata_bytes = _INDEX_HEAD.unpack_from(data)
    if magic != INDEX_MAGIC:
        raise CorruptMessageError(
            f"the index begins with {magic:#010x} instead of {INDEX_MAGIC:#010x}: a version that is not supported, or "
            "not an index"
        )
    at = _INDEX_HEAD.size + metadata_bytes
    if count < 1 or at + count * _INDEX_BLOCK.size > len(data):
        raise CorruptMessageError(f"the index ends after {len(data)} bytes, before its {count} blocks")
    last = -1
    for tag, value, _ in take_fields(data, _INDEX_HEAD.size, at):
        if tag == _LAST_ENTRY_TAG:
            last = value
    blocks = tuple(
        Block(first, offset) for first, _, offset in _INDEX_BLOCK.iter_unpack(data[at : at + count * _INDEX_BLOCK.size])
    )
    ends = (*blocks[1:], Block(last + 1, data_bytes))
    ascend = all(a.first_entry < b.first_entry and a.offset < b.offset for a, b in zip(blocks, ends, strict=True))
    if blocks[0] != (0, 0) or not ascend or not _BLOCK_HEAD.size <= header_bytes <= _MAX_HEADER_BYTES:
        raise CorruptMessageError("the blocks of the index do not cover the ledger's entries in order")
    return LedgerIndex(last + 1, data_bytes, header_bytes, blocks)


class EntryParser:
    """Parser of the entries of a data object, which arrives in pieces of any size from the beginning of a block.

    Args:
        block: the block with which the first piece begins.
        max_entry_bytes: the size of the largest entry accepted, which limits the bytes kept between pieces.

    Example:
        >>> head = _BLOCK_HEAD.pack(BLOCK_MAGIC, 28, 50, 0)
        >>> parser = EntryParser(LedgerIndex(1, 50, 28, (Block(0, 0),)), Block(0, 0), max_entry_bytes=100)
        >>> parser.feed(head + _ENTRY_HEAD.pack(5, 0) + b"he"), parser.feed(b"llo" + bytes.fromhex("fedcdeadfe"))
        ([], [(0, <memory at ...>)])
    """

    def __init__(self, index: LedgerIndex, block: Block, *, max_entry_bytes: int) -> None:
        self._header_bytes = index.header_bytes
        self._end = index.data_bytes
        self._next = block.first_entry
        self._offset = block.offset
        """Offset in the object of the first byte of `_rest`."""
        self._block_end = block.offset
        """Offset after the block, which begins a new one."""
        self._rest = b""
        self._wanted = 0
        """The size of what `_rest` is the beginning of, as far as that is known."""
        self._max_entry_bytes = max_entry_bytes

    def feed(self, data: bytes | memoryview) -> list[tuple[int, memoryview]]:
        """Return the entries that are whole with this piece: their numbers and bodies.

        Raises:
            CorruptMessageError: the object is not what the index says.
        """
        view = memoryview(data)
        entries: list[tuple[int, memoryview]] = []
        while self._rest and view:
            # Only the entry that begins in the piece before is copied.
            missing = max(1, self._wanted - len(self._rest))
            joined, view = b"".join((self._rest, view[:missing])), view[missing:]
            self._take(memoryview(joined), entries)
        if view:
            self._take(view, entries)
        return entries

    def _take(self, view: memoryview, entries: list[tuple[int, memoryview]]) -> None:
        size, at, base = len(view), 0, self._offset
        unpack, head, number = _ENTRY_HEAD.unpack_from, _ENTRY_HEAD.size, self._next
        while True:
            block_end = self._block_end - base
            here = min(size, block_end)
            entry_bytes = 0
            while here - at >= head:
                entry_bytes, found = unpack(view, at)
                end = at + head + entry_bytes
                if end > here or found != number:
                    break
                entries.append((number, view[at + head : end]))
                number += 1
                at = end
            wanted = head
            if here < block_end and here - at < head:
                break
            if block_end - at >= head and entry_bytes != PADDING:
                self._check_entry(base + at, entry_bytes, unpack(view, at)[1], number, block_end - at - head)
                wanted = head + entry_bytes
                break
            if here < block_end:
                # Whole words of padding, so that the next piece begins with one.
                at += (here - at) & ~3
                break
            left = block_end - at
            if left < head and view[at:block_end] != _PADDING_BYTES[:left]:
                # The size of an entry is damaged.
                raise CorruptMessageError(f"at byte {base + at} are {left} bytes that are no entry and no padding")
            at, wanted = block_end, self._header_bytes
            if size - at < self._header_bytes or base + at >= self._end:
                break
            self._open_block(view, at, base, number)
            at += self._header_bytes
        self._next, self._offset, self._rest, self._wanted = number, base + at, bytes(view[at:]), wanted

    def _check_entry(self, offset: int, size: int, found: int, wanted: int, room: int) -> None:
        if found != wanted:
            raise CorruptMessageError(f"at byte {offset} is entry {found} instead of {wanted}")
        if size > min(room, self._max_entry_bytes):
            raise CorruptMessageError(
                f"at byte {offset} entry {found} announces {size} bytes, more than its block has left or "
                f"maxMessageBytes={self._max_entry_bytes} allows"
            )

    def _open_block(self, view: memoryview, at: int, base: int, number: int) -> None:
        magic, header_bytes, block_bytes, first = _BLOCK_HEAD.unpack_from(view, at)
        fits = self._header_bytes <= block_bytes <= self._end - base - at
        if magic != BLOCK_MAGIC or header_bytes != self._header_bytes or first != number or not fits:
            raise CorruptMessageError(
                f"at byte {base + at} is no block that begins with entry {number} (magic {magic:#010x}, first entry "
                f"{first}, {block_bytes} bytes)"
            )
        self._block_end = base + at + block_bytes
