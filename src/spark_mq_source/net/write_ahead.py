r"""The write-ahead folder, which repeats rows that a broker's queue does not deliver again.

A queue deletes a message once it is acknowledged (NSQ: FIN). So a task first writes received messages to this folder,
and only then acknowledges them. Spark gets its rows only from the folder, in the first run and in each replay. The
column `message_id` (string) of the rows identifies a message that is delivered twice.

::

    walDir/<id of the query>/<number of the batch>/plan              what the batch reads; made by the driver
                                                  /<task>/<n>        slot n: the name of a file, or the end
                                                         /<name>     rows, as an Arrow IPC stream
                                                         /<attempt>.ack  the attempt has acknowledged all but these
                                                  /<task>.end        the log has ended; made before its rows are used

The slots of a task are a log. Each slot is made only once, by one attempt (`Store.create` is exclusive), and the slot
that is the end has no successor. So several attempts of a task, sequential or concurrent, agree on the same rows: an
attempt whose next slot is taken reads that slot and tries the following one. It acknowledges its own messages only once
they are in a slot. While it waits for messages, it checks from time to time whether another attempt has ended the log.

Every file is checked before use. A slot contains the size, CRC32C and number of rows of its file; every other file
begins with the CRC32C of the rest. A missing slot is detected by a file that was made after it: a later slot, the
record of an attempt's acknowledgements, or the mark of the log's end. Errors name the damaged or missing file.

When a batch is no longer needed, its plan is deleted first. An attempt that still runs could make a deleted slot again,
so it checks that the plan exists before it acknowledges messages.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import pyarrow as pa
from crc32c import crc32c

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
        format_name: the format's name, the beginning of errors.
        wal_dir: a path or a URL.
        probe: whether to test that files are created exclusively there; otherwise messages would be lost.

    Raises:
        UnsupportedFeatureError: files are not created exclusively there, or the package for such URLs is missing.
        OptionError: the folder cannot be written to, or is not the same folder on every machine.
    """
    return open_store(wal_dir, name=f"{format_name}: walDir ", probe=probe)


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a task's log.

    Attributes:
        file: the file with the slot's rows; empty at the end of the log.
        rows: the number of these rows; at the end, the number of all rows.
        is_idle: at the end, whether the log ended because the broker had no more messages.
    """

    attempt: str
    file: str = ""
    rows: int = 0
    bytes: int = 0
    crc32c: int = 0
    is_idle: bool = False

    @property
    def is_end(self) -> bool:
        """True if this is the end of the log."""
        return not self.file


class TaskLog:
    """The log of one task of a batch, as one attempt knows it.

    Attributes:
        slots: the slots found or made so far, in order.
        attempt: a unique name of this attempt.
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
        """True if the last known slot is the end of the log."""
        return bool(self.slots) and self.slots[-1].is_end

    @property
    def ended_idle(self) -> bool:
        """True if the log has ended because the broker had no more messages."""
        return self.is_ended and self.slots[-1].is_idle

    @property
    def rows(self) -> int:
        """The number of rows in the known slots."""
        return sum(slot.rows for slot in self.slots if not slot.is_end)

    def catch_up(self) -> None:
        """Read the slots that exist.

        Raises:
            DataLossError: a slot is damaged or was deleted.
            StorageError: the folder cannot be read.
        """
        # Checked before the slots are read, because the mark is made after the last slot.
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
        """Return whether the log has ended.

        Raises:
            DataLossError: see `catch_up`.
            StorageError: the folder cannot be read.
        """
        if not self.is_ended and self._store.exists(self._end):
            self.catch_up()
        return self.is_ended

    def append(self, batch: pa.RecordBatch) -> bool:
        """Write rows, and try to put them into the next slot; return whether they are in the log.

        If not, other attempts have made slots, now in `slots`, which may contain the same messages.

        Raises:
            DataLossError: the batch is no longer needed, or its folder was deleted.
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
        if slot in self.slots:  # made, although the store reported otherwise
            return True
        self._store.remove(f"{self._folder}/{name}")
        return False

    def end(self, *, is_idle: bool = False) -> None:
        """End the log unless another attempt has done so.

        Args:
            is_idle: whether it ends because the broker had no more messages.

        Raises:
            DataLossError: the batch is no longer needed, or its folder was deleted.
            StorageError: the folder is full, or cannot be written to.
        """
        while not self.is_ended:
            end = Slot(self.attempt, rows=self.rows, is_idle=is_idle)
            if self._claim(end):
                self._mark_end(end)
            else:
                self.catch_up()

    def acknowledged(self, refused: Sequence[str], last: str) -> None:
        """Record that all acknowledgements of this attempt are complete.

        Args:
            refused: the ids of messages that were not acknowledged and will be redelivered.
            last: the ids of the messages acknowledged last, concatenated.

        Raises:
            StorageError: the folder is full, or cannot be written to.
        """
        note = {"refused": list(refused), "last": last}
        # Completely or not at all: a partial file would look damaged when the next batch is planned.
        self._store.create(f"{self._folder}/{self.attempt}{_ACKNOWLEDGED}", _document(note))

    def read(self, slot: Slot) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a slot; check all of them before the first.

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

    def outcome(self) -> tuple[list[list[str]], str]:
        """Return the acknowledgements of the log's messages, as recorded by the attempts that are over.

        Returns:
            The ids of messages that may be redelivered because their acknowledgement is not confirmed, in the order of
            the log, for each attempt that has any; and the ids of the messages acknowledged last, concatenated.

        Raises:
            DataLossError: a file of the log is damaged or was deleted.
            StorageError: the folder cannot be read.
        """
        self.catch_up()
        acknowledged = _acknowledged_attempts(self._store.names(self._folder))
        unfinished: dict[str, list[str]] = {slot.attempt: [] for slot in self.slots}
        last = ""
        for slot in self.slots:
            if not slot.is_end and slot.attempt not in acknowledged:
                unfinished[slot.attempt] += self.ids(slot)
        for attempt, ids in unfinished.items():
            if attempt in acknowledged:
                note = _read_document(self._store, f"{self._folder}/{attempt}{_ACKNOWLEDGED}")
                ids.extend(note["refused"])
                last += note["last"]
        return [ids for ids in unfinished.values() if ids], last

    def ids(self, slot: Slot) -> list[str]:
        """Return the ids of the messages in a slot, in order.

        Raises:
            DataLossError: the file is missing or damaged.
            StorageError: the folder cannot be read.
        """
        return [id_ for batch in self.read(slot) for id_ in batch.column("message_id").to_pylist()]

    def _claim(self, slot: Slot) -> bool:
        if not self._store.create(self._path_of_next(), _document(asdict(slot))):
            return False
        if not self._store.exists(self._plan):
            self._store.remove(self._folder)
            raise _lost(self._store, self._plan)
        self.slots.append(slot)
        return True

    def _mark_end(self, slot: Slot) -> None:
        # Nothing remains to do if another attempt has made the mark.
        self._store.create(self._end, _document(asdict(slot)))

    def _has_gap(self) -> bool:
        """Return whether the next slot was deleted: a file exists that was made after it."""
        names = self._store.names(self._folder)
        is_followed = any(name.isdecimal() and int(name) > len(self.slots) for name in names)
        has_acknowledged_others = bool(_acknowledged_attempts(names) - {slot.attempt for slot in self.slots})
        # The slot, and those after it, may have been made since it was looked for.
        return (is_followed or has_acknowledged_others) and not self._store.exists(self._path_of_next())

    def _path_of_next(self) -> str:
        return f"{self._folder}/{len(self.slots)}"


def read_plan(store: Store, folder: str) -> Mapping[str, Any]:
    """Read the plan of a batch.

    Raises:
        DataLossError: the plan is missing or damaged.
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
    """Plan a batch unless it was planned already; return whether this call planned it."""
    return store.create(f"{folder}/{PLAN}", _document(plan))


def remove_batch(store: Store, folder: str) -> None:
    """Remove a batch that is no longer needed, its plan first; see the module's docstring."""
    store.remove(f"{folder}/{PLAN}")
    store.remove(folder)


def _acknowledged_attempts(names: Sequence[str]) -> set[str]:
    """Return the attempts with complete acknowledgements, from the names in a task's folder."""
    return {name.removesuffix(_ACKNOWLEDGED) for name in names if name.endswith(_ACKNOWLEDGED)}


def _document(document: Mapping[str, Any]) -> bytes:
    """Encode a document as a file: the CRC32C of the rest of the line, then JSON."""
    body = json.dumps(document, separators=(",", ":")).encode()
    return b"%08x %b\n" % (crc32c(body), body)


def _read_document(store: Store, path: str) -> dict[str, Any]:
    data = store.read(path)
    for pause in _PATIENCE_SECONDS:
        if data.endswith(b"\n"):
            break
        # Some file systems show a file before it is complete.
        time.sleep(pause)
        data = store.read(path)
    if not data.endswith(b"\n"):
        # Nothing depends on the file yet: its writer acknowledges messages, and tells Spark of a plan, only afterwards.
        raise DataLossError(
            f"{store.where(path)} is incomplete: if its writer was killed, and this storage has no hard links, delete "
            f"the file, which loses no rows; otherwise {_REMEDY}"
        )
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
