"""Class data archives, and starts of programs with and without them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from brokers.class_data import ClassData
from tests.fix_brokers import PulsarUnderTest


def archive(folder: Path) -> ClassData:
    return ClassData(folder / "archives", "program", [folder / "lib"], ["-XX:+UseSerialGC"])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "a.jar").write_bytes(b"a")
    return tmp_path


def test_without_an_archive_a_program_starts_as_usual_or_records(folder: Path) -> None:
    assert archive(folder).options() == []
    assert "-XX:+RecordDynamicDumpInfo" in archive(folder).options(record=True)


def test_a_program_that_has_ended_leaves_no_archive(folder: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    archive(folder).make(ended.pid)
    assert list(folder.glob("archives/*.jsa")) == []
    assert archive(folder).options() == []


def test_an_archive_is_used_only_with_the_same_libraries(folder: Path) -> None:
    archive(folder).file.parent.mkdir()
    archive(folder).file.touch()
    assert f"-XX:SharedArchiveFile={archive(folder).file}" in archive(folder).options(record=True)
    (folder / "lib" / "b.jar").write_bytes(b"b")
    assert archive(folder).options() == []


@pytest.mark.broker
def test_a_broker_starts_from_the_archive_of_the_first_one(pulsar: PulsarUnderTest) -> None:
    broker = pulsar.require_own()
    command, environment = broker.prepare()
    assert command[1] == "standalone"
    (option,) = (word for word in environment["PULSAR_GC"].split() if word.startswith("-XX:SharedArchiveFile="))
    assert Path(option.partition("=")[2]).stat().st_size > 1 << 20
