"""A cluster: through its proxy, and copied to another cluster."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from brokers.pulsar_cluster import NAME, PulsarCluster
from spark_mq_source.core.errors import TopicNotFoundError
from tests.fix_brokers import PulsarUnderTest
from tests.formats import numbers, write
from tests.formats.pulsar import PulsarFormat

COUNT, PARTITIONS = 300, 4
COLUMNS = "value binary, replicated_from string"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_rows_go_through_a_proxy_and_are_read_once_where_they_are_replicated(
    pulsar: PulsarUnderTest, pulsar_format: PulsarFormat, tmp_path: Path
) -> None:
    values = numbers(COUNT)
    topic = pulsar.topic(partitions=PARTITIONS)
    with PulsarCluster(tmp_path / "cluster", brokers=2, bookies=2, proxy=True) as cluster:
        with contextlib.closing(cluster.admin) as admin:
            admin.create_namespace(pulsar.namespace)
            admin.replicate(pulsar.namespace, "standalone", pulsar.admin_url, pulsar.service_url)
            admin.create_topic(topic, PARTITIONS)
        given = {"serviceUrl": cluster.proxy_url, "topic": topic}
        write(pulsar_format, given, [values[:200], values[200:]])
        host, _, port = cluster.proxy_url.rpartition("/")[2].partition(":")
        rows = pulsar_format.read(topic, COLUMNS, service=(host, int(port)))
        assert sorted(rows["value"].to_pylist()) == sorted(values)
        assert rows["replicated_from"].to_pylist() == [None] * COUNT
        with pytest.raises(TopicNotFoundError, match="TopicNotFound"):
            pulsar_format.read("persistent://public/absent/t", service=(host, int(port)))
        for number in range(cluster.brokers):
            connected = re.findall(
                "clientVersion=spark-mq.*proxyVersion=(.*)", cluster.servers[f"broker-{number}"].log.read_text()
            )
            assert connected
            assert "null" not in connected
        while (copied := pulsar_format.read(topic, COLUMNS)).num_rows < COUNT:
            pass
    assert sorted(copied["value"].to_pylist()) == sorted(values)
    assert copied["replicated_from"].to_pylist() == [NAME] * COUNT
