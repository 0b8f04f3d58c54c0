"""Checkpoints that `lag` and `migrate-checkpoint` read, and the conversion of those of pulsar-spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.test_main import rows, spark_mq
from tests.vectors import PULSAR_SPARK_CHECKPOINT

TOPIC = "persistent://public/default/parted"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Return a checkpoint whose last batch, number 3, is committed."""
    return Path(shutil.copytree(PULSAR_SPARK_CHECKPOINT, tmp_path / "old"))


def migrated(old: Path) -> Path:
    new = old.with_name("new")
    answer = spark_mq("migrate-checkpoint", str(old), str(new))
    assert answer.exit_code == 0, answer.stderr
    return new


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def source_lines(checkpoint: Path, batch: int) -> list[str]:
    return (checkpoint / "offsets" / str(batch)).read_text().splitlines()[2:]


def position(ledger: int, entry: int) -> dict[str, int]:
    return {"ledger": ledger, "entry": entry, "batch": -1}


def test_offsets_are_the_entries_read_by_pulsar_spark(old: Path) -> None:
    new = migrated(old)
    ends = [(position(4, 1), position(5, 0)), (position(4, 1), position(5, 3)), (position(4, 7), position(5, 3))]
    for batch, (second, third) in enumerate([*ends, (position(4, 9), position(5, 4))]):
        (line,) = source_lines(new, batch)
        positions = {f"{TOPIC}-partition-{n}": at for n, at in enumerate((position(-1, -1), second, third))}
        assert json.loads(line) == {"version": 1, "positions": positions}


def test_other_files_are_copied_except_those_of_pulsar_spark(old: Path) -> None:
    (old / "commits" / ".3.crc").write_bytes(b"checksum")
    before, after = files(old), files(migrated(old))
    assert before == files(old)
    assert after.keys() == before.keys() - {"sources/0/0", "commits/.3.crc"}
    for name, content in after.items():
        if not name.startswith("offsets/"):
            assert content == before[name], name
        else:
            assert content.splitlines()[:2] == before[name].splitlines()[:2]


def test_the_command_shows_where_the_query_resumes(old: Path) -> None:
    assert rows("migrate-checkpoint", str(old), str(old.with_name("new"))) == [
        {"source": 0, "topic_partition": f"{TOPIC}-partition-{n}", "last_read": at}
        for n, at in enumerate((position(-1, -1), position(4, 9), position(5, 4)))
    ]


def test_an_uncommitted_batch_is_repeated_with_the_same_end(old: Path) -> None:
    (old / "commits" / "3").unlink()
    answer = spark_mq("migrate-checkpoint", str(old), str(old.with_name("new")), "--json")
    assert answer.stderr == "batch 3 was not committed: the query repeats it with the same messages\n"
    assert json.loads(answer.stdout.splitlines()[1])["last_read"] == position(4, 7)
    assert json.loads(source_lines(old.with_name("new"), 3)[0])["positions"][f"{TOPIC}-partition-1"] == position(4, 9)


def test_a_query_without_a_committed_batch_repeats_its_first_one_from_its_start(old: Path) -> None:
    for batch in range(4):
        (old / "commits" / str(batch)).unlink()
        (old / "offsets" / str(batch)).unlink()
    earliest = [8, *[-1] * 9, 1, 16, *[-1] * 9, 1]
    names = [f"{TOPIC}-partition-{n}" for n in range(4)]
    starts = [earliest, [8, 4, 16, 1, 24, 1], [8, 5, 16, 0, 24, 2, 32, 1]]
    ends = [earliest, [8, 4, 16, 1, 24, 1], [8, 5, 16, 3, 24, 2], [8, 6, 16, 0, 24, 3]]
    offsets = json.dumps(dict(zip(names, ends, strict=True)))
    (old / "offsets" / "0").write_text(f'v1\n{{}}\n{{"logOffset":4}}\n{offsets}')
    (old / "sources" / "0").rename(old / "sources" / "1")
    (old / "sources" / "1" / "0").write_text("v1\n" + json.dumps(dict(zip(names[:3], starts, strict=True))))
    answer = spark_mq("migrate-checkpoint", str(old), str(old.with_name("new")), "--json")
    assert answer.stderr == "batch 0 was not committed: the query repeats it with the same messages\n"
    # The second topic-partition has nothing to read, and the fourth did not exist when the query began.
    begins = dict(zip(names, [position(-1, -1), position(4, 1), position(5, -1)], strict=False))
    assert [json.loads(line)["last_read"] for line in answer.stdout.splitlines()] == list(begins.values())
    positions = dict(zip(names, [position(-1, -1), position(4, 1), position(5, 3), position(6, 0)], strict=True))
    other, line = source_lines(old.with_name("new"), 0)
    assert (other, json.loads(line)) == ('{"logOffset":4}', {"version": 1, "positions": positions, "from": begins})


@pytest.mark.parametrize("start", ["{}", '{"t":{"0":4}}', None])
def test_offsets_without_topics_are_converted_only_if_the_source_is_pulsar_sparks(old: Path, start: str | None) -> None:
    for path in (old / "offsets").iterdir():
        path.write_text(path.read_text() + "\n{}")
    if start is not None:
        (old / "sources" / "1").mkdir()
        (old / "sources" / "1" / "0").write_text(f"v1\n{start}")
    expected = '{"version":1,"positions":{}}' if start == "{}" else "{}"
    assert source_lines(migrated(old), 3)[1] == expected


def test_other_sources_of_the_query_are_unchanged(old: Path) -> None:
    for path in (old / "offsets").iterdir():
        path.write_text(path.read_text() + '\n-\n{"logOffset":4}')
    (old / "sources" / "2").mkdir()
    (old / "sources" / "2" / "0").write_text("v1")
    new = migrated(old)
    assert source_lines(new, 3)[1:] == ["-", '{"logOffset":4}']
    assert [path.name for path in (new / "sources").iterdir()] == ["2"]


def _set(path: str, text: str) -> Callable[[Path], None]:
    return lambda old: (old / path).write_text(text) and None


def _line(text: str) -> Callable[[Path], None]:
    return _set("offsets/3", "v1\n{}\n" + text)


def _remove(*names: str) -> Callable[[Path], None]:
    return lambda old: [(old / name).unlink() for name in names] and None


@pytest.mark.parametrize(
    ("change", "source", "reason"),
    [
        (
            _line('-\n{"version":1}'),
            0,
            "offsets/3: source 0 has no offset yet: repeat this after a batch with messages",
        ),
        (_line("{}"), 1, "the query has 1 sources, so source 1 does not exist"),
        (_set("offsets/3", "v2\n{}\n0:{}"), 0, "offsets/3 has the version 'v2', expected v1"),
        (_line("{"), 0, "offsets/3: source 0: not JSON: "),
    ],
)
def test_the_lag_of_a_checkpoint_without_an_offset_is_refused(
    old: Path, change: Callable[[Path], None], source: int, reason: str
):
    change(old)
    answer = spark_mq("lag", "pulsar-native", "-t", "t", "--checkpoint", str(old), "--source", str(source))
    assert answer.exit_code == 2
    assert reason in answer.stderr


def _first(path: str, text: str) -> Callable[[Path], None]:
    def change(old: Path) -> None:
        _remove(*COMMITS, "offsets/1", "offsets/2", "offsets/3")(old)
        (old / path).write_text(text)

    return change


COMMITS = [f"commits/{batch}" for batch in range(4)]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (_remove(*COMMITS), "the last batch in commits is missing, and in offsets 3"),
        (
            _first("sources/0/0", 'v1\n{"t":4}'),
            "sources/0/0 does not contain the start of the query: expected a message",
        ),
        (_first("sources/0/0", "v1\n"), "sources/0/0 does not contain the start of the query: not JSON"),
        (_remove("commits/3", "commits/2"), "the last batch in commits is 1, and in offsets 3"),
        (_remove("offsets/3"), "the last batch in commits is 3, and in offsets 2"),
        (_remove("metadata"), "is not the checkpoint of a streaming query"),
        (_set("offsets/3", "v2\n{}\n{}"), "has the version 'v2', expected v1"),
        (_set("offsets/3", ""), "has the version '', expected v1"),
        (_line('{"version":1,"positions":{}}'), "none of the query's sources is pulsar-spark's"),
        (_line('{"t":[8,12]}'), "source 0: the bytes are not a message id"),
        (_line(json.dumps({"t": [8, *[-1] * 8, 127, 16, *[-1] * 8, 127]})), "a batch ends with the latest message"),
        (_line("{"), "source 0: "),
    ],
)
def test_unresumable_checkpoints_are_refused_without_output(old: Path, change: Callable[[Path], None], reason: str):
    change(old)
    new = old.with_name("new")
    answer = spark_mq("migrate-checkpoint", str(old), str(new))
    assert answer.exit_code == 2
    assert reason in answer.stderr
    assert [path.name for path in old.parent.iterdir()] == ["old"]


def test_refuses_to_write_into_a_folder_with_files(old: Path) -> None:
    answer = spark_mq("migrate-checkpoint", str(old), str(old))
    assert (answer.exit_code, answer.stderr) == (2, f"spark-mq: {old} is not empty: name a new folder\n")


def test_a_folder_that_cannot_be_written_is_an_error_without_a_trace(old: Path) -> None:
    (old.parent / "file").touch()
    answer = spark_mq("migrate-checkpoint", str(old), str(old.parent / "file" / "new"))
    assert answer.exit_code == 1
    assert "cannot be written from" in answer.stderr
