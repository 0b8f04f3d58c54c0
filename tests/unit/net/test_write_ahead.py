"""Damage to the write-ahead log: a task gets its rows or an error, and never other rows."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import DataLossError, MQSourceError
from spark_mq_source.net import write_ahead
from spark_mq_source.net.write_ahead import TaskLog, open_folder, read_plan, write_plan

BATCH = "w/1"
SCHEMA = pa.schema([("value", pa.binary()), ("message_id", pa.string()), ("attempts", pa.int32())])
SLOT_ROWS = (700, 300, 1)
ROUNDS = 200

Log = Callable[[], TaskLog]


def rows(start: int, count: int) -> pa.RecordBatch:
    numbers = range(start, start + count)
    return pa.RecordBatch.from_arrays(
        [
            pa.array([b"value %d" % number for number in numbers], pa.binary()),
            pa.array([f"{number:016x}" for number in numbers], pa.string()),
            pa.array([1] * count, pa.int32()),
        ],
        schema=SCHEMA,
    )


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """Return a log of three slots whose task has ended; each call reads it again, as another attempt does."""
    store = open_folder("nsq", str(tmp_path / "wal"))
    write_plan(store, BATCH, {"duplicates": {}, "recent": {}})
    made = TaskLog(store, BATCH, 0)
    for at, count in enumerate(SLOT_ROWS):
        assert made.append(rows(sum(SLOT_ROWS[:at]), count))
    made.acknowledged([], "")
    made.end()
    return lambda: TaskLog(open_folder("nsq", str(tmp_path / "wal")), BATCH, 0)


def replay(log: TaskLog) -> list[str] | None:
    """Return the ids that an attempt would pass to Spark; None if it would continue to read from the broker."""
    log.catch_up()
    if not log.is_ended:
        return None
    return [
        id_
        for slot in log.slots
        if not slot.is_end
        for batch in log.read(slot)
        for id_ in batch.column("message_id").to_pylist()
    ]


EVERY_ID = [f"{number:016x}" for number in range(sum(SLOT_ROWS))]


def test_a_slot_whose_creation_was_not_confirmed_keeps_its_rows(tmp_path: Path):
    """An answer of an object store is lost, the request is repeated, and finds that the object exists."""
    store = open_folder("nsq", str(tmp_path / "wal"))
    write_plan(store, BATCH, {"duplicates": {}, "recent": {}})
    made, create = TaskLog(store, BATCH, 0), store.create
    store.create = lambda path, data: create(path, data) and not path.endswith("/0")
    assert made.append(rows(0, 3))
    assert [slot.rows for slot in made.slots] == [3]
    assert made.append(rows(3, 2))
    made.end()
    again = TaskLog(open_folder("nsq", str(tmp_path / "wal")), BATCH, 0)
    assert replay(again) == [f"{number:016x}" for number in range(5)]


def test_damage_of_any_kind_is_an_error_or_harmless(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(write_ahead, "_PATIENCE_SECONDS", ())
    assert (replay(log()), log().outcome()) == (EVERY_ID, ([], ""))
    seed = random.randrange(1_000_000)
    print("seed", seed)  # noqa: T201
    rng = random.Random(seed)
    whole, damaged = tmp_path / "whole", tmp_path / "wal"
    shutil.copytree(damaged, whole)
    harmless = 0
    for _ in range(ROUNDS):
        shutil.rmtree(damaged)
        shutil.copytree(whole, damaged)
        file = rng.choice(sorted(path for path in damaged.rglob("*") if path.is_file()))
        data = bytearray(file.read_bytes())
        kind = rng.choice(["flip", "flip", "cut", "empty", "missing", "longer"])
        if kind == "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del data[rng.randrange(len(data)) :]
        elif kind == "empty":
            data.clear()
        elif kind == "longer":
            data += rng.randbytes(rng.randrange(1, 100))
        file.write_bytes(data)
        if kind == "missing":
            file.unlink()
        what = f"{kind} of {file.name}"
        failure, found = "", None
        try:
            read_plan(open_folder("nsq", str(damaged)), BATCH)
            found = replay(log())
            log().outcome()
        except MQSourceError as error:
            failure = str(error)
        if failure:
            assert str(damaged) in failure, what
            assert "\n" not in failure, what
        else:
            assert found == EVERY_ID, what
            harmless += 1
    # Damage without an error is allowed only if other files contain the same data.
    assert harmless < ROUNDS / 4


@pytest.mark.parametrize("name", ["0", "1", "2", "3"])
def test_a_missing_slot_is_an_error(log: Log, tmp_path: Path, name: str):
    """The last slot marks the end of the log: without it an attempt would read more from the broker."""
    (tmp_path / "wal" / BATCH / "0" / name).unlink()
    with pytest.raises(DataLossError, match=f"{tmp_path}/wal/{BATCH}/0/{name} is gone, and with it rows"):
        replay(log())
    shutil.rmtree(tmp_path / "wal" / BATCH / "0")
    with pytest.raises(DataLossError, match=f"{tmp_path}/wal/{BATCH}/0/0 is gone"):
        replay(log())


def test_a_missing_slot_of_an_open_log_is_an_error(tmp_path: Path):
    store = open_folder("nsq", str(tmp_path))
    write_plan(store, BATCH, {})
    made = TaskLog(store, BATCH, 0)
    made.append(rows(0, 5))
    made.acknowledged([], "")
    again = TaskLog(store, BATCH, 0)
    again.catch_up()
    assert again.rows == 5
    (tmp_path / BATCH / "0" / "0").unlink()
    with pytest.raises(DataLossError, match=f"{tmp_path}/{BATCH}/0/0 is gone"):
        TaskLog(store, BATCH, 0).catch_up()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: data[:-100] + bytes([data[-100] ^ 4]) + data[-99:], r"its CRC32C is \w+, and \w+ was written"),
        (lambda data: data[:500], r"it has 500 bytes of \d+"),
    ],
)
def test_the_error_of_damaged_rows_has_their_place_and_a_remedy(
    log: Log, tmp_path: Path, damage: Callable[[bytes], bytes], words: str
):
    file = next((tmp_path / "wal").rglob("*.arrow"))
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(DataLossError, match=f"{file} is damaged: {words}; restore it, or, .*new checkpoint"):
        replay(log())


def test_a_slot_that_is_still_being_written_is_waited_for(log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without hard links, a file is visible before it is complete."""
    file = tmp_path / "wal" / BATCH / "0" / "1"
    whole = file.read_bytes()
    file.write_bytes(whole[:10])
    monkeypatch.setattr(write_ahead.time, "sleep", lambda _: file.write_bytes(whole))
    assert replay(log()) == EVERY_ID


def test_unconfirmed_messages_are_those_of_each_attempt_in_order(tmp_path: Path):
    store = open_folder("nsq", str(tmp_path))
    write_plan(store, BATCH, {"duplicates": {}, "recent": {}})
    attempts = [TaskLog(store, BATCH, 0) for _ in range(3)]
    for number, ids in enumerate((["d", "c"], ["b"], ["a", "e"], ["f"])):
        made = attempts[number % 3]
        made.catch_up()
        assert made.append(pa.record_batch({"message_id": ids}))
    attempts[2].acknowledged(["e"], "ea")
    assert attempts[0].outcome() == ([["d", "c", "f"], ["b"], ["e"]], "ea")


@pytest.mark.parametrize("written", [0, 20])
def test_a_slot_whose_writer_was_killed_can_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int):
    """Without hard links, its writer leaves an incomplete file."""
    monkeypatch.setattr(write_ahead, "_PATIENCE_SECONDS", ())
    store = open_folder("nsq", str(tmp_path))
    write_plan(store, BATCH, {"duplicates": {}, "recent": {}})
    assert TaskLog(store, BATCH, 0).append(rows(0, 2))
    assert TaskLog(store, BATCH, 1).append(rows(0, 1))
    slot = tmp_path / BATCH / "0" / "1"
    slot.write_bytes((tmp_path / BATCH / "1" / "0").read_bytes()[:written])
    again = TaskLog(store, BATCH, 0)
    with pytest.raises(DataLossError, match=f"{slot} is incomplete: .* delete the file"):
        again.catch_up()
    slot.unlink()
    again.catch_up()
    assert again.append(rows(2, 1))
    again.end()
    assert replay(TaskLog(store, BATCH, 0)) == [f"{number:016x}" for number in range(3)]
