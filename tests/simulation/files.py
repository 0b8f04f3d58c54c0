"""Stores in the simulated world: files in memory that outlive processes, and their faults."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa

from spark_mq_source.core.errors import StorageError
from spark_mq_source.net import storage, write_ahead
from tests.simulation import clockwork

SCHEME = "sim://"

_open_folder = write_ahead.open_folder
_open_store = storage.open_store


class Store:
    """A `net.storage.LocalStore`. A process that is killed in the middle of a call may leave a torn file.

    Attributes:
        files: by path.
        is_full: whether writes fail.
        busy_until: the time until which reads are refused.
    """

    def __init__(self, name: str = "walDir ") -> None:
        self.files: dict[str, bytes] = {}
        self.is_full = False
        self.busy_until = 0.0
        self._name = name

    def where(self, path: str) -> str:
        """See `net.storage.LocalStore`."""
        return f"{self._name}{SCHEME}{path}"

    def write(self, path: str, data: bytes | pa.Buffer) -> None:
        """See `net.storage.LocalStore`."""
        whole = bytes(data)
        self._step()
        self._check_room(path)
        assert path not in self.files, f"{path} already exists"
        self.files[path] = whole[: len(whole) // 2]
        self._step()
        self._check_room(path)
        self.files[path] = whole
        self._step()

    def create(self, path: str, data: bytes) -> bool:
        """See `net.storage.LocalStore`."""
        self._step()
        self._check_room(path)
        if path in self.files:
            return False
        self.files[path] = data
        self._step()
        return True

    def read(self, path: str, _: int | None = None) -> bytes:
        """See `net.storage.LocalStore`."""
        self._step()
        world = clockwork.here()
        # Requests are repeated for a minute (`storage.RETRIES`).
        world.sleep(min(max(self.busy_until - world.now, 0.0), 60.0))
        if world.now < self.busy_until:
            raise StorageError(f"{self.where(path)} cannot be read (503 Slow Down)")
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]

    def read_part(self, path: str, offset: int, into: memoryview) -> memoryview:
        """See `net.storage.LocalStore`."""
        part = self.read(path)[offset : offset + len(into)]
        storage._whole(into, len(part), self.where(path))[:] = part
        return into

    def close(self) -> None:
        """See `net.storage.LocalStore`."""

    def exists(self, path: str) -> bool:
        """See `net.storage.LocalStore`."""
        self._step()
        return path in self.files or any(name.startswith(f"{path}/") for name in self.files)

    def names(self, folder: str) -> list[str]:
        """See `net.storage.LocalStore`."""
        self._step()
        return list(
            dict.fromkeys(p[len(folder) + 1 :].partition("/")[0] for p in self.files if p.startswith(f"{folder}/"))
        )

    def remove(self, folder: str) -> None:
        """See `net.storage.LocalStore`."""
        for path in [p for p in self.files if p == folder or p.startswith(f"{folder}/")]:
            self._step()
            self.files.pop(path, None)

    def tear(self, part: float, *, flip: bool) -> str | None:
        """Cut one file or flip a bit in it; return its name, or None if no file has bytes."""
        paths = sorted(path for path, data in self.files.items() if data)
        if not paths:
            return None
        path = paths[int(part * len(paths))]
        data = self.files[path]
        at = int(part * 7919) % len(data)
        self.files[path] = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] if flip else data[:at]
        clockwork.here().note(f"{path} is {'changed' if flip else 'cut'} at {at}")
        return path

    @staticmethod
    def _step() -> None:
        world = clockwork.here()
        world.check_alive()
        # A disk takes time, and other fibers run meanwhile.
        world.sleep(world.dice("disk").choice((0.0, 0.0001, 0.002)))

    def _check_room(self, path: str) -> None:
        if self.is_full:
            raise StorageError(f"{self.where(path)} cannot be written (No space left on simulated device)")


def store() -> Store:
    """Return the folder of the running world."""
    world: Any = clockwork.here()
    found = getattr(world, "wal_store", None)
    if found is None:
        found = world.wal_store = Store()
    return found


def open_folder(format_name: str, wal_dir: str, *, probe: bool = False) -> Any:
    """Replace `write_ahead.open_folder`; accept paths of the simulated world too."""
    if not wal_dir.startswith(SCHEME):
        return _open_folder(format_name, wal_dir, probe=probe)
    return store()


def objects() -> Store:
    """Return the object store of the running world."""
    world: Any = clockwork.here()
    found = getattr(world, "object_store", None)
    if found is None:
        found = world.object_store = Store("offloadStorage ")
    return found


def open_store(url: str, *, name: str = "", probe: bool = False) -> Any:
    """Replace `storage.open_store`; accept URLs of the simulated world too."""
    return objects() if url.startswith(SCHEME) else _open_store(url, name=name, probe=probe)


def install() -> None:
    """Replace `open_folder` and `open_store` in the modules that have imported the real ones."""
    for module in list(sys.modules.values()):
        if getattr(module, "__name__", "").startswith("spark_mq_source."):
            for real, stand_in in ((_open_folder, open_folder), (_open_store, open_store)):
                if vars(module).get(real.__name__) is real:
                    vars(module)[real.__name__] = stand_in
