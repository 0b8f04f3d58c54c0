"""Checkpoints of streaming queries: the end of the last committed batch, and the conversion of pulsar-spark's.

Spark writes one file per batch into `offsets` before it runs (`OffsetSeqLog`: a line with the version, one with the
batch's metadata, and one per source, which is `-` without an offset) and one into `commits` afterwards (`CommitLog`);
Spark 3.1 to 4.3. A restarted query repeats a batch without a commit, from the end of the batch before up to the end in
its own file.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from spark_mq_source.core.errors import OptionError, StorageError
from spark_mq_source.core.json_text import load_json_object

_VERSION: Final = "v1"
_NO_OFFSET: Final = "-"


def read_offsets(checkpoint: Path, source: int) -> dict[str, object]:
    """Return the end offsets of a query's last committed batch.

    Raises:
        OptionError: the folder is not a query's checkpoint, or it has no committed batch, no such source, or no offset
            of it.
    """
    committed = _batches(checkpoint / "commits")
    if not committed:
        raise OptionError(f"{checkpoint}: no committed batch of a streaming query found")
    path = checkpoint / "offsets" / str(committed[-1])
    _, *lines = _lines(path)
    if source >= len(lines):
        raise OptionError(f"{checkpoint}: the query has {len(lines)} sources, so source {source} does not exist")
    if lines[source] == _NO_OFFSET:
        raise OptionError(
            f"{path}: source {source} has no offset yet: repeat this after a batch with messages of it, or name "
            f"another source by --source"
        )
    try:
        return load_json_object(lines[source])
    except ValueError as error:
        raise OptionError(f"{path}: source {source}: {error}") from error


@dataclass(frozen=True, slots=True)
class Migrated:
    """A converted checkpoint.

    Attributes:
        committed: the last committed batch; -1 if there is none.
        planned: the last planned batch: the same, or the one after it, which the query repeats.
        offsets: the end of the last committed batch, or of batch 0 with its start, by source, in the form of
            `pulsar-native`.
    """

    committed: int
    planned: int
    offsets: Mapping[int, Mapping[str, Any]]

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield the last position that is read of each topic-partition."""
        for source, offsets in self.offsets.items():
            for name, position in offsets.get("from", offsets["positions"]).items():
                yield {"source": source, "topic_partition": name, "last_read": position}


def migrated_checkpoint(old: Path, new: Path) -> Migrated:
    """Write pulsar-spark's checkpoint `old` to `new` in the form of `pulsar-native`.

    Batch numbers, the query's id, commits and state are copied; only the offsets of pulsar-spark's sources change. The
    new folder appears when it is complete, and the old one stays as it is.

    Raises:
        OptionError: the old folder is not such a checkpoint, or it cannot be continued; or the new one is not empty.
        StorageError: a file cannot be read or written.
    """
    if new.exists() and (not new.is_dir() or any(new.iterdir())):
        raise OptionError(f"{new} is not empty: name a new folder")
    committed, planned = _last_batches(old)
    files = {batch: _Offsets.of(old, batch, is_first=committed < 0) for batch in _batches(old / "offsets")}
    last = files[max(committed, 0)]
    sources = last.sources
    if not sources:
        raise OptionError(f"{old}: none of the query's sources is pulsar-spark's: its last batch has {last}")
    draft = new.with_name(f".{new.name}.migrating")
    try:
        _copy(old, draft, leave_out=sources)
        for batch, file in files.items():
            (draft / "offsets" / str(batch)).write_text(str(file), encoding="utf-8")
        draft.replace(new)
    except OSError as error:
        raise StorageError(f"{new} cannot be written from {old}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return Migrated(committed, planned, sources)


def _last_batches(checkpoint: Path) -> tuple[int, int]:
    """Return the last committed batch, or -1, and the last planned one."""
    planned, committed = (_batches(checkpoint / folder) for folder in ("offsets", "commits"))
    if not planned or not (checkpoint / "metadata").exists():
        raise OptionError(f"{checkpoint} is not the checkpoint of a streaming query: it has no metadata or no offsets")
    last = committed[-1] if committed else -1
    if last not in [*planned, -1] or not last <= planned[-1] <= last + 1:
        raise OptionError(
            f"{checkpoint}: the last batch in commits is {last if committed else 'missing'}, and in offsets "
            f"{planned[-1]}: Spark would not continue from this either (asynchronous progress tracking is not "
            "supported)"
        )
    return last, planned[-1]


@dataclass(frozen=True, slots=True)
class _Offsets:
    """The file of one batch: its first two lines, and a line for each source.

    Attributes:
        sources: the converted offsets, by the number of the source.
    """

    head: Sequence[str]
    lines: Sequence[str]
    sources: Mapping[int, Mapping[str, Any]]

    @classmethod
    def of(cls, checkpoint: Path, batch: int, *, is_first: bool) -> _Offsets:
        path = checkpoint / "offsets" / str(batch)
        metadata, *lines = _lines(path)
        sources = {}
        for number, line in enumerate(lines):
            try:
                found = _converted(line, checkpoint / "sources" / str(number) / "0", is_first=is_first)
            except ValueError as error:
                raise OptionError(f"{path}: source {number}: {error}") from error
            if found is not None:
                sources[number] = found
        return cls([_VERSION, metadata], lines, sources)

    def __str__(self) -> str:
        converted = {number: json.dumps(offsets, separators=(",", ":")) for number, offsets in self.sources.items()}
        return "\n".join([*self.head, *(converted.get(number, line) for number, line in enumerate(self.lines))])


def _converted(line: str, start: Path, *, is_first: bool) -> Mapping[str, Any] | None:
    """Return the offsets of pulsar-spark's source in our form; None if the source is another.

    Args:
        line: the end of a batch.
        start: the file in which pulsar-spark keeps the message ids at which the query began.
        is_first: whether the query has not committed a batch, so that the repeated one begins at `start`.
    """
    # It is imported here, because the other commands also use other formats.
    from spark_mq_source.pulsar.format import PulsarFormat  # noqa: PLC0415

    convert = PulsarFormat.from_pulsar_spark
    # `{}` may be of a source of any kind.
    if not line.startswith("{") or (line == "{}" and not start.exists()):
        return None
    offsets = load_json_object(line)
    if convert(offsets) is None or (offsets and not is_first):
        return convert(offsets)
    try:
        begins = load_json_object(_read(start).removeprefix(f"{_VERSION}\n"))
        if not offsets and convert(begins) is None:
            return None
        return convert(offsets, begins if is_first else None)
    except ValueError as error:
        raise ValueError(f"{start} does not contain the start of the query: {error}") from error


def _copy(old: Path, draft: Path, *, leave_out: Iterable[int]) -> None:
    """Copy Spark's files except the offsets, and the `sources` of pulsar-spark, which only that connector reads.

    Hidden files are checksums and drafts of Hadoop; Spark refuses to write a batch again beside its old checksum.
    """
    not_copied = {str(old): {"offsets"}, str(old / "sources"): {str(number) for number in leave_out}}

    def ignored(folder: str, names: Sequence[str]) -> set[str]:
        return {name for name in names if name.startswith(".") or name in not_copied.get(folder, ())}

    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(old, draft, ignore=ignored)
    (draft / "offsets").mkdir()


def _lines(path: Path) -> list[str]:
    """Return the lines of a batch's offsets after the version: the metadata, and the offset of each source."""
    version, *lines = _read(path).splitlines() or [""]
    if version != _VERSION or len(lines) < 2:
        raise OptionError(f"{path} has the version {version!r}, expected {_VERSION}, as Spark writes by default")
    return lines


def _batches(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error
