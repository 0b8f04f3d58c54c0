"""Upgrades of a connection: TLS, client certificates, deflate, snappy, authorization, and all of them together."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from spark_mq_source.core.errors import (
    AuthenticationError,
    AuthorizationError,
    MQSourceError,
)
from spark_mq_source.core.options import READ
from spark_mq_source.nsq.client.session import Session
from spark_mq_source.nsq.inspector import NsqInspector
from spark_mq_source.nsq.options import NsqOptions
from spark_mq_source.nsq.protocol.commands import Mpub, Pub
from spark_mq_source.testing import Authorization, AuthorizedClient, AuthRequest
from tests.behaviours.nsq.clients import open_session, take, take_all
from tests.behaviours.nsq.conftest import PATIENCE_S
from tests.fix_brokers import NsqUnderTest
from tests.fix_net import TlsMaterial

Start = Callable[..., NsqUnderTest]
SECRET = "a-long-secret"


def authorize(request: AuthRequest) -> AuthorizedClient | None:
    if request.secret != SECRET:
        return None
    return AuthorizedClient("me", [Authorization("^allowed", ["^c$", "^$"])], identity_url="http://who/me")


def with_certificate(material: TlsMaterial, server: str = "server.pem", **settings: Any) -> dict[str, Any]:
    path = str(material.folder / server)
    return {"tls_cert": path, "tls_key": path, **settings}


def trusting(material: TlsMaterial, **options: str) -> dict[str, str]:
    return {"tls": "true", "trustCerts": material.ca, **options}


def round_trip(session: Session, topic: str, messages: list[bytes]) -> list[bytes]:
    for start in range(0, len(messages), 50):
        part = messages[start : start + 50]
        packed = b"".join(len(message).to_bytes(4, "big") + message for message in part)
        session.request(Mpub(topic, len(part).to_bytes(4, "big") + packed)).result(PATIENCE_S)
    return take_all(session, topic, len(messages))


def messages(rng: random.Random) -> list[bytes]:
    """Return some messages that compress well and some that do not compress."""
    return [rng.choice([rng.randbytes, lambda size: b"z" * size])(rng.choice([1, 10, 100, 70_000])) for _ in range(600)]


@pytest.mark.parametrize("compression", ["none", "deflate", "snappy"])
@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_upgraded_connections_transfer_all_messages(
    nsq_private: Start, tls_material: TlsMaterial, tls: bool, compression: str, rng: random.Random
):
    nsq = nsq_private(**with_certificate(tls_material) if tls else {})
    options = trusting(tls_material) if tls else {}
    sent = messages(rng)
    with open_session(nsq.tcp_address, compression=compression, **options) as session:
        agreed = session.identified
        assert (agreed.tls_v1, agreed.deflate, agreed.snappy) == (
            tls,
            compression == "deflate",
            compression == "snappy",
        )
        topic = nsq.topic("c")
        assert sorted(round_trip(session, topic, sent)) == sorted(sent)


def test_all_upgrades_together(nsq_private: Start, tls_material: TlsMaterial):
    nsq = nsq_private(
        **with_certificate(
            tls_material, tls_root_ca_file=tls_material.ca, tls_client_auth_policy="require-verify", tls_required=False
        ),
        authorize=authorize,
    )
    options = trusting(
        tls_material,
        clientCert=tls_material.client_cert,
        clientKey=tls_material.client_key,
        compression="deflate",
        deflateLevel="9",
        authSecret=SECRET,
    )
    with open_session(nsq.tcp_address, **options) as session:
        assert session.identified.deflate_level == session.identified.max_deflate_level == 6
        assert session.authorized is not None
        assert (session.authorized.identity, session.authorized.identity_url) == ("me", "http://who/me")
        consumer = session.subscribe("allowed", "c")
        consumer.ready(1)
        session.request(Pub("allowed", b"all of it")).result(PATIENCE_S)
        assert take(consumer, 1) == [b"all of it"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({}, "set authSecret"), ({"authSecret": "wrong-secret"}, "E_AUTH_FAILED|E_UNAUTHORIZED")],
    ids=["none", "wrong"],
)
def test_a_secret_is_needed_and_never_shown(nsq_private: Start, options: dict[str, str], words: str):
    nsq = nsq_private(authorize=authorize)
    with pytest.raises(MQSourceError, match=words) as caught, open_session(nsq.tcp_address, **options):
        pass
    assert isinstance(caught.value, AuthenticationError | AuthorizationError)
    assert "wrong-secret" not in str(caught.value)


def test_the_doctor_shows_the_authenticated_identity(nsq_private: Start):
    nsq = nsq_private(authorize=authorize)
    nsq.create("allowed", "c")
    given = {
        "nsqlookupdhttpaddresses": nsq.lookupd_address,
        "topic": "allowed",
        "channel": "c",
        "idletimeout": "1s",
        "authsecret": SECRET,
    }
    steps = dict(NsqInspector(NsqOptions.from_spark(given, READ)).steps())
    found = steps[f"connect to {nsq.tcp_address} and sign in"]()
    assert found.endswith("without TLS, authorized as me http://who/me with 1 permissions")


def test_an_action_outside_the_permissions_is_an_authorization_error(nsq_private: Start):
    nsq = nsq_private(authorize=authorize)
    with (
        open_session(nsq.tcp_address, authSecret=SECRET) as session,
        pytest.raises(AuthorizationError, match=r"topic denied, channel c: .*E_UNAUTHORIZED"),
    ):
        session.subscribe("denied", "c")
    with open_session(nsq.tcp_address, authSecret=SECRET) as session, pytest.raises(AuthorizationError):
        session.request(Pub("denied", b"x")).result(PATIENCE_S)
