"""Ranges of the object store: their planning, their rows, and damaged objects."""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest

from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import StorageError, UnsupportedFeatureError
from spark_mq_source.core.options import READ
from spark_mq_source.net import signed_reads, storage
from spark_mq_source.pulsar.client.admin import Ledger
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.options import PulsarOptions
from spark_mq_source.pulsar.protocol.offloaded import MAX_INDEX_BYTES
from spark_mq_source.pulsar.read import offloaded
from spark_mq_source.pulsar.read.offloaded import read_offloaded, split_by_storage
from spark_mq_source.pulsar.read.reader import PulsarRange
from tests.http_server import Answer, HttpServer
from tests.unit.pulsar.protocol.test_offloaded import objects
from tests.vectors import OFFLOADED_LEDGER

TP = TopicPartition("persistent://public/default/t", -1)
UUID, _, _ID = OFFLOADED_LEDGER.name.rpartition("-ledger-")
RECORDED = Ledger(int(_ID), 50, 2190, UUID)
PAGE = Path(__file__).parents[4] / "docs" / "pulsar" / "history.md"
VALUES = pa.schema([("value", pa.binary())])


def options_of(folder: Path, how: str = "always", **more: str) -> PulsarOptions:
    given = {"serviceurl": "pulsar://x", "topic": "t", "adminurl": "http://x", "offloadstorage": str(folder)}
    return PulsarOptions.from_spark({**given, "readoffloaded": how, **more}, READ)


def range_of(start: tuple[int, ...], end: tuple[int, ...], *ledgers: Ledger) -> PulsarRange:
    return PulsarRange(TP, Position(*start), Position(*end), ledgers=ledgers)


def split(start: tuple[int, ...], end: tuple[int, ...], *ledgers: Ledger, how: str = "auto", size: int = 100) -> Any:
    pieces = split_by_storage(options_of(Path("/none"), how), range_of(start, end), ledgers, size)
    return [(str(p.start), str(p.end), [x.ledger_id for x in p.ledgers]) for p in pieces]


A, B, C, OPEN = Ledger(3, 10, 40, "a"), Ledger(5, 10, 50, "b"), Ledger(6, 10, 60, "c"), Ledger(8, 4, 9)


def test_ledgers_of_the_store_are_joined_to_ranges_and_brokers_read_the_rest() -> None:
    assert split((3, -1), (8, 3), A, B, C, OPEN) == [
        ("3:-1", "5:9", [3, 5]),
        ("5:9", "6:9", [6]),
        ("6:9", "8:3", []),
    ]
    assert split((3, 4), (5, 2, 1), A, B, OPEN) == [("3:4", "5:2:1", [3, 5])]
    assert split((3, 9), (5, 2), A, B) == [("3:9", "5:2", [5])]
    assert split((3, -1), (6, 9), A, Ledger(5, 10, 50), C) == [
        ("3:-1", "3:9", [3]),
        ("3:9", "5:9", []),
        ("5:9", "6:9", [6]),
    ]


def test_brokers_report_entries_deleted_before_a_range_or_missing_at_its_end() -> None:
    assert split((2, 7), (6, 9), A, B, C) == [("2:7", "6:9", [])]
    # Never existed; but one after the last entry of a ledger may be a user's start.
    assert split((3, 500), (5, 9), A, B, C) == [("3:500", "5:9", [])]
    assert split((4, 7), (6, 9), A, B, C) == [("4:7", "6:9", [])]
    assert split((3, 10), (5, 9), A, B, C) == [("3:10", "5:9", [5])]
    assert split((4, -1), (5, 9), A, B, C) == [("4:-1", "5:9", [5])]
    assert split((3, -1), (5, 12), A, B) == [("3:-1", "5:9", [3, 5]), ("5:9", "5:12", [])]


def test_always_names_the_ledger_that_is_not_offloaded() -> None:
    with pytest.raises(UnsupportedFeatureError, match="ledger 8 is not in offloadStorage"):
        split((3, -1), (8, 3), A, OPEN, how="always")
    with pytest.raises(UnsupportedFeatureError, match="the topic has no position 4:7, so only brokers can tell"):
        split((4, 7), (6, 9), A, B, C, how="always")


def test_a_large_ledger_is_split_at_the_beginning_of_blocks(tmp_path: Path) -> None:
    data, index = objects([[b"x" * 40] * 3] * 4, padding=8)
    (tmp_path / "u-ledger-3").write_bytes(data)
    (tmp_path / "u-ledger-3-index").write_bytes(index)
    ledger = Ledger(3, 12, len(data), "u")
    pieces = split_by_storage(options_of(tmp_path), range_of((3, 0), (3, 11)), [ledger], len(data) // 2 + 9)
    assert [(str(p.start), str(p.end)) for p in pieces] == [("3:0", "3:5"), ("3:5", "3:11")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for end in ("", "-index"):
        shutil.copy(OFFLOADED_LEDGER.with_name(OFFLOADED_LEDGER.name + end), tmp_path)
    return tmp_path


@pytest.mark.parametrize(("start", "end"), [((3, -1), (3, 49)), ((3, 6), (3, 7)), ((2, 9), (3, 0))])
def test_a_range_has_the_rows_after_its_start_up_to_its_end(folder: Path, start: Any, end: Any) -> None:
    counters = Counters()
    # The topic may count fewer entries than the object has.
    ledger = replace(RECORDED, entries=end[1] + 1)
    batches = read_offloaded(options_of(folder), range_of(start, end, ledger), VALUES, counters)
    first = start[1] + 1 if start[0] == 3 else 0
    wanted = [b"single %d" % n for n in range(first, end[1] + 1)]
    assert pa.Table.from_batches(batches).column("value").to_pylist() == wanted
    assert counters.entries == len(wanted)


def test_a_range_that_ends_within_a_block_does_not_read_the_rest(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offloaded, "PART_BYTES", 100)
    data = folder / OFFLOADED_LEDGER.name
    data.write_bytes(data.read_bytes()[:1500])
    batches = read_offloaded(options_of(folder), range_of((3, -1), (3, 2), RECORDED), VALUES)
    assert pa.Table.from_batches(batches).num_rows == 3


def test_the_memory_of_parts_is_reused_unless_a_request_may_still_write_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spare: deque[bytearray] = deque([bytearray(3)], maxlen=9)
    monkeypatch.setattr(offloaded, "_SPARE", spare)
    options = options_of(folder, maxbatchrows="1")
    abandoned = read_offloaded(options, range_of((3, -1), (3, 49), RECORDED), VALUES)
    next(abandoned)
    abandoned.close()
    assert len(spare) == 0
    first = None
    for _ in range(2):
        assert len(list(read_offloaded(options, range_of((3, -1), (3, 49), RECORDED), VALUES))) == 50
        (kept,) = spare
        first = first or kept
    assert kept is first
    assert len(kept) == offloaded.PART_BYTES


def damage(data: Path, index: Path, how: str) -> None:
    content = data.read_bytes()
    if how == "gone":
        data.unlink()
    elif how == "cut":
        data.write_bytes(content[:1000])
    elif how == "other version":
        index.write_bytes(b"\x26\xa6\x6d\x32" + index.read_bytes()[4:])
    elif how == "large":
        index.write_bytes(bytes(MAX_INDEX_BYTES + 1))
    elif how == "other ledger":
        other_data, other_index = objects([[b"x"]])
        data.write_bytes(other_data)
        index.write_bytes(other_index)
    else:
        data.write_bytes(content.replace(b"single 7", b"single 8"))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("gone", "does not exist, so ledger 3 was deleted since the query was planned"),
        ("cut", "is shorter than expected: 1918 bytes are missing"),
        ("other version", "is not ledger 3 as Pulsar's offloaders write it: the index begins with 0x26a66d32"),
        ("large", "has 16777217 bytes, and at most 16777216 are expected"),
        ("other ledger", "it has 1 entries instead of 50"),
        ("flipped", "ledger 3 in offloadStorage: message 3:7: the checksum does not match"),
    ],
)
def test_a_damaged_object_is_an_error_or_is_read_from_brokers(
    folder: Path, how: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"| `{words}` |" in PAGE.read_text()
    damage(folder / OFFLOADED_LEDGER.name, folder / f"{OFFLOADED_LEDGER.name}-index", how)
    task = range_of((3, -1), (3, 49), RECORDED)
    with pytest.raises(StorageError, match=words):
        list(read_offloaded(options_of(folder), task, VALUES))

    asked = []
    monkeypatch.setattr(offloaded, "read_range", lambda _, task, *__, **___: asked.append(task) or iter(()))
    rows = [row for batch in read_offloaded(options_of(folder, "auto"), task, VALUES) for row in batch.to_pylist()]
    # Each row once: those before the damage from the store, the others from brokers.
    (rest,) = asked
    assert (rest.end, rest.ledgers) == (task.end, ())
    assert len(rows) == rest.start.entry + 1 == (7 if how == "flipped" else 0)


class FaultyStore(HttpServer):
    """An S3 server of a folder that answers its first requests with these faults, and repeats the last fault.

    Attributes:
        folder: the folder of its objects.
        signed: the number of requests whose URL was signed.
    """

    def __init__(self, folder: Path, faults: list[str]) -> None:
        super().__init__()
        self.folder, self.signed, self._faults = folder, 0, faults

    def answer(self, request: BaseHTTPRequestHandler, _: bytes) -> Answer:
        url = urlsplit(request.path)
        self.signed += "X-Amz-Signature" in url.query
        content = (self.folder / url.path.rpartition("/")[2]).read_bytes()
        _, _, part = request.headers.get("Range", "").partition("=")
        first, _, last = part.partition("-")
        content = content[int(first or 0) : int(last or len(content)) + 1]
        fault = self._faults.pop(0) if len(self._faults) > 1 else self._faults[0]
        if fault == "refused" and url.query:
            return 403, b"", {}
        if fault == "busy":
            return 503, b"", {}
        headers = {
            "Content-Length": str(len(content)), "Content-Range": f"bytes {first}-{last}/{1 << 20}", "ETag": '"x"',
            "Last-Modified": "Wed, 25 Nov 2026 00:00:00 GMT",
        }  # fmt: skip
        # A connection that ends within an answer.
        return 206 if part else 200, content[: len(content) // 2] if fault == "reset" else content, headers


@pytest.mark.parametrize(
    ("faults", "direct"),
    [
        (["busy", "none"], True),
        (["none", "busy", "none"], True),
        (["reset", "none", "reset", "none"], True),
        (["refused"], True),
        (["none", "busy", "none"], False),
    ],
)
def test_a_request_that_fails_is_repeated(
    folder: Path, faults: list[str], direct: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The parts are small, so that a range has many; behind a proxy no part is read with a signed URL.
    monkeypatch.setattr(offloaded, "PART_BYTES", 300)
    monkeypatch.setattr(signed_reads, "getproxies", lambda: {} if direct else {"http": "http://x"})
    store = FaultyStore(folder, faults)
    assert rows_of_store(store, monkeypatch) == [b"single %d" % n for n in range(50)]
    assert bool(store.signed) is direct


@pytest.mark.parametrize("faults", [["none", "busy"], ["none", "reset"]])
def test_a_store_that_keeps_failing_is_an_error_with_the_ledger(
    folder: Path, faults: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(storage.RETRIES, "max_retries", 1)
    with pytest.raises(StorageError, match=rf"offloadStorage s3://bucket/{UUID}-ledger-3 cannot be read"):
        rows_of_store(FaultyStore(folder, faults), monkeypatch)


def rows_of_store(store: FaultyStore, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    pytest.importorskip("obstore")
    given = {"REGION": "x", "ALLOW_HTTP": "true", "ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret"}
    with store:
        for name, value in {**given, "ENDPOINT_URL": store.origin}.items():
            monkeypatch.setenv(f"AWS_{name}", value)
        options = options_of(store.folder, offloadstorage="s3://bucket")
        batches = read_offloaded(options, range_of((3, -1), (3, 49), RECORDED), VALUES)
        return pa.Table.from_batches(batches).column("value").to_pylist()
