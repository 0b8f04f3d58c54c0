r"""The write-ahead folder, which repeats rows that a broker's queue does not deliver again.

A message of a queue is gone once it is acknowledged (NSQ: FIN). So a task writes what it has received here first, and
acknowledges it only then; Spark gets its rows from here and never from the broker, the first time and at each replay
alike. Rows have a column `message_id` (string), by which a message that is delivered twice is recognized.

::

    walDir/<id of the query>/<number of the batch>/plan              what the batch reads; made by the driver
                                                  /<task>/<n>        slot n: the name of a file, or that it is the end
                                                         /<name>     rows, as an Arrow IPC stream
                                                         /<attempt>.ack  the attempt has acknowledged, all but these
                                                  /<task>.end        the log has ended; made before its rows are used

The slots of a task are a log. A slot is made once and never again, whoever tries (`Store.create` is exclusive), and a
task has as many slots as there are up to the one that says END. So several attempts at one task, one after the other or
two at once, agree on the same rows: an attempt that finds its next slot taken reads what is there and tries the one
after it. What it holds itself is acknowledged only when it has a slot. While an attempt waits for messages it looks
from time to time whether the log has ended without it.

Every file is checked before it is used. A slot has the size, the CRC32C and the number of rows of its file; every other
file begins with the CRC32C of the rest. A missing slot is found by what was made after it: a later slot, the note of an
attempt's acknowledgements, or the mark that the log has ended. A damaged or missing file is an error that names it.

When a batch is no longer needed its plan is deleted first. An attempt that still runs then could make a slot that was
deleted; before it acknowledges anything it makes sure that the plan is there, and it is not.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa

from spark_mq_source.core.crc import crc32c
from spark_mq_source.core.errors import DataLossError
from spark_mq_source.net.storage import Store, open_store

PLAN: Final = "plan"
_ACKNOWLEDGED: Final = ".ack"
_END: Final = ".end"

_CHECKSUM_BYTES: Final = 9
"""Eight digits and a space."""

_PATIENCE_SECONDS: Final = (0.05, 0.2, 0.5)

_REMEDY: Final = (
    "restore it, or, if you can do without rows that the broker no longer has, start with a new checkpoint (a batch "
    "read: with another runId)"
)


def open_folder(format_name: str, wal_dir: str, *, probe: bool = False) -> Store:
    """Open the folder of the option `walDir`.

    Args:
        format_name: the format's name, with which errors begin.
        wal_dir: a path, or a URL.
        probe: whether to check that a file can be made exclusively there: otherwise messages would be lost.

    Raises:
        UnsupportedFeatureError: files are not made exclusively there, or the package for such URLs is not installed.
        OptionError: the folder cannot be written to, or is not the same for every machine.
    """
    return open_store(wal_dir, name=f"{format_name}: walDir ", probe=probe)


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a task's log.

    Attributes:
        attempt: the attempt that made it.
        file: the file of its rows; empty for the end of the log.
        rows: the number of its rows; at the end, of all slots.
        bytes: the size of the file.
        crc32c: of the file.
    """

    attempt: str
    file: str = ""
    rows: int = 0
    bytes: int = 0
    crc32c: int = 0

    @property
    def is_end(self) -> bool:
        """True if no slot follows."""
        return not self.file


class TaskLog:
    """The log of one task of one batch, as one attempt sees it.

    Args:
        store: where it is.
        folder: of the batch.
        task: its number.

    Attributes:
        slots: those that were found or made so far, in order.
        attempt: a name of our own.
    """

    def __init__(self, store: Store, folder: str, task: int) -> None:
        self._store = store
        self._plan = f"{folder}/{PLAN}"
        self._folder = f"{folder}/{task}"
        self._end = f"{folder}/{task}{_END}"
        self.attempt = uuid.uuid4().hex
        self.slots: list[Slot] = []

    @property
    def is_ended(self) -> bool:
        """True if the last known slot is the end."""
        return bool(self.slots) and self.slots[-1].is_end

    @property
    def rows(self) -> int:
        """The rows of the slots known."""
        return sum(slot.rows for slot in self.slots if not slot.is_end)

    def catch_up(self) -> None:
        """Read the slots that exist.

        Raises:
            DataLossError: a slot is damaged or was deleted.
            StorageError: the folder cannot be read.
        """
        # Asked before the slots are read: the mark is made after the last of them.
        has_ended = not self.is_ended and self._store.exists(self._end)
        while not self.is_ended:
            try:
                slot = Slot(**_read_document(self._store, self._path_of_next()))
            except FileNotFoundError:
                if has_ended or self._has_gap():
                    raise _lost(self._store, self._path_of_next()) from None
                return
            if slot.is_end and slot.rows != self.rows:
                raise _damaged(self._store, self._path_of_next(), f"it ends {slot.rows} rows, not {self.rows}")
            self.slots.append(slot)
            if slot.is_end and not has_ended:
                self._mark_end(slot)

    def look_for_end(self) -> bool:
        """Return whether the log has ended by now.

        Raises:
            DataLossError: see `catch_up`.
            StorageError: the folder cannot be read.
        """
        if not self.is_ended and self._store.exists(self._end):
            self.catch_up()
        return self.is_ended

    def append(self, batch: pa.RecordBatch) -> bool:
        """Write rows, and try to put them into the next slot; return whether they are in the log now.

        If not, other attempts have made slots, which are known now: they may contain the same messages.

        Raises:
            DataLossError: the batch is no longer wanted, or its folder was deleted.
            StorageError: the folder is full, or cannot be written to.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        data = sink.getvalue()
        name = f"{uuid.uuid4().hex}.arrow"
        self._store.write(f"{self._folder}/{name}", data)
        slot = Slot(self.attempt, name, batch.num_rows, data.size, crc32c(memoryview(data)))
        if not self.is_ended and self._claim(slot):
            return True
        self.catch_up()
        if slot in self.slots:  # made after all, though the store did not say so
            return True
        self._store.remove(f"{self._folder}/{name}")
        return False

    def end(self) -> None:
        """End the log, unless another attempt has.

        Raises:
            DataLossError: the batch is no longer wanted, or its folder was deleted.
            StorageError: the folder is full, or cannot be written to.
        """
        while not self.is_ended:
            end = Slot(self.attempt, rows=self.rows)
            if self._claim(end):
                self._mark_end(end)
            else:
                self.catch_up()

    def acknowledged(self, refused: Sequence[str], last: str) -> None:
        """Record that the acknowledgements of this attempt are complete.

        Args:
            refused: the ids of the messages that were not acknowledged, and are delivered again.
            last: the ids of the messages that were acknowledged last, concatenated.

        Raises:
            StorageError: the folder is full, or cannot be written to.
        """
        note = {"refused": list(refused), "last": last}
        # Whole or not at all: half of it would look like damage to whoever plans the next batch.
        self._store.create(f"{self._folder}/{self.attempt}{_ACKNOWLEDGED}", _document(note))

    def read(self, slot: Slot) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slot, all of them checked before the first.

        Raises:
            DataLossError: the file is missing or damaged.
            StorageError: the folder cannot be read.
        """
        path = f"{self._folder}/{slot.file}"
        try:
            data = self._store.read(path)
        except FileNotFoundError:
            raise _lost(self._store, path) from None
        if len(data) != slot.bytes:
            raise _damaged(self._store, path, f"it has {len(data)} bytes of {slot.bytes}")
        if (found := crc32c(data)) != slot.crc32c:
            raise _damaged(self._store, path, f"its CRC32C is {found:08x}, and {slot.crc32c:08x} was written")
        with pa.ipc.open_stream(data) as reader:
            batches = list(reader)
        rows = sum(batch.num_rows for batch in batches)
        if rows != slot.rows:
            raise _damaged(self._store, path, f"it has {rows} rows, and its slot says {slot.rows}")
        yield from batches

    def outcome(self) -> tuple[set[str], str]:
        """Return what became of the messages in the log, as recorded by the attempts that are over.

        Returns:
            The ids of the messages that may be delivered again because their acknowledgement is not confirmed, and the
            ids of those that were acknowledged last, concatenated.

        Raises:
            DataLossError: a file of the log is damaged or was deleted.
            StorageError: the folder cannot be read.
        """
        self.catch_up()
        told = _told(self._store.names(self._folder))
        unfinished: set[str] = set()
        last = ""
        for slot in self.slots:
            if not slot.is_end and slot.attempt not in told:
                unfinished |= self.ids(slot)
        for attempt in dict.fromkeys(slot.attempt for slot in self.slots):
            if attempt in told:
                note = _read_document(self._store, f"{self._folder}/{attempt}{_ACKNOWLEDGED}")
                unfinished.update(note["refused"])
                last += note["last"]
        return unfinished, last

    def ids(self, slot: Slot) -> set[str]:
        """Return the ids of the messages in a slot.

        Raises:
            DataLossError: the file is missing or damaged.
            StorageError: the folder cannot be read.
        """
        return {id_ for batch in self.read(slot) for id_ in batch.column("message_id").to_pylist()}

    def _claim(self, slot: Slot) -> bool:
        if not self._store.create(self._path_of_next(), _document(asdict(slot))):
            return False
        if not self._store.exists(self._plan):
            self._store.remove(self._folder)
            raise _lost(self._store, self._plan)
        self.slots.append(slot)
        return True

    def _mark_end(self, slot: Slot) -> None:
        # Who finds it made already has nothing to add.
        self._store.create(self._end, _document(asdict(slot)))

    def _has_gap(self) -> bool:
        """Return whether the slot after the known ones was deleted: something exists that was made after it."""
        names = self._store.names(self._folder)
        is_followed = any(name.isdecimal() and int(name) > len(self.slots) for name in names)
        has_acknowledged_others = bool(_told(names) - {slot.attempt for slot in self.slots})
        # It may have been made since it was looked for, with those after it.
        return (is_followed or has_acknowledged_others) and not self._store.exists(self._path_of_next())

    def _path_of_next(self) -> str:
        return f"{self._folder}/{len(self.slots)}"


def read_plan(store: Store, folder: str) -> Mapping[str, Any]:
    """Read the plan of a batch.

    Raises:
        DataLossError: it is missing or damaged.
        StorageError: the folder cannot be read.
    """
    path = f"{folder}/{PLAN}"
    try:
        return _read_document(store, path)
    except FileNotFoundError:
        raise _lost(store, path) from None


def is_planned(store: Store, folder: str) -> bool:
    """Return whether a batch was planned."""
    return store.exists(f"{folder}/{PLAN}")


def write_plan(store: Store, folder: str, plan: Mapping[str, Any]) -> bool:
    """Plan a batch, unless it was planned already; return whether this call did it."""
    return store.create(f"{folder}/{PLAN}", _document(plan))


def remove_batch(store: Store, folder: str) -> None:
    """Remove a batch that is no longer needed, its plan first: see the module's docstring."""
    store.remove(f"{folder}/{PLAN}")
    store.remove(folder)


def _told(names: Sequence[str]) -> set[str]:
    """Return the attempts whose acknowledgements are complete, from the names in a task's folder."""
    return {name.removesuffix(_ACKNOWLEDGED) for name in names if name.endswith(_ACKNOWLEDGED)}


def _document(document: Mapping[str, Any]) -> bytes:
    """Encode a document as a file: the CRC32C of the rest of the line, and JSON."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return b"%08x %b\n" % (crc32c(body), body)


def _read_document(store: Store, path: str) -> dict[str, Any]:
    data = store.read(path)
    for pause in _PATIENCE_SECONDS:
        if data.endswith(b"\n"):
            break
        # Some file systems show a file before it is whole.
        time.sleep(pause)
        data = store.read(path)
    body = data[_CHECKSUM_BYTES:-1]
    if data != b"%08x %b\n" % (crc32c(body), body):
        raise _damaged(store, path, "its content is not what was written")
    document: dict[str, Any] = json.loads(body)
    return document


def _lost(store: Store, path: str) -> DataLossError:
    return DataLossError(
        f"{store.where(path)} is gone, and with it rows of the write-ahead log: the folder was deleted, moved or "
        f"emptied while it was needed; {_REMEDY}"
    )


def _damaged(store: Store, path: str, how: str) -> DataLossError:
    return DataLossError(f"{store.where(path)} is damaged: {how}; {_REMEDY}")
