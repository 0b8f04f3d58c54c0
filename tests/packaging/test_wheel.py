"""The wheel and the sdist: their files, their metadata, and imports of the installed package."""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.fix_brokers import NsqUnderTest
from tests.packaging.conftest import ROOT, Distributions, Environment

SOURCES = ROOT / "src"
FOR_THE_COMPILER = (".h", ".pxd")
# Half a minute, nearly all of it the build, which the first of these tests waits for; longer on a busy machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1300)]


@pytest.fixture(scope="session")
def wheel_names(distributions: Distributions) -> set[str]:
    with zipfile.ZipFile(distributions.wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="session")
def metadata(distributions: Distributions) -> Message:
    with zipfile.ZipFile(distributions.wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


def sources() -> set[str]:
    suffixes = {".py", ".pyi", ".desc", ".typed", *FOR_THE_COMPILER}
    return {path.relative_to(SOURCES).as_posix() for path in SOURCES.rglob("*") if path.suffix in suffixes}


def test_the_wheel_contains_every_module_and_the_type_marker(wheel_names: set[str]):
    ours = {name for name in wheel_names if ".dist-info/" not in name and not name.endswith(".so")}
    assert "spark_mq_source/py.typed" in ours
    assert ours == {name for name in sources() if not name.endswith(FOR_THE_COMPILER)}


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_wheel_contains_the_compiled_loops(wheel_names: set[str]):
    compiled = {name.split(".")[0] for name in wheel_names if name.endswith(".so")}
    assert compiled == {name.removesuffix(".py") for name in sources() if re.search(r"/_\w+_native\.py", name)}


def test_the_sdist_contains_exactly_the_files_of_a_build(distributions: Distributions):
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames() if "/" in name}
    files = {name for name in names if not name.startswith("src")}
    assert files == {
        "CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "setup.py",
    }  # fmt: skip
    assert {f"src/{name}" for name in sources()} <= names


def test_the_metadata_is_complete(metadata: Message, wheel_names: set[str]):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert metadata["Name"] == "spark-mq-source"
    assert metadata["Version"] == project["version"]
    assert metadata["Summary"] == project["description"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel_names)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    classifiers = metadata.get_all("Classifier") or []
    assert len(classifiers) == len(set(classifiers))
    oldest = int(str(metadata["Requires-Python"]).removeprefix(">=3."))
    assert f"Programming Language :: Python :: 3.{oldest}" in classifiers
    assert f"Programming Language :: Python :: 3.{oldest - 1}" not in classifiers
    assert "Typing :: Typed" in classifiers


def test_extras_and_dependencies_have_the_same_version_ranges(metadata: Message):
    """The codecs are dependencies and extras: two ranges of one package would contradict each other some day."""
    wanted: dict[str, set[str]] = {}
    for text in metadata.get_all("Requires-Dist") or []:
        requirement = Requirement(text)
        wanted.setdefault(requirement.name, set()).add(str(requirement.specifier))
    assert {name: found for name, found in wanted.items() if len(found) != 1} == {}


def test_development_dependencies_are_pinned():
    for lock in (ROOT / "requirements").glob("*.txt"):
        lines = [line.partition(";")[0].strip() for line in lock.read_text().splitlines() if not line.startswith("#")]
        assert lines
        assert [line for line in lines if not re.fullmatch(r"[a-z0-9._-]+==[^ =*]+", line)] == []


# -- installed

IMPORT_ALL = """
import sys

def refuse(event, arguments):
    # Not socket.bind: urllib3 binds ::1 to see whether the machine has IPv6.
    if event in ("socket.connect", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"):
        raise SystemExit(f"importing touched the network: {event} {arguments}")
    if event in ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"):
        raise SystemExit(f"importing started a program: {event} {arguments}")

sys.addaudithook(refuse)
import importlib, pkgutil
import spark_mq_source

names = [module.name for module in pkgutil.walk_packages(spark_mq_source.__path__, "spark_mq_source.")]
for name in [*names, "pyspark_nsq", "pyspark_pulsar_native", "pyspark_tubemq"]:
    importlib.import_module(name)
print(len(names), spark_mq_source.__file__)
"""


def test_importing_uses_no_network_and_starts_no_program(installed: Environment):
    # The first use of `platform.processor` runs `uname -p`; none of our modules calls it.
    count, _, file = installed.run("-c", "import platform; platform.processor()\n" + IMPORT_ALL).strip().partition(" ")
    assert int(count) > 70
    assert Path(file).is_relative_to(installed.folder)


def test_the_console_command_is_installed(installed: Environment):
    command = (installed.folder / "bin" / "spark-mq").read_text()
    assert "spark_mq_source.cli.main import main" in command
    assert "doctor" in installed.run(installed.folder / "bin" / "spark-mq", "--help", COLUMNS="200")


def test_a_wheel_on_the_path_runs_with_the_twins(
    dependencies_only: Environment, distributions: Distributions, nsq: NsqUnderTest
):
    """A zip cannot contain compiled modules that Python can load, so the interpreted twins are used."""
    topic = nsq.topic("spark")
    nsq.publish(topic, *(b"message %d" % number for number in range(100)))
    options = {"nsqlookupdHttpAddresses": nsq.lookupd_address, "topic": topic, "channel": "spark"}
    peek = ["peek", "nsq", *(part for name, value in options.items() for part in ("-o", f"{name}={value}"))]
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(distributions.wheel)!r})\n"
        "import spark_mq_source\n"
        "from spark_mq_source.cli.main import main\n"
        "print(spark_mq_source.implementation(), spark_mq_source.__file__)\n"
        f"sys.argv = ['spark-mq', *{[*peek, '-n', '100', '--json']!r}]\n"
        "main()\n"
    )
    first, *rows = dependencies_only.run("-I", "-c", script).splitlines()
    assert first == f"python {distributions.wheel}/spark_mq_source/__init__.py"
    assert sorted(json.loads(row)["value"] for row in rows) == sorted(f"message {number}" for number in range(100))
