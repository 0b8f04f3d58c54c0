"""Fixtures of TubeMQ's tests only."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from brokers.tubemq import AUTH_PASSWORD, AUTH_USER
from spark_mq_source.core.options import WRITE
from spark_mq_source.tubemq.client.client import TubeMQClient
from spark_mq_source.tubemq.options import TubeMQOptions
from tests.fix_tubemq import TubeUnderTest


def options_for(tubemq: TubeUnderTest, **options: str) -> TubeMQOptions:
    """Return the options of a client of this cluster: with TLS and a user, if it is a secure one."""
    given = {"masters": tubemq.masters}
    if tubemq.cluster.secure:
        credentials = tubemq.cluster.credentials
        assert credentials is not None
        given = {
            "masters": tubemq.cluster.master_addresses_tls,
            "tls": "true",
            "trustCerts": str(credentials.ca_certificate),
            "clientCert": str(credentials.certificate("client")),
            "clientKey": str(credentials.key("client")),
            "authUser": AUTH_USER,
            "authPassword": AUTH_PASSWORD,
        }
    return TubeMQOptions.from_spark(given | options, WRITE)


@pytest.fixture
def client_of(closing: Callable[[TubeMQClient], TubeMQClient]) -> Callable[..., TubeMQClient]:
    """Return clients with `client_of(tubemq, option=value)`; close them when the test ends."""
    return lambda tubemq, **options: closing(TubeMQClient(options_for(tubemq, **options)))
