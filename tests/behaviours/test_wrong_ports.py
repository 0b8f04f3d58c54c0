"""TLS to a port without it, and connections without TLS to a port with it: refused after a few connections."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable

import pytest

from spark_mq_source.core.errors import MQSourceError
from spark_mq_source.net import transport
from tests.fix_net import FaultProxy, ScriptedServer, TlsMaterial, failing_tls
from tests.formats import Format

WITH_TLS = {
    "pulsar-native": {"serviceUrl": "pulsar+ssl://{}"},
    "tubemq": {"tls": "true", "connectTimeout": "1s", "operationTimeout": "2s"},
    "nsq": {"nsqlookupdHttpAddresses": "https://{}", "tls": "true"},
}


@pytest.fixture(autouse=True)
def _no_peer_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget peers of earlier tests in this process: one of them may have answered without TLS at the same port."""
    monkeypatch.setattr(transport, "_without_tls", set())
    monkeypatch.setattr(transport, "_losses", Counter())


def refusal(mq: Format, *, is_silent: bool = False, **options: object) -> str:
    """Return the error of a plan; only silence is retryable, as with a broker that hangs."""
    with pytest.raises(MQSourceError) as caught:
        mq.plan(mq.new_topic(), **options)
    assert caught.value.retryable is is_silent
    return str(caught.value)


def test_tls_to_a_port_without(mq: Format, tls_material: TlsMaterial):
    with FaultProxy(*mq.service) as link:
        options: dict[str, object] = {name: value.format(link.address) for name, value in WITH_TLS[mq.name].items()}
        # A master of TubeMQ 2.4.0 does not answer an unknown request.
        is_silent = mq.name == "tubemq"
        options |= {"service": ("127.0.0.1", link.port), "trustCerts": tls_material.ca}
        sentence = refusal(mq, is_silent=is_silent, **options)
        assert re.search(f"{link.address}.*(check that this port uses TLS|wrong version number)", sentence)
        assert link.connections <= 3


def test_no_tls_to_a_port_with_it(
    mq: Format, scripted_server: Callable[..., ScriptedServer], tls_material: TlsMaterial
):
    server = scripted_server([failing_tls(tls_material.server())], repeat=True)
    assert "this port speaks TLS" in refusal(mq, service=("127.0.0.1", server.port))
    assert len(server.peers) <= 6
