"""Stores of files: equivalent URLs, exclusive creation, and messages of errors."""

from __future__ import annotations

import errno
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path, PurePosixPath
from urllib.parse import parse_qs, urlsplit

import pytest

from spark_mq_source.core.errors import MQSourceError, OptionError, StorageError, UnsupportedFeatureError
from spark_mq_source.net import storage
from spark_mq_source.net.storage import LocalStore, Store, open_store
from tests.http_server import Answer, HttpServer

WRITERS = 8
ROUNDS = 40


def without_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", link)


def race(store: Store) -> None:
    """Let many writers create many files: each file has one creator, and that writer's data."""
    with ThreadPoolExecutor(WRITERS) as pool:
        for number in range(ROUNDS):
            path = f"a/{number}"
            made = list(pool.map(lambda writer, path=path: store.create(path, b"%d" % writer), range(WRITERS)))
            assert made.count(True) == 1
            assert store.read(path) == b"%d" % made.index(True)
    assert sorted(store.names("a"), key=int) == [str(number) for number in range(ROUNDS)]


@pytest.mark.parametrize("has_links", [True, False])
def test_exactly_one_of_many_writers_creates_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool):
    if not has_links:
        without_links(monkeypatch)
    race(open_store(str(tmp_path / "wal"), probe=True))


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("/data/wal", "/data/wal/x"),
        ("file:/data/wal", "/data/wal/x"),
        ("file:///data/wal", "/data/wal/x"),
        ("FILE://localhost/data/wal", "/data/wal/x"),
        ("/data/a:b", "/data/a:b/x"),
        # No password: it would be before the first slash.
        ("s3://bucket/a:b/c@d", "s3://bucket/a:b/c@d/x"),
    ],
)
def test_spellings_of_a_path_are_equal(url: str, path: str):
    assert open_store(url).where("x") == path


@pytest.mark.parametrize(
    ("url", "kind", "text"),
    [
        ("wal", OptionError, "wal is not an absolute path: it would be a different folder on each machine"),
        ("file:wal", OptionError, "is not an absolute path"),
        ("file://host/wal", OptionError, "is not an absolute path"),
        ("s3a://KEY:SECRET@bucket/wal", OptionError, "walDir must not contain a password or a query"),
        ("s3a://KEY:SEC/RET@bucket/wal", OptionError, "walDir must not contain a password or a query"),
        (
            "abfss://c@account.dfs.core.windows.net/wal?sig=x",
            OptionError,
            "walDir must not contain a password or a query",
        ),
        ("", OptionError, "is not an absolute path"),
        ("dbfs:/wal", OptionError, "dbfs:/wal is not a path on a machine: give .* /Volumes/... or /dbfs/..."),
        ("hdfs://namenode/wal", UnsupportedFeatureError, "files cannot be created exclusively in hdfs: use a folder"),
        ("nosuch:wal", UnsupportedFeatureError, "files cannot be created exclusively in nosuch"),
    ],
)
def test_an_invalid_store_is_refused_with_a_message(url: str, kind: type[MQSourceError], text: str):
    with pytest.raises(kind, match=f"^nsq: (?=walDir ).*{text}"):
        open_store(url, name="nsq: walDir ")


def test_stores_of_a_process_share_a_client_until_the_environment_changes(monkeypatch: pytest.MonkeyPatch):
    """A new client is expensive: it reads all certificates and fetches credentials."""
    pytest.importorskip("obstore")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    first, second = (storage.ObjectStore("s3://bucket") for _ in range(2))
    assert first._store is second._store
    monkeypatch.setenv("AWS_REGION", "eu-north-1")
    assert storage.ObjectStore("s3://bucket")._store is not first._store


def overwrite(store: LocalStore, path: str, data: bytes) -> bool:
    target = Path(store.where(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return True


def test_a_store_that_overwrites_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(LocalStore, "create", overwrite)
    with pytest.raises(UnsupportedFeatureError, match="cannot create a file exclusively"):
        open_store(str(tmp_path), probe=True)
    assert list(tmp_path.iterdir()) == [], "no file remains"


def test_a_store_that_checks_before_it_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Writers in sequence would not reveal it."""
    barrier = threading.Barrier(storage.PROBE_WRITERS)

    def look_together(store: LocalStore, path: str, data: bytes) -> bool:
        is_there = Path(store.where(path)).exists()
        # All writers look before any writes.
        barrier.wait(60)
        return not is_there and overwrite(store, path, data)

    monkeypatch.setattr(LocalStore, "create", look_together)
    with pytest.raises(UnsupportedFeatureError, match="cannot create a file exclusively"):
        open_store(str(tmp_path), probe=True)


def test_a_folder_under_a_file_cannot_be_written_to(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(
        OptionError, match=f"walDir {tmp_path}/file/wal cannot be written to: {tmp_path}/file/wal/probe"
    ):
        open_store(str(tmp_path / "file" / "wal"), name="walDir ", probe=True)


@pytest.mark.parametrize("has_links", [True, False])
@pytest.mark.parametrize("method", ["write", "create"])
def test_the_error_of_a_full_disk_names_the_file_and_no_file_remains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, has_links: bool
):
    store = open_store(str(tmp_path), name="x ")
    (tmp_path / "a").mkdir()
    if not has_links:
        without_links(monkeypatch)
    with monkeypatch.context() as full:

        def fsync(_: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        full.setattr(os, "fsync", fsync)
        with pytest.raises(
            StorageError, match=f"^x {tmp_path}/a/b cannot be written .No space left on device.; free space"
        ):
            getattr(store, method)("a/b", b"x")
    assert list((tmp_path / "a").iterdir()) == []
    getattr(store, method)("a/b", b"x")
    assert store.read("a/b") == b"x"


def test_new_folders_are_synced_with_their_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    sync = storage._sync_folder

    def note(folder: Path) -> None:
        synced.append(str(folder.relative_to(tmp_path.parent)))
        sync(folder)

    monkeypatch.setattr(storage, "_sync_folder", note)
    open_store(str(tmp_path / "wal")).write("a/b/c", b"x")
    name = tmp_path.name
    assert synced == [name, f"{name}/wal", f"{name}/wal/a", f"{name}/wal/a/b"]


def test_files_that_do_not_exist(tmp_path: Path):
    store = open_store(str(tmp_path))
    assert store.names("a") == []
    assert not store.exists("a")
    store.remove("a")
    with pytest.raises(FileNotFoundError):
        store.read("a")


class AzureAccount(HttpServer):
    """A storage account of Azure, as its Blob API shows it.

    With a hierarchical namespace a blob makes the folders above it. They remain without it, are listed by their names
    only, and cannot be deleted before what is in them ("Delete Blob", error DirectoryIsNotEmpty).

    Attributes:
        files: the blobs.
        folders: the folders.
        forbidden: paths that cannot be deleted.
    """

    def __init__(self, *, is_hierarchical: bool) -> None:
        super().__init__()
        self.files: dict[PurePosixPath, bytes] = {}
        self.folders: set[PurePosixPath] = set()
        self.forbidden: set[PurePosixPath] = set()
        self._is_hierarchical = is_hierarchical

    def answer(self, request: BaseHTTPRequestHandler, said: bytes) -> Answer:
        url = urlsplit(request.path)
        if request.command == "PUT":
            path = PurePosixPath(url.path.removeprefix("/c/"))
            self.files[path] = said
            if self._is_hierarchical:
                self.folders.update(path.parents[:-1])
            return 201, b"", {"ETag": "1"}
        asked = parse_qs(url.query)
        if request.command == "GET":
            return 200, self._listing(PurePosixPath(asked["prefix"][0]), one_level="delimiter" in asked).encode(), {}
        # "Blob Batch": a request for each blob, in parts.
        (path,) = re.findall(rb"DELETE /c/(.*) HTTP/1.1", said)
        status, error = self._delete(PurePosixPath(path.decode()))
        answer = (
            "--part\r\nContent-Type: application/http\r\nContent-ID: 0\r\n\r\n"
            f"HTTP/1.1 {status} {error}\r\nx-ms-error-code: {error}\r\n\r\n\r\n--part--"
        )
        return 202, answer.encode(), {"Content-Type": "multipart/mixed; boundary=part"}

    def _delete(self, path: PurePosixPath) -> tuple[int, str]:
        if path in self.forbidden:
            return 403, "AuthorizationPermissionMismatch"
        if path in self.folders and any(path in one.parents for one in (*self.files, *self.folders)):
            return 409, "DirectoryIsNotEmpty"
        if path not in self.files and path not in self.folders:
            return 404, "BlobNotFound"
        self.files.pop(path, None)
        self.folders.discard(path)
        return 202, "Accepted"

    def _listing(self, folder: PurePosixPath, *, one_level: bool) -> str:
        blobs = "".join(
            f"<Blob><Name>{file}</Name><Properties><Last-Modified>Wed, 25 Nov 2026 00:00:00 GMT</Last-Modified>"
            f"<Content-Length>{len(data)}</Content-Length><Content-Type/><Etag>1</Etag></Properties></Blob>"
            for file, data in self.files.items()
            if folder in (file.parents[:1] if one_level else file.parents)
        )
        if one_level:
            blobs += "".join(
                f"<BlobPrefix><Name>{one}/</Name></BlobPrefix>" for one in self.folders if one.parent == folder
            )
        return f"<EnumerationResults><Blobs>{blobs}</Blobs></EnumerationResults>"


@pytest.mark.parametrize("is_hierarchical", [False, True])
def test_folders_of_azure_are_removed_with_their_files(monkeypatch: pytest.MonkeyPatch, is_hierarchical: bool):
    pytest.importorskip("obstore")
    with AzureAccount(is_hierarchical=is_hierarchical) as account:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", account.origin)
        monkeypatch.setenv("AZURE_ALLOW_HTTP", "true")
        store = open_store("abfss://c@account.dfs.core.windows.net/wal")
        for path in ("1/plan", "1/0/0", "1/0/0.arrow", "1/1/0", "2/plan"):
            store.write(path, b"x")
        if is_hierarchical:
            # An attempt that ended while it removed these left folders only.
            account.folders |= {PurePosixPath("wal/0"), PurePosixPath("wal/0/3")}
        for path in ("0", "1/plan", "1", "none"):
            store.remove(path)
        assert account.files.keys() == {PurePosixPath("wal/2/plan")}
        assert account.folders == ({PurePosixPath("wal"), PurePosixPath("wal/2")} if is_hierarchical else set())

        account.forbidden.add(PurePosixPath("wal/2/plan"))
        for path in ("2/plan", "2"):
            with pytest.raises(StorageError, match=f"^abfss://c@account.dfs.core.windows.net/wal/{path} cannot be rem"):
                store.remove(path)
