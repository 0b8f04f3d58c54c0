"""docker-compose.yml: valid, pinned, and on the ports of `make brokers`. No engine runs here; only the file is read."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from ruamel.yaml import YAML

from brokers import background as brokers
from brokers import pulsar as pulsar_broker
from tests.packaging.conftest import ROOT

FILE = ROOT / "docker-compose.yml"
NSQADMIN_PORT, JUPYTER_PORT = 4171, 8888


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load(FILE.read_text(encoding="utf-8"))
    return found


def texts(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from texts(child)


def test_the_file_follows_the_compose_specification():
    # The schema is that of compose-spec/compose-spec in check-jsonschema.
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", FILE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_uses_the_ports_of_make_brokers_on_loopback_only(compose: dict[str, Any]):
    published = [port for service in compose["services"].values() for port in service.get("ports", ())]
    assert len(published) == len(set(published))
    places = {tuple(port.split(":")) for port in published}
    zookeeper, master, master_web, _, broker, broker_web, *_ = brokers.TUBEMQ_PORTS
    pulsar = pulsar_broker.Ports()
    expected = {pulsar.broker, pulsar.web, zookeeper, master, master_web, broker, broker_web, *brokers.NSQ_PORTS}
    assert places == {("127.0.0.1", str(port), str(port)) for port in {*expected, NSQADMIN_PORT, JUPYTER_PORT}}


def test_jupyter_requires_a_token(compose: dict[str, Any]):
    """Jupyter runs any code; it generates a token unless one is set, and an empty one disables authentication."""
    notebook = " ".join(texts(compose["services"]["notebook"]))
    assert re.findall(r"(?i)(?:token|password)=?\S*", notebook) == []


def test_pulsar_accepts_writes_of_every_guarantee_like_that_of_make_brokers(compose: dict[str, Any]):
    stock = "transactionCoordinatorEnabled=false\n"
    assert stock in (pulsar_broker.distribution() / "conf" / "standalone.conf").read_text()
    pulsar = compose["services"]["pulsar"]
    (edit,) = re.findall(r"sed '(\S+)' conf/standalone.conf > (\S+)", pulsar["command"][-1])
    done = subprocess.run(["sed", edit[0]], input=stock, capture_output=True, text=True, check=True)
    assert done.stdout == "transactionCoordinatorEnabled=true\n"
    assert pulsar["environment"]["PULSAR_STANDALONE_CONF"] == edit[1]
    assert "set-deduplication public/default --enable" in compose["services"]["pulsar-topics"]["command"][-1]


def test_tubemq_is_configured_for_the_published_ports(compose: dict[str, Any]):
    zookeeper, master, master_web, _, broker, broker_web, *_ = brokers.TUBEMQ_PORTS
    settings = {}
    for name in ("tubemq-master", "tubemq-broker"):
        settings[name] = configparser.ConfigParser()
        settings[name].read_string(compose["configs"][name]["content"])
    assert settings["tubemq-master"]["master"]["port"] == str(master)
    assert settings["tubemq-master"]["master"]["webPort"] == str(master_web)
    assert settings["tubemq-master"]["meta_zookeeper"]["zkServerAddr"] == f"127.0.0.1:{zookeeper}"
    assert settings["tubemq-broker"]["broker"]["port"] == str(broker)
    assert settings["tubemq-broker"]["broker"]["webPort"] == str(broker_web)
    assert settings["tubemq-broker"]["broker"]["masterAddressList"] == f"127.0.0.1:{master}"


def test_every_image_is_pinned_to_a_version(compose: dict[str, Any]):
    services = compose["services"]
    images = [service["image"] for service in services.values() if "image" in service]
    images += re.findall(r"^FROM (\S+)", services["notebook"]["build"]["dockerfile_inline"], re.MULTILINE)
    assert len(images) == len(services)
    assert [image for image in images if not re.search(r":(v|spark-)?\d+\.\d+\.\d+$", image)] == []
    assert f"apachepulsar/pulsar:{pulsar_broker.VERSION}" in images, "the Pulsar that the tests run"


def test_services_have_health_checks_and_preparations_end(compose: dict[str, Any]):
    services = compose["services"]
    once = {name for name in services if name.endswith("-topics")}
    assert once == {"pulsar-topics", "tubemq-topics", "nsq-topics"}
    assert {name for name, service in services.items() if "healthcheck" not in service} == once
    assert {name for name, service in services.items() if service["restart"] == "no"} == once
    waited_for = {
        (other, wanted["condition"])
        for service in services.values()
        for other, wanted in service.get("depends_on", {}).items()
    }
    kinds = {True: "service_completed_successfully", False: "service_healthy"}
    assert [(name, condition) for name, condition in waited_for if condition != kinds[name in once]] == []


def test_compose_substitutes_nothing_in_the_scripts(compose: dict[str, Any]):
    """A single $ would be a variable of compose, not of the shell."""
    assert [text for text in texts(compose) if re.search(r"(?<!\$)(\$\$)*\$(?!\$)", text)] == []
