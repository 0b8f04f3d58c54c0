"""A token that expires while a range is read: the broker asks for another one, and the read goes on or says why not."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from spark_mq_source.core.errors import AuthenticationError
from tests.behaviours.pulsar.test_stream import wait_until
from tests.fix_net import RecordingProxy
from tests.formats.pulsar import MESSAGE_ID, PulsarFormat, assert_each_once

MESSAGES = 2_000
SMALL = {"maxBatchRows": 1, "receiverQueueSize": 20, "operationTimeout": "5s"}
"""So that much is still to come from the broker when the first batch is handed over."""


class Frames(io.StringIO):
    """What passed a recording proxy."""

    def passed(self, kind: str) -> int:
        return sum(json.loads(line)["type"] == kind for line in self.getvalue().splitlines())


@pytest.fixture
def topic(featured: PulsarFormat) -> str:
    """Batches of ten messages, on the broker that looks for expired tokens every second."""
    name = featured.broker.topic()
    client = featured.broker.client()
    producer = client.create_producer(name, batching_enabled=True, batching_max_messages=10, block_if_queue_full=True)
    for n in range(MESSAGES):
        producer.send_async(b"%d" % n, None)
    producer.flush()
    producer.close()
    return name


def soon(featured: PulsarFormat) -> str:
    """A token that is good for connecting, and not for long."""
    return featured.broker.require_own().credentials.token("admin", expires_at_s=time.time() + 6)


def proxied(featured: PulsarFormat, frames: Frames) -> RecordingProxy:
    parts = urlsplit(featured.broker.service_url)
    return RecordingProxy(parts.hostname or "", parts.port or 0, frames, "token")


def test_a_token_file_that_is_renewed_keeps_the_connection(featured: PulsarFormat, topic: str, tmp_path: Path):
    file = tmp_path / "token"
    file.write_text(soon(featured))
    reader = PulsarFormat(featured.broker)
    rows = []
    with proxied(featured, frames := Frames()) as proxy:
        options = SMALL | {"service": ("127.0.0.1", proxy.port), "authTokenFile": file}
        for number, batch in enumerate(reader.batches(topic, f"value binary, {MESSAGE_ID}", **options)):
            rows += batch.to_pylist()
            if number == 0:
                connections = proxy.connections
                file.write_text(featured.broker.require_own().admin_token or "")
                wait_until(lambda: frames.passed("AUTH_RESPONSE") > 0, "the renewed token to be sent")
        assert frames.passed("AUTH_CHALLENGE") == frames.passed("AUTH_RESPONSE")
        assert proxy.connections == connections
    assert_each_once(rows, reader.position_of)
    assert [int(row["value"]) for row in rows] == list(range(MESSAGES))


def test_a_token_that_nobody_renews_ends_the_read(featured: PulsarFormat, topic: str):
    token = soon(featured)
    reader = PulsarFormat(featured.broker)
    with proxied(featured, frames := Frames()) as proxy:
        options = SMALL | {"service": ("127.0.0.1", proxy.port), "authToken": token}
        batches = reader.batches(topic, **options)
        assert next(batches).num_rows
        wait_until(lambda: frames.passed("AUTH_RESPONSE") > 0, "the old token to be sent again")
        with pytest.raises(AuthenticationError, match=rf"reading {topic}.*expired") as caught:
            assert sum(batch.num_rows for batch in batches) < MESSAGES
    assert token not in str(caught.value)
