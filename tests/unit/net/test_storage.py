"""Stores of files: equivalent URLs, exclusive creation, and messages of errors."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_mq_source.core.errors import MQSourceError, OptionError, StorageError, UnsupportedFeatureError
from spark_mq_source.net import storage
from spark_mq_source.net.storage import LocalStore, Store, open_store

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
