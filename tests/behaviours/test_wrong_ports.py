"""A port that speaks TLS where none is set, and one that does not where it is: refused after a few connections."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from spark_mq_source.core.errors import MQSourceError
from tests.fix_net import FaultProxy, ScriptedServer, TlsMaterial, failing_tls
from tests.formats import Format

WITH_TLS = {
    "pulsar-native": {"serviceUrl": "pulsar+ssl://{}"},
    "tubemq": {"masters": "{}", "tls": "true"},
    "nsq": {"nsqlookupdHttpAddresses": "https://{}", "tls": "true"},
}


def refusal(mq: Format, **options: object) -> str:
    """The sentence with which a plan ends, which is not to be tried again."""
    with pytest.raises(MQSourceError) as caught:
        mq.plan(mq.new_topic(), **options)
    assert not caught.value.retryable
    return str(caught.value)


def test_tls_to_a_port_without(mq: Format, tls_material: TlsMaterial):
    with FaultProxy(*mq.service) as link:
        options = {name: value.format(link.address) for name, value in WITH_TLS[mq.name].items()}
        sentence = refusal(mq, **options, trustCerts=tls_material.ca)
        assert re.search(f"{link.address}.*(does this port speak TLS|wrong version number)", sentence)
        assert link.connections <= 3


def test_no_tls_to_a_port_with_it(
    mq: Format, scripted_server: Callable[..., ScriptedServer], tls_material: TlsMaterial
):
    server = scripted_server([failing_tls(tls_material.server())], repeat=True)
    assert "this port speaks TLS" in refusal(mq, service=("127.0.0.1", server.port))
    assert len(server.peers) <= 6
