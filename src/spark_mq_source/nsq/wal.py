r"""The write-ahead folder: what makes rows of NSQ come again, which the broker itself never sends again.

A message that is finished (FIN) is gone. So a task writes what it has received here first, and finishes it only then;
Spark gets its rows from here and never from the broker, the first time and at each replay alike.

::

    walDir/<id of the query>/<number of the batch>/plan.json         what the batch reads; made by the driver
                                                  /<task>/<n>        slot n: the name of a file, or that it is the end
                                                         /<name>     rows, as an Arrow IPC stream
                                                         /<attempt>.fin  the attempt's FINs are through, but for these

The slots of a task are a log. A slot is made once and never again, whoever tries (`Store.create` is exclusive), and a
task has as many slots as there are up to the one that says END. So several attempts at one task, one after the other or
two at once, agree on the same rows: an attempt that finds its next slot taken reads what is there and tries the one
after it. What it holds itself is finished only when it has a slot.

When a batch is no longer needed its plan is deleted first. An attempt that still runs then could make a slot that was
deleted; before it finishes anything it makes sure that the plan is there, and it is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import pyarrow as pa

from spark_mq_source.core.errors import DataLossError, OptionError, UnsupportedFeatureError

__all__ = [
    "FsspecStore",
    "LocalStore",
    "Slot",
    "Store",
    "TaskLog",
    "is_planned",
    "open_store",
    "read_plan",
    "remove_batch",
    "write_plan",
]

PLAN: Final = "plan.json"
_FIN: Final = ".fin"


class Store(Protocol):
    """A place for files that the driver and every executor reach. Paths are relative, with slashes."""

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Makes a file that nobody else makes, and does not return before it is stored for good."""

    def create(self, path: str, data: bytes) -> bool:
        """Makes a file unless it is there, whole or not at all; whether it did. Of several at once one succeeds."""

    def read(self, path: str) -> bytes:
        """What is in a file.

        Raises:
            FileNotFoundError: there is none.
        """

    def exists(self, path: str) -> bool:
        """Whether there is such a file."""

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder; none where there is no folder."""

    def remove(self, folder: str) -> None:
        """Removes a folder with what is in it, or one file; one that is not there is removed already."""


class LocalStore:
    """Files of this machine, or of one that is mounted everywhere.

    Args:
        root: the folder; made where it is not there.

    Example:
        >>> from tempfile import mkdtemp
        >>> store = LocalStore(mkdtemp())
        >>> store.create("a/b", b"first"), store.create("a/b", b"second"), store.read("a/b")
        (True, False, b'first')
    """

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """See `Store`."""
        target = self._folder_of(path)
        with target.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _sync_folder(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        """See `Store`. A link cannot be made where something is, and shows the file whole."""
        target = self._folder_of(path)
        draft = target.with_name(f".{uuid.uuid4().hex}")
        try:
            with draft.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, target)
        except FileExistsError:
            return False
        finally:
            draft.unlink(missing_ok=True)
        _sync_folder(target.parent)
        return True

    def read(self, path: str) -> bytes:
        """See `Store`."""
        return (self._root / path).read_bytes()

    def exists(self, path: str) -> bool:
        """See `Store`."""
        return (self._root / path).exists()

    def names(self, folder: str) -> list[str]:
        """See `Store`."""
        with contextlib.suppress(FileNotFoundError):
            return [path.name for path in (self._root / folder).iterdir() if not path.name.startswith(".")]
        return []

    def remove(self, folder: str) -> None:
        """See `Store`."""
        target = self._root / folder
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        else:
            target.unlink(missing_ok=True)

    def _folder_of(self, path: str) -> Path:
        target = self._root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def _sync_folder(folder: Path) -> None:
    # A file's name is on disk when its folder is.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FsspecStore:
    """Whatever fsspec reaches and makes files in exclusively: object stores with conditional writes, for one.

    Args:
        url: the folder.

    Raises:
        UnsupportedFeatureError: fsspec, or what it needs for this URL, is not installed.
        OptionError: no file system has such URLs.
    """

    def __init__(self, url: str) -> None:
        try:
            from fsspec.core import url_to_fs  # noqa: PLC0415 - an extra, wanted for URLs only
        except ImportError as error:
            msg = f"nsq: walDir {url} needs fsspec: pip install fsspec, and what it needs for this kind of URL"
            raise UnsupportedFeatureError(msg) from error
        try:
            self._files, self._root = url_to_fs(url)
        except ImportError as error:
            msg = f"nsq: walDir {url}: {error}"
            raise UnsupportedFeatureError(msg) from error
        except ValueError as error:
            msg = f"nsq: walDir {url}: {error}"
            raise OptionError(msg) from error

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """See `Store`."""
        target = self._path(path)
        self._files.makedirs(self._files._parent(target), exist_ok=True)
        with self._files.open(target, "wb") as file:
            file.write(data)

    def create(self, path: str, data: bytes) -> bool:
        """See `Store`."""
        target = self._path(path)
        self._files.makedirs(self._files._parent(target), exist_ok=True)
        try:
            with self._files.open(target, "xb") as file:
                file.write(data)
        except FileExistsError:
            return False
        return True

    def read(self, path: str) -> bytes:
        """See `Store`."""
        found: bytes = self._files.cat_file(self._path(path))
        return found

    def exists(self, path: str) -> bool:
        """See `Store`."""
        self._files.invalidate_cache()
        return bool(self._files.exists(self._path(path)))

    def names(self, folder: str) -> list[str]:
        """See `Store`."""
        self._files.invalidate_cache()
        try:
            found = self._files.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return [str(path).rstrip("/").rpartition("/")[2] for path in found]

    def remove(self, folder: str) -> None:
        """See `Store`."""
        with contextlib.suppress(FileNotFoundError):
            self._files.rm(self._path(folder), recursive=True)

    def _path(self, path: str) -> str:
        return f"{self._root}/{path}"


def open_store(wal_dir: str, *, probe: bool = False) -> Store:
    """The store of the option `walDir`.

    Args:
        wal_dir: a path, or a URL.
        probe: whether to make sure that a file can be made exclusively there: what cannot, loses messages.

    Raises:
        UnsupportedFeatureError: it cannot, or what the URL needs is not installed.
        OptionError: the folder cannot be written to, or no file system has such URLs.
    """
    scheme, found, rest = wal_dir.partition("://")
    store: Store
    if not found:
        store = LocalStore(wal_dir)
    elif scheme in {"file", "local"}:
        store = LocalStore(rest)
    else:
        store = FsspecStore(wal_dir)
    if probe:
        _check_exclusive(store, wal_dir)
    return store


def _check_exclusive(store: Store, wal_dir: str) -> None:
    name = f"probe-{uuid.uuid4().hex}"
    try:
        made = store.create(name, b"1")
        is_exclusive = made and not store.create(name, b"2") and store.read(name) == b"1"
        store.remove(name)
    except (NotImplementedError, ValueError) as error:
        # fsspec's word for a mode that a file system does not know.
        is_exclusive, reason = False, f" ({error})"
    except OSError as error:
        msg = f"nsq: walDir {wal_dir} cannot be written to: {error}; the driver and every executor need it"
        raise OptionError(msg) from error
    else:
        reason = ""
    if not is_exclusive:
        msg = (
            f"nsq: walDir {wal_dir} cannot make a file exclusively{reason}, so that two attempts at one task could "
            f"both finish messages: use a folder that all machines have mounted, or a store with conditional writes"
        )
        raise UnsupportedFeatureError(msg)


@dataclass(frozen=True, slots=True)
class Slot:
    """One entry of a task's log.

    Attributes:
        attempt: who made it.
        file: where its rows are; empty for the end of the log.
        rows: how many; at the end, of all slots.
    """

    attempt: str
    file: str = ""
    rows: int = 0

    @property
    def is_end(self) -> bool:
        """Whether no slot follows."""
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
        self.attempt = uuid.uuid4().hex
        self.slots: list[Slot] = []

    @property
    def is_ended(self) -> bool:
        """Whether the last slot known is the end."""
        return bool(self.slots) and self.slots[-1].is_end

    @property
    def rows(self) -> int:
        """The rows of the slots known."""
        return sum(slot.rows for slot in self.slots if not slot.is_end)

    def catch_up(self) -> None:
        """Reads the slots that are there."""
        while not self.is_ended:
            try:
                document = json.loads(self._store.read(f"{self._folder}/{len(self.slots)}"))
            except FileNotFoundError:
                return
            self.slots.append(Slot(**document))

    def append(self, batch: pa.RecordBatch) -> bool:
        """Writes rows, and tries to put them into the next slot; whether they are in the log now.

        Where not, the slots that others made are known now, and the same can be tried again unless the log has ended.

        Raises:
            DataLossError: the batch is no longer wanted, or its folder was deleted.
        """
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        name = f"{uuid.uuid4().hex}.arrow"
        self._store.write(f"{self._folder}/{name}", sink.getvalue())
        while not self.is_ended:
            if self._claim(Slot(self.attempt, name, batch.num_rows)):
                return True
            self.catch_up()
        self._store.remove(f"{self._folder}/{name}")
        return False

    def end(self) -> None:
        """Ends the log, unless somebody else has.

        Raises:
            DataLossError: the batch is no longer wanted, or its folder was deleted.
        """
        while not self.is_ended:
            self._claim(Slot(self.attempt, rows=self.rows))
            self.catch_up()

    def finished(self, refused: Sequence[str]) -> None:
        """Notes that our FINs are through, but for these, which are delivered again."""
        self._store.write(f"{self._folder}/{self.attempt}{_FIN}", json.dumps(list(refused)).encode())

    def read(self, slot: Slot) -> Iterator[pa.RecordBatch]:
        """The rows of a slot.

        Raises:
            DataLossError: they are not there.
        """
        try:
            data = self._store.read(f"{self._folder}/{slot.file}")
        except FileNotFoundError:
            raise self._lost(slot.file) from None
        with pa.ipc.open_stream(data) as reader:
            yield from reader

    def unfinished(self) -> set[str]:
        """The ids of messages in the log that may be delivered again, of attempts that are over or are taken for it."""
        self.catch_up()
        names = self._store.names(self._folder)
        told = {name.removesuffix(_FIN) for name in names if name.endswith(_FIN)}
        found: set[str] = set()
        for attempt in told:
            found.update(json.loads(self._store.read(f"{self._folder}/{attempt}{_FIN}")))
        for slot in self.slots:
            if not slot.is_end and slot.attempt not in told:
                found |= self.ids(slot)
        return found

    def ids(self, slot: Slot) -> set[str]:
        """The ids of the messages in a slot.

        Raises:
            DataLossError: they are not there.
        """
        return {id_ for batch in self.read(slot) for id_ in batch.column("message_id").to_pylist()}

    def _claim(self, slot: Slot) -> bool:
        document = {"attempt": slot.attempt, "file": slot.file, "rows": slot.rows}
        if not self._store.create(f"{self._folder}/{len(self.slots)}", json.dumps(document).encode()):
            return False
        if not self._store.exists(self._plan):
            self._store.remove(self._folder)
            raise self._lost(PLAN)
        self.slots.append(slot)
        return True

    def _lost(self, what: str) -> DataLossError:
        return DataLossError(
            f"nsq: {what} of the write-ahead log {self._folder} is gone, and with it rows that the broker does not "
            f"have any more: walDir was deleted or moved while it was needed; if the rows can be done without, begin "
            f"with a new checkpoint"
        )


def read_plan(store: Store, folder: str) -> Mapping[str, Any]:
    """What a batch was planned to read.

    Raises:
        DataLossError: there is none.
    """
    try:
        found: Mapping[str, Any] = json.loads(store.read(f"{folder}/{PLAN}"))
    except FileNotFoundError:
        msg = (
            f"nsq: the plan of batch {folder} is not in walDir: it was deleted or moved while it was needed, and with "
            f"it rows that the broker does not have any more; if they can be done without, begin with a new checkpoint"
        )
        raise DataLossError(msg) from None
    return found


def is_planned(store: Store, folder: str) -> bool:
    """Whether a batch was made."""
    return store.exists(f"{folder}/{PLAN}")


def write_plan(store: Store, folder: str, plan: Mapping[str, Any]) -> bool:
    """Makes a batch, unless it was made already; whether it did."""
    return store.create(f"{folder}/{PLAN}", json.dumps(plan).encode())


def remove_batch(store: Store, folder: str) -> None:
    """Removes a batch that is not needed any more, its plan first: see the module's docstring."""
    store.remove(f"{folder}/{PLAN}")
    store.remove(folder)
