"""The notebooks run as they are, with the brokers of the tests, and what they keep is what they show."""

from __future__ import annotations

import getpass
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.fix_brokers import PulsarUnderTest, start_nsq
from tests.fix_spark import spark_environment
from tests.fix_tubemq import TubeUnderTest
from tools.notebooks import NOTEBOOKS

TIMEOUT_S = 280
MOST_BYTES = 150_000
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
ROOT = NOTEBOOKS.parent


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def shown(cell: Any) -> list[object]:
    """What a cell shows, but for how pictures look; of one that is tagged `varies`, only of what kind it is."""
    found: list[object] = []
    for output in cell.outputs:
        texts = output.get("data", {"text/plain": output.get("text")})
        if "varies" in cell.metadata.get("tags", ()) or "image/png" in texts:
            found.append((output.output_type, *sorted(texts)))
        else:
            found.append((output.output_type, texts["text/plain"]))
    return found


def run(path: Path, folder: Path, **addresses: str) -> None:
    """Runs a notebook in a process of its own, and compares what it shows with what is kept."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.notebooks", "--into", str(folder), str(path)],
        env=os.environ | spark_environment() | addresses,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    kept, fresh = cells(path), cells(folder / path.name)
    assert any("image/png" in output.get("data", {}) for cell in fresh for output in cell.outputs)
    assert [shown(cell) for cell in fresh] == [shown(cell) for cell in kept]


def addresses_of(pulsar: PulsarUnderTest) -> dict[str, str]:
    return {"PULSAR_SERVICE_URL": pulsar.service_url, "PULSAR_NAMESPACE": pulsar.namespace}


@pytest.mark.slow
def test_a_topic_is_explored(pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    run(PATHS[0], tmp_path, **addresses_of(pulsar))


@pytest.mark.slow
def test_a_dashboard_shows_a_stream_that_catches_up(pulsar: PulsarUnderTest, tmp_path: Path) -> None:
    run(PATHS[1], tmp_path, **addresses_of(pulsar))


@pytest.mark.slow
def test_flights_go_from_pulsar_by_way_of_tubemq_to_nsq(
    pulsar: PulsarUnderTest, tubemq: TubeUnderTest, tmp_path: Path
) -> None:
    with start_nsq("embedded", tmp_path / "nsq") as nsq:
        run(
            PATHS[2],
            tmp_path,
            **addresses_of(pulsar),
            TUBEMQ_MASTERS=tubemq.masters,
            TUBEMQ_TOPIC=tubemq.topic(3),
            NSQD_TCP_ADDRESSES=nsq.tcp_address,
            NSQLOOKUPD_HTTP_ADDRESSES=nsq.lookupd_address,
        )


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_a_notebook_keeps_is_small_and_tells_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text()
    assert len(text) < MOST_BYTES
    found = cells(path)
    assert not [output for cell in found for output in cell.outputs if output.output_type == "error"]
    kept = " ".join(
        str(output) for cell in found for output in cell.outputs if "image/png" not in output.get("data", {})
    )
    names = {socket.gethostname(), getpass.getuser(), str(Path.home()), str(ROOT)} - {"root"}
    assert not [name for name in names if re.search(rf"\b{re.escape(name)}\b", kept)]
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", kept)
