"""Snippets of README.md and of the site: they run in the order of the page and print its outputs."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pulsar
import pytest

from brokers import background
from brokers.credentials import BASIC_PASSWORD, BASIC_USER
from brokers.pulsar import PulsarStandalone
from brokers.pulsar_admin import PulsarAdmin
from brokers.tubemq import AUTH_PASSWORD, AUTH_USER
from spark_mq_source.testing import Authorization, AuthorizedClient, AuthRequest, NsqBroker
from tests.docs.snippets import run, snippets
from tests.fix_brokers import PulsarUnderTest
from tests.fix_net import TlsMaterial
from tests.fix_spark import run_script, spark_environment
from tests.fix_tubemq import TubeUnderTest
from tests.issuer import CLIENT_ID, CLIENT_SECRET, Issuer
from tests.java_stores import STORE_PASSWORD, make_key_store, make_trust_store
from tools import recording
from tools.docs import ROOT, pages

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)

CONNECT = "docs/run/connect.md"
PAGES = {path.relative_to(ROOT).as_posix(): snippets(text) for path, text in pages().items()}


@pytest.fixture(scope="module")
def pulsar_of_the_pages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Yield a Pulsar like that of `make brokers`, on other ports."""
    kind = background.Pulsar()
    broker = PulsarStandalone(tmp_path_factory.mktemp("pulsar"), overrides=kind.overrides)
    broker.start()
    kind.configure(broker.admin)
    yield {"localhost:6650": broker.service_url.split("//")[1], "localhost:8080": broker.admin_url.split("//")[1]}
    broker.remove()


@pytest.fixture(scope="module")
def nsq_of_the_pages() -> Iterator[dict[str, str]]:
    """Yield an NSQ broker."""
    with NsqBroker() as broker:
        yield {"localhost:4150": broker.tcp_address, "localhost:4161": broker.lookupd_address}


@pytest.fixture
def tubemq_of_the_page(tubemq: TubeUnderTest) -> dict[str, str]:
    """Return a TubeMQ cluster, with a topic that no other page has used."""
    topic = tubemq.topic(3)
    return {
        "localhost:8715": tubemq.masters,
        '"demo"': f'"{topic}"',
        "topic=demo": f"topic={topic}",
        '"delays"': f'"{tubemq.group()}"',
    }


def write_file(page: str, folder: Path, name: str, replacements: Mapping[str, str]) -> None:
    """Write the block of a page that has the file's name as its title."""
    text = re.search(rf'```\w+ title="{name}"\n(.*?)```', pages()[ROOT / page], re.DOTALL)[1]  # type: ignore[index]
    for shown, real in replacements.items():
        text = text.replace(shown, real)
    (folder / name).write_text(text)


@pytest.fixture
def pulsar_security(pulsar_featured: PulsarUnderTest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Yield a broker that authenticates clients, with a topic for each of them."""
    broker = pulsar_featured.require_own()
    credentials = broker.credentials
    assert credentials is not None
    for role in ("flights", "client", BASIC_USER):
        pulsar_featured.admin.grant(pulsar_featured.namespace, role, ["produce", "consume"])
    make_trust_store(tmp_path / "trust.jks", "JKS", credentials.ca_certificate)
    make_key_store(tmp_path / "client.p12", "PKCS12", credentials.certificate("client"), credentials.key("client"))
    write_file("docs/pulsar/security.md", tmp_path, "company_pulsar.py", {"/etc/pulsar/": f"{tmp_path}/"})
    (tmp_path / "token").write_text(credentials.token("flights"))
    (tmp_path / "credentials.json").write_text(json.dumps({"client_id": CLIENT_ID, "client_secret": CLIENT_SECRET}))
    with Issuer(lambda: credentials.token("flights")) as issuer:
        yield {
            "pulsar+ssl://broker.example.com": broker.service_url_tls,
            "https://issuer.example.com": issuer.url,
            "/etc/pulsar/ca.pem": str(credentials.ca_certificate),
            "/etc/pulsar/client.pem": str(credentials.certificate("client")),
            "/etc/pulsar/client.key": str(credentials.key("client")),
            "/etc/pulsar/": f"{tmp_path}/",
            '"flights"': f'"{pulsar_featured.topic()}"',
            '"basic"': f'"{BASIC_USER}"',
            '"a-password"': f'"{BASIC_PASSWORD}"',
            '"a-store-password"': f'"{STORE_PASSWORD}"',
        }


@pytest.fixture
def tubemq_security(tubemq_secure: TubeUnderTest, tmp_path: Path) -> dict[str, str]:
    """Return a cluster with mutual TLS and visit tokens."""
    credentials = tubemq_secure.cluster.credentials
    assert credentials is not None
    write_file("docs/tubemq/security.md", tmp_path, "company_tubemq.py", {})
    return {
        "master.example.com:8716": tubemq_secure.cluster.master_addresses_tls,
        "/etc/tubemq/ca.pem": str(credentials.ca_certificate),
        "/etc/tubemq/client.pem": str(credentials.certificate("client")),
        "/etc/tubemq/client.key": str(credentials.key("client")),
        "/etc/tubemq/": f"{tmp_path}/",
        '"a-user"': f'"{AUTH_USER}"',
        '"a-password"': f'"{AUTH_PASSWORD}"',
        '"demo"': f'"{tubemq_secure.topic(3)}"',
    }


def authorize(request: AuthRequest) -> AuthorizedClient | None:
    return AuthorizedClient("spark", [Authorization(".*", [".*"])]) if request.secret == "a-secret" else None


@pytest.fixture
def nsq_security(tls_material: TlsMaterial) -> Iterator[dict[str, str]]:
    """Yield an nsqd with TLS that asks for a secret."""
    certificate = str(tls_material.folder / "server.pem")
    with NsqBroker(tls_cert=certificate, tls_key=certificate, authorize=authorize) as broker:
        yield {
            "nsqd.example.com:4150": broker.tcp_address,
            "/etc/nsq/ca.pem": tls_material.ca,
            "/etc/nsq/client.pem": tls_material.client_cert,
            "/etc/nsq/client.key": tls_material.client_key,
        }


@pytest.fixture
def keys_of_the_page(tmp_path: Path) -> dict[str, str]:
    """Create the keys with the commands of the page."""
    page = pages()[ROOT / "docs/pulsar/encryption.md"]
    (bash,) = re.findall(r"```bash\ncd /etc/pulsar/keys\n(openssl.*?)```", page, re.DOTALL)
    subprocess.run(["sh", "-ec", bash], cwd=tmp_path, check=True, capture_output=True)
    return {"/etc/pulsar/keys/": f"{tmp_path}/"}


BROKERS = {
    "/etc/pulsar/keys/": "keys_of_the_page",
    "localhost:6650": "pulsar_of_the_pages",
    "localhost:8715": "tubemq_of_the_page",
    "localhost:41": "nsq_of_the_pages",
    "pulsar+ssl://broker.example.com": "pulsar_security",
    "master.example.com": "tubemq_security",
    "nsqd.example.com": "nsq_security",
}
"""The names in a page, and the fixtures that replace them."""

PATIENCE = {
    '("idleTimeout", "2s")': '("idleTimeout", "4s")',
    '"/data/orders.wal")': '"/data/orders.wal").option("idleTimeout", "4s")',
}
"""The silence after which a queue counts as read to its end, when brokers and Spark share two cores."""


@pytest.mark.parametrize("page", [page for page, found in PAGES.items() if found and page != CONNECT])
def test_a_page_runs_as_it_is_printed(
    page: str, spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    replacements = PATIENCE | {"/data/": f"{tmp_path}/"}
    for address, fixture in BROKERS.items():
        if any(address in one.text for one in PAGES[page]):
            replacements |= request.getfixturevalue(fixture)
    try:
        run(PAGES[page], page, replacements)
        for query in spark.streams.active:
            query.processAllAvailable()
    finally:
        for query in spark.streams.active:
            query.stop()
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")  # otherwise later pages start Python again


def test_the_page_of_spark_connect_runs_as_it_is_printed(
    nsq_of_the_pages: dict[str, str], spark_connect_url: str, tmp_path: Path
):
    """In a separate process, because this one has a classic session."""
    text = "\n".join(one.text for one in PAGES[CONNECT])
    for shown, real in (nsq_of_the_pages | {"sc://localhost:15002": spark_connect_url}).items():
        text = text.replace(shown, real)
    done = run_script(text, tmp_path)
    assert done.code == 0, done.output[-3000:]


@pytest.mark.slow
def test_the_pipeline_of_the_page_runs_as_it_is_printed(pulsar_of_the_pages: dict[str, str], tmp_path: Path):
    """Twice: the second run reads the messages published after the first."""
    if find_spec("pyspark.pipelines") is None:
        pytest.skip("before Spark 4.1")
    real = pulsar_of_the_pages | {"/data/": f"{tmp_path}/"}
    (tmp_path / "transformations").mkdir()
    for name in ("spark-pipeline.yml", "transformations/flights.py"):
        write_file("docs/run/sql.md", tmp_path, name, real)
    program = Path(sys.executable).with_name("spark-pipelines")
    client = pulsar.Client(f"pulsar://{real['localhost:6650']}")
    try:
        producer = client.create_producer("pipeline-arrivals")
        for delays in ((10, 90, 61), (5, 70)):
            for flight, delay in enumerate(delays):
                producer.send(json.dumps({"flight": flight, "delay": delay}).encode(), partition_key="UA")
            done = subprocess.run(
                [program, "--conf", "spark.sql.catalogImplementation=hive", "run"],
                cwd=tmp_path, env=os.environ | spark_environment(),
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=400, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout[-5000:]
        reader = client.create_reader("pipeline-late", pulsar.MessageId.earliest)
        late = []
        while reader.has_message_available():
            message = reader.read_next(10_000)
            late.append((message.partition_key(), json.loads(message.data())["delay"]))
    finally:
        client.close()
    assert sorted(late) == [("UA", 61), ("UA", 70), ("UA", 90)]


def test_the_recording_shows_what_the_commands_print(pulsar_of_the_pages: dict[str, str]):
    broker, web = pulsar_of_the_pages.values()
    recording.publish(f"pulsar://{broker}", PulsarAdmin(f"http://{web}"))
    now = recording.drawn(recording.recorded(broker))
    shown = recording.PICTURE.read_text(encoding="utf-8")
    # Numbers may differ, which moves the columns of tables.
    texts = [re.sub(r"\d+", "0", recording.text_of(picture)).split() for picture in (shown, now)]
    assert texts[0] == texts[1], "run `make recording`"
    assert len(shown) < 300_000
