"""Folders on disks or object stores that the driver and all executors can access, with exclusive creation of files.

Files must outlive the machine that writes them, and only one of two attempts at the same work may create a file. So a
folder is used only if `create` is exclusive there; `open_store` tests this.

=========================================================  =========================================================
an absolute path, ``file:/path``                           `LocalStore`: a disk, or a folder mounted on all machines
``s3://``, ``s3a://``, ``gs://``, ``az://``, ``abfss://``  `ObjectStore`: conditional writes, by obstore
=========================================================  =========================================================

obstore supports conditional writes for the stores of Amazon, Google and Microsoft and for compatible ones, needs no
event loop, and is one wheel without dependencies. s3fs before 2025.6 overwrote small files despite exclusive creation
(fsspec/s3fs, issue 973), and pyarrow's S3FileSystem has no exclusive creation.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import functools
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from spark_mq_source.core.buffer import fill
from spark_mq_source.core.errors import OptionError, StorageError, UnsupportedFeatureError

if TYPE_CHECKING:
    import pyarrow as pa


OBJECT_STORES: Final = ("s3", "s3a", "gs", "az", "azure", "abfs", "abfss")
"""The schemes of URLs for which obstore can create files exclusively."""

PROBE_WRITERS: Final = 4
PROBE_ROUNDS: Final = 5
"""The numbers of writers and of files in the race that a folder must pass."""

SIGNED_FOR: Final = datetime.timedelta(hours=12)
"""The time for which a URL of an object is signed."""

RETRIES: Final[Any] = {"max_retries": 5, "retry_timeout": datetime.timedelta(seconds=60)}
"""The limits of retries for requests to an object store that does not answer or is busy."""

_NO_LINKS: Final = frozenset({errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL})
"""Errors of file systems without hard links: FAT, SMB, cloud volumes."""

_NO_FOLDER_SYNC: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF})
_CONFLICTS: Final = 5


class LocalStore:
    """Files of this machine, or of a file system that is mounted on all machines. Paths are relative, with slashes.

    If the storage itself fails (full, read-only, unreachable), every method raises StorageError with the file's path.

    Args:
        root: the folder; created if it does not exist.

    Example:
        >>> from tempfile import mkdtemp
        >>> store = LocalStore(mkdtemp())
        >>> store.create("a/b", b"first"), store.create("a/b", b"second"), store.read("a/b")
        (True, False, b'first')
    """

    def __init__(self, root: str, name: str = "") -> None:
        self._root = Path(root)
        self._name = name

    def where(self, path: str) -> str:
        """Return the folder's name and the whole path or URL of a file, for errors."""
        return f"{self._name}{self._root / path}"

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """Write a file with a unique name; return once it is stored durably."""
        with _failing(self.where(path), "written"):
            target = self._folder_of(path)
            _write_new(target, data)
            _sync_folder(target.parent)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless it exists; return whether it was written. Of several concurrent calls one succeeds.

        A hard link replaces no file, and shows only complete files. In a file system without links the file is written
        in place, so a reader may see an incomplete file.
        """
        with _failing(self.where(path), "written"):
            target = self._folder_of(path)
            draft = target.with_name(f".{uuid.uuid4().hex}")
            try:
                _write_new(draft, data)
                try:
                    os.link(draft, target)
                except OSError as error:
                    if error.errno not in _NO_LINKS:
                        raise
                    _write_new(target, data)
            except FileExistsError:
                return False
            finally:
                draft.unlink(missing_ok=True)
            _sync_folder(target.parent)
        return True

    def read(self, path: str, limit: int | None = None) -> bytes:
        """Return the bytes of a file.

        Args:
            path: the file.
            limit: the size of the largest file accepted, in bytes.

        Raises:
            FileNotFoundError: the file does not exist.
            StorageError: it is larger.
        """
        with _failing(self.where(path), "read"), (self._root / path).open("rb") as file:
            _check_size(os.fstat(file.fileno()).st_size, limit, self.where(path))
            return file.read()

    def read_part(self, path: str, offset: int, into: memoryview) -> memoryview:
        """Fill this memory with a part of a file; return it. Safe to call from several threads.

        Raises:
            FileNotFoundError: the file does not exist.
            StorageError: the file is shorter.
        """
        with _failing(self.where(path), "read"), (self._root / path).open("rb", buffering=0) as file:
            file.seek(offset)
            filled = fill(into, file.readinto)
        return _whole(into, filled, self.where(path))

    def exists(self, path: str) -> bool:
        """Return whether a file exists."""
        with _failing(self.where(path), "read"):
            return (self._root / path).exists()

    def names(self, folder: str) -> list[str]:
        """Return the names of the files and folders in a folder; an empty list if the folder does not exist."""
        try:
            with _failing(self.where(folder), "read"):
                return [path.name for path in (self._root / folder).iterdir() if not path.name.startswith(".")]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all its files; do nothing if it does not exist."""
        target = self._root / path
        with _failing(self.where(path), "removed"), contextlib.suppress(FileNotFoundError):
            if target.is_dir():
                shutil.rmtree(target)
            else:
                target.unlink()

    def close(self) -> None:
        """Close the connections that `read_part` keeps; here, none."""

    def _folder_of(self, path: str) -> Path:
        target = self._root / path
        missing = [folder for folder in target.parents if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            _sync_folder(folder.parent)
        return target


def _write_new(target: Path, data: bytes | pa.Buffer) -> None:
    with target.open("xb") as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            # An incomplete file would be taken for the whole file.
            target.unlink(missing_ok=True)
            raise


def _sync_folder(folder: Path) -> None:
    # A new file's name is durable only once its folder is synced.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


class ObjectStore:
    """Objects under a prefix of a bucket, accessed with credentials from the environment (``AWS_...`` and so on).

    The interface is that of `LocalStore`.

    Args:
        url: the URL of the prefix.

    Raises:
        UnsupportedFeatureError: obstore is not installed.
        OptionError: the URL, or a setting in the environment, cannot be used.
    """

    def __init__(self, url: str, name: str = "") -> None:
        try:
            import obstore  # noqa: PLC0415 - an extra, wanted for URLs only
            from obstore.exceptions import AlreadyExistsError, BaseError  # noqa: PLC0415

            from spark_mq_source.net.signed_reads import SignedReads  # noqa: PLC0415 - HTTP, for URLs only
        except ImportError as error:
            raise UnsupportedFeatureError(
                f"{name}{url} needs obstore: pip install 'spark-mq-source[s3]' on the driver and every executor"
            ) from error
        self._url = url.rstrip("/")
        self._name = name
        self._obstore: Any = obstore
        self._exists_error: type[Exception] = AlreadyExistsError
        self._errors: tuple[type[Exception], ...] = (OSError, BaseError)
        try:
            self._store = _client_of(url, frozenset(os.environ.items()))
        except (ValueError, BaseError) as error:
            raise OptionError(f"{name}{url} cannot be used: {_first_line(error)}") from error
        self._direct = SignedReads(self._sign)

    def where(self, path: str) -> str:
        """See `LocalStore`."""
        return f"{self._name}{self._url}/{path}"

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """See `LocalStore`."""
        with _failing(self.where(path), "written", self._errors):
            self._obstore.put(self._store, path, memoryview(data).cast("B"))

    def create(self, path: str, data: bytes) -> bool:
        """See `LocalStore`. A request is repeated if its answer is lost: an existing object with `data` is this one."""
        with _failing(self.where(path), "written", self._errors):
            for conflict in range(_CONFLICTS):
                try:
                    self._obstore.put(self._store, path, data, mode="create")
                except self._exists_error:
                    with contextlib.suppress(FileNotFoundError):
                        return self.read(path) == data
                else:
                    return True
                # S3 answers 409 during a concurrent write or deletion; afterwards the object may not exist.
                time.sleep(0.1 * 2**conflict)
        raise StorageError(f"{self.where(path)} cannot be written: the store reports a conflict again and again")

    def read(self, path: str, limit: int | None = None) -> bytes:
        """See `LocalStore`."""
        with _failing(self.where(path), "read", self._errors):
            found = self._obstore.get(self._store, path)
            _check_size(found.meta["size"], limit, self.where(path))
            return bytes(found.bytes())

    def read_part(self, path: str, offset: int, into: memoryview) -> memoryview:
        """See `LocalStore`. What cannot be read directly is read by obstore, which repeats requests."""
        if not self._direct.read_part(path, offset, into):
            with _failing(self.where(path), "read", self._errors):
                part = memoryview(self._obstore.get_range(self._store, path, start=offset, length=len(into)))
            _whole(into, len(part), self.where(path))[:] = part
        return into

    def exists(self, path: str) -> bool:
        """See `LocalStore`."""
        try:
            with _failing(self.where(path), "read", self._errors):
                self._obstore.head(self._store, path)
        except FileNotFoundError:
            return False
        return True

    def names(self, folder: str) -> list[str]:
        """See `LocalStore`."""
        with _failing(self.where(folder), "read", self._errors):
            found = self._obstore.list_with_delimiter(self._store, folder)
        paths = [*found["common_prefixes"], *(one["path"] for one in found["objects"])]
        return [path.rstrip("/").rpartition("/")[2] for path in paths]

    def remove(self, path: str) -> None:
        """See `LocalStore`."""
        with _failing(self.where(path), "removed", self._errors):
            inside = [one["path"] for some in self._obstore.list(self._store, path) for one in some]
            for one in inside:
                self._delete(one)
            try:
                self._delete(path)
            except self._errors:
                # A storage account with a hierarchical namespace has real folders, and deletes only empty ones.
                folders = self._obstore.list_with_delimiter(self._store, path)["common_prefixes"]
                if not folders and not inside:
                    raise
                for folder in folders:
                    self.remove(folder)
                # Another attempt may have written to it since; an empty folder that remains does no harm.
                with contextlib.suppress(*self._errors):
                    self._delete(path)

    def _delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._obstore.delete(self._store, path)

    def close(self) -> None:
        """See `LocalStore`."""
        self._direct.close()

    def _sign(self, path: str) -> str:
        try:
            return str(self._obstore.sign(self._store, "GET", path, SIGNED_FOR))
        except self._errors as error:
            raise OSError(str(error)) from error


Store: TypeAlias = LocalStore | ObjectStore
"""A folder that the driver and all executors can access."""


@functools.lru_cache(maxsize=4)
def _client_of(url: str, environment: frozenset[tuple[str, str]]) -> Any:  # noqa: ANN401 - obstore has no common class
    """Return a client of obstore, which the tasks of this process share, with its connections and credentials.

    A new client reads all certificates of the machine: 5 ms of processor time, as much as 5,000 rows of 1 KiB.

    Args:
        url: the URL of the prefix.
        environment: the environment, from which obstore takes its settings.
    """
    from obstore.store import from_url  # noqa: PLC0415 - an extra, wanted for URLs only

    return from_url(url, retry_config=RETRIES)


@contextlib.contextmanager
def _failing(where: str, what: str, errors: tuple[type[Exception], ...] = (OSError,)) -> Iterator[None]:
    """Raise StorageError with the path for a store's own error; pass on FileNotFoundError except while writing."""
    try:
        yield
    except errors as error:
        if isinstance(error, FileNotFoundError) and what != "written":
            raise
        reason = getattr(error, "strerror", None) or _first_line(error)
        raise StorageError(
            f"{where} cannot be {what} ({reason}); free space, or restore access to it on the driver and every executor"
        ) from error


def _check_size(size: int, limit: int | None, where: str) -> None:
    if limit is not None and size > limit:
        raise StorageError(f"{where} has {size} bytes, and at most {limit} are expected; restore the file")


def _whole(part: memoryview, size: int, where: str) -> memoryview:
    if size < len(part):
        raise StorageError(f"{where} is shorter than expected: {len(part) - size} bytes are missing; restore the file")
    return part


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0].strip()[:500]


def open_store(url: str, *, name: str = "", probe: bool = False) -> Store:
    """Open the folder at an absolute path or URL.

    Args:
        url: see the table above.
        name: the name of the folder, the beginning of errors.
        probe: whether to test that files are created exclusively there.

    Raises:
        UnsupportedFeatureError: files are not created exclusively there, the scheme is not supported, or obstore is
            not installed.
        OptionError: the folder cannot be written to, or is not the same folder on every machine.

    Example:
        >>> open_store("file:///data/wal").where("x")
        '/data/wal/x'
    """
    store = _store_of(url, name)
    if probe:
        try:
            is_exclusive = _is_exclusive(store)
        except (StorageError, FileNotFoundError) as error:
            raise OptionError(f"{name}{url} cannot be written to: {str(error).removeprefix(name)}") from error
        if not is_exclusive:
            raise UnsupportedFeatureError(
                f"{name}{url} cannot create a file exclusively, so two attempts at one task could conflict: use a "
                f"folder that all machines have mounted, or an object store with conditional writes"
            )
    return store


def _store_of(url: str, name: str) -> Store:
    found = re.match(r"([A-Za-z][A-Za-z0-9+.-]*):", url)
    scheme = found[1].lower() if found else ""
    if scheme in OBJECT_STORES:
        if re.search(r"//[^/@]*:[^@]*@|\?", url):
            # The URL is in errors and logs.
            raise OptionError(
                f"{name}must not contain a password or a query: give credentials in the environment of the driver and "
                f"the executors, as for the store's own tools"
            )
        return ObjectStore(url, name)
    if scheme == "dbfs":
        raise OptionError(
            f"{name}{url} is not a path on a machine: give the one that all machines share, /Volumes/... or /dbfs/..."
        )
    if scheme not in ("", "file"):
        raise UnsupportedFeatureError(
            f"{name}{url}: files cannot be created exclusively in {scheme}: use a folder that all machines have "
            f"mounted, or one of {', '.join(f'{one}://' for one in OBJECT_STORES)}"
        )
    path = re.sub(r"^file:(//(localhost)?(?=/))?", "", url, flags=re.IGNORECASE)
    if not path.startswith("/") or path.startswith("//"):
        raise OptionError(f"{name}{url} is not an absolute path: it would be a different folder on each machine")
    return LocalStore(path, name)


def _is_exclusive(store: Store) -> bool:
    """Return whether exactly one of several concurrent writers creates a file, with the data of that writer."""
    folder = f"probe-{uuid.uuid4().hex}"
    writers = range(PROBE_WRITERS)
    try:
        with ThreadPoolExecutor(PROBE_WRITERS, thread_name_prefix="storage probe") as pool:
            for number in range(PROBE_ROUNDS):
                path = f"{folder}/{number}"
                made = list(pool.map(lambda writer, path=path: store.create(path, b"%d" % writer), writers))
                if made.count(True) != 1 or store.read(path) != b"%d" % made.index(True):
                    return False
    finally:
        store.remove(folder)
    return True
