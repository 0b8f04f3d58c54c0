"""Bounds of the exported metrics: queries that start and end, and any number of topics."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from spark_mq_source.pulsar.offsets import Position, encode_offsets
from spark_mq_source.spark._compat import HAS_ADMISSION_CONTROL
from spark_mq_source.spark.metrics import MAX_QUERIES, MAX_TOPICS, MetricsListener

prometheus_client = pytest.importorskip("prometheus_client")

T = "persistent://public/default/t"
DAY = "2013-01-01T05:15:00.250Z"


def trigger(listener: MetricsListener, name: str, *, behind: tuple[int, ...] = ()) -> None:
    read = encode_offsets({f"{T}{n}": Position(7, 0) for n in range(len(behind))})
    newest = encode_offsets({f"{T}{n}": Position(7, entries) for n, entries in enumerate(behind)})
    progress = {
        "id": f"id of {name}", "name": name, "batchId": 3, "timestamp": DAY, "numInputRows": 7,
        "durationMs": {"triggerExecution": 1500, "addBatch": 1000},
        "sources": [{"endOffset": read, "latestOffset": newest}],
    }  # fmt: skip
    event = SimpleNamespace(id=progress["id"], json=json.dumps(progress))
    listener.onQueryProgress(SimpleNamespace(progress=event))  # type: ignore[arg-type]


def samples(listener: MetricsListener, name: str) -> dict[str, float]:
    """Return the values of a metric by the labels behind `query`, or by `query`."""
    found = [one for family in listener.registry.collect() for one in family.samples if one.name == f"spark_mq_{name}"]
    return {"#".join(list(one.labels.values())[-2:]): one.value for one in found}


def test_an_ended_query_keeps_only_its_totals() -> None:
    listener = MetricsListener()
    for _ in range(2):
        trigger(listener, "a")
    assert samples(listener, "rows_total") == {"a": 14}
    assert samples(listener, "phase_seconds_total") == {"a#addBatch": 2}
    assert samples(listener, "trigger_seconds") == {"a": 1.5}
    assert samples(listener, "redelivered_rows_total") == {}
    listener.onQueryTerminated(SimpleNamespace(id="id of a"))  # type: ignore[arg-type]
    assert samples(listener, "trigger_seconds") == {}
    trigger(listener, "a")
    assert samples(listener, "rows_total") == {"a": 21}


def test_the_query_without_progress_for_longest_is_evicted() -> None:
    listener = MetricsListener()
    for n in (0, 1, 0, *range(2, MAX_QUERIES + 1)):
        trigger(listener, str(n))
    assert list(samples(listener, "triggers_total")) == ["0", *map(str, range(2, MAX_QUERIES + 1))]


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="earlier releases report no newest offset")
def test_the_topics_with_the_largest_lags_have_separate_metrics() -> None:
    listener = MetricsListener()
    trigger(listener, "a", behind=tuple(range(1, MAX_TOPICS + 3)))
    lags = samples(listener, "lag")
    assert len(lags) == MAX_TOPICS + 1
    assert (lags["other#entries"], lags[f"{T}2#entries"], sum(lags.values())) == (3, 3, sum(range(MAX_TOPICS + 3)))
    assert set(samples(listener, "lag_is_exact").values()) == {1}


def test_two_listeners_share_no_registry() -> None:
    registry = prometheus_client.CollectorRegistry(auto_describe=True)  # like REGISTRY
    first = MetricsListener(registry=registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        MetricsListener(registry=registry)
    first.close()
    MetricsListener(0, registry=registry).close()
