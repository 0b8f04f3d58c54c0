"""Options, markers set from fixtures, and the header of all tests."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from importlib.metadata import version
from types import ModuleType
from typing import Protocol, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from brokers.nsq import nsqd_on_path
from brokers.pulsar import VERSION as PULSAR_VERSION

pytest_plugins = [
    "tests.fix_compiled",
    "tests.fix_net",
    "tests.fix_brokers",
    "tests.fix_tubemq",
    "tests.fix_formats",
    "tests.fix_s3",
    "tests.fix_spark",
]

# The time of an example depends on the machine more than on the code: a busy machine must not fail a test.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

BROKER_FIXTURES = {"pulsar", "pulsar_featured", "pulsar_private", "tubemq", "tubemq_secure"}
SPARK_FIXTURES = {"spark", "spark_connect", "spark_connect_url", "spark_cluster"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("spark-mq-source")
    group.addoption(
        "--pulsar-url",
        default=os.environ.get("PULSAR_URL"),
        help="test against this running stock Pulsar (pulsar://host:port) instead of starting one [env PULSAR_URL]",
    )
    group.addoption(
        "--pulsar-admin-url",
        default=os.environ.get("PULSAR_ADMIN_URL", "http://127.0.0.1:8080"),
        help="the admin address that goes with --pulsar-url [env PULSAR_ADMIN_URL]",
    )
    group.addoption(
        "--pulsar-version",
        default=os.environ.get("PULSAR_VERSION", PULSAR_VERSION),
        help="the Pulsar to start for tests (see `make test-versions`) [env PULSAR_VERSION]",
    )
    group.addoption(
        "--require-brokers",
        action="store_true",
        default=os.environ.get("CI") == "true",
        help="a broker that cannot start fails the tests that need it instead of skipping them (default if CI=true)",
    )


class Closable(Protocol):
    """An object that is closed at its end."""

    def close(self) -> None: ...


Opened = TypeVar("Opened", bound=Closable)


@pytest.fixture
def closing(request: pytest.FixtureRequest) -> Callable[[Opened], Opened]:
    """Close objects when the test ends, the last one first; return them."""

    def close_later(opened: Opened) -> Opened:
        request.addfinalizer(opened.close)
        return opened

    return close_later


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], str]:
    """Add a function to a module like a user's; return its name for options."""

    def name_of(function: Callable[..., object]) -> str:
        module = ModuleType("of_mine")
        module.function = function  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        return "of_mine:function"

    return name_of


def implementation() -> str:
    """Return the decoder that the package runs with, or why it is unknown."""
    try:
        import spark_mq_source

        return spark_mq_source.implementation()
    except (ImportError, AttributeError) as error:
        return f"unknown ({error})"


def pytest_report_header(config: pytest.Config) -> list[str]:
    pulsar_version = config.getoption("--pulsar-version")
    broker = config.getoption("--pulsar-url") or f"{pulsar_version}, started when a test needs it"
    nsqd = "nsqd from PATH" if nsqd_on_path() else "nsqd is not on PATH (its tests are skipped)"
    nsq = f"the embedded broker; {nsqd}"
    packages = ", ".join(f"{name} {version(name)}" for name in ("pyspark", "pyarrow", "protobuf"))
    return [f"spark-mq-source: decodes with {implementation()}; {packages}", f"pulsar: {broker}", f"nsq: {nsq}"]


def pytest_sessionstart(session: pytest.Session) -> None:
    """Stop if a C compiler exists and the compiled module is missing: the fallback would test the twins twice."""
    if os.environ.get("SPARK_MQ_SOURCE_IMPL") or implementation() != "python":
        return
    if shutil.which("cc"):
        pytest.exit("the compiled decoder is not in use although there is a C compiler: run `make setup`", returncode=1)
    # The twins are accepted, here and in the processes that tests start.
    os.environ["SPARK_MQ_SOURCE_IMPL"] = "python"
    session.config.addinivalue_line("filterwarnings", "ignore:spark-mq-source runs without its compiled loops")
    # Their examples are not collected: a failed import by pytest leaves a partial module, which counts as compiled.
    sources = str(session.config.rootpath / "src" / "*" / "_*_native.py")
    session.config.option.ignore_glob = [*(session.config.option.ignore_glob or ()), sources]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & BROKER_FIXTURES:
            item.add_marker(pytest.mark.broker)
        if fixtures & SPARK_FIXTURES:
            item.add_marker(pytest.mark.spark)
