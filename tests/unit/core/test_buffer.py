from __future__ import annotations

from collections import deque

from spark_mq_source.core.buffer import SPARE_BLOCKS, ReceiveBuffer


def fill(buffer: ReceiveBuffer, data: bytes) -> None:
    buffer.writable(len(data))[: len(data)] = data
    buffer.commit(len(data))


def test_received_bytes_are_taken_in_order() -> None:
    buffer = ReceiveBuffer()
    buffer.append(b"hello ")
    fill(buffer, b"world")
    assert len(buffer) == 11
    assert bytes(buffer.view()) == b"hello world"
    assert bytes(buffer.take(6)) == b"hello "
    world = buffer.take(5)
    assert bytes(world) == b"world"
    assert world.readonly
    assert len(buffer) == 0


def test_free_space_is_never_empty_and_as_large_as_requested() -> None:
    buffer = ReceiveBuffer(16)
    buffer.append(bytes(16))
    assert len(buffer.writable(0)) >= 1
    assert len(buffer.writable(1000)) >= 1000
    assert len(buffer) == 16


def test_blocks_are_reused_once_no_view_of_them_exists() -> None:
    buffer = ReceiveBuffer(64)
    made, held = [buffer._block], deque()
    for _ in range(100):
        # The reader lags by 20 blocks.
        buffer.append(b"x" * 64)
        held.append(buffer.take(64))
        if len(held) > 20:
            held.popleft()
        if not any(block is buffer._block for block in made):
            made.append(buffer._block)
    assert len(made) <= 24


def test_kept_memory_is_bounded_and_can_be_released() -> None:
    buffer = ReceiveBuffer(64)
    held = []
    for _ in range(30):
        buffer.append(b"x" * 64)
        held.append(buffer.take(64))
    held.clear()
    for _ in range(2):
        buffer.append(b"y" * 64)
    assert len(buffer._retired) <= SPARE_BLOCKS + 2
    buffer.trim()
    assert buffer._retired == []
