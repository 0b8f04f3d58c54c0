"""The lags and the log line of a query's progress, from Spark's documents."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.counters import Lag
from spark_mq_source.core.queue_offsets import BatchOffset
from spark_mq_source.pulsar import offsets as pulsar
from spark_mq_source.pulsar.offsets import EARLIEST, Position
from spark_mq_source.spark.progress import DELAY, TriggerProgress
from spark_mq_source.tubemq import offsets as tubemq
from spark_mq_source.tubemq.offsets import INDEX_BYTES, TopicPartition, Trigger

T, U = "persistent://public/default/t", "persistent://public/default/u"


def pulsar_offsets(positions: dict[str, Position]) -> dict[str, object]:
    return pulsar.encode_offsets({pulsar.TopicPartition.parse(name): at for name, at in positions.items()})


def progress(*sources: dict[str, Any], **more: Any) -> TriggerProgress:
    return TriggerProgress.parse(
        {
            "id": "8f0e5a1c-0000-0000-0000-000000000000", "runId": "r", "name": None, "batchId": 3,
            "timestamp": "2013-01-01T05:15:00.250Z", "numInputRows": 7, "sources": list(sources),
            "durationMs": {"triggerExecution": 1500}, "observedMetrics": {},
        } | more
    )  # fmt: skip


def source(read: object, newest: object, rows: int = 7) -> dict[str, Any]:
    return {"endOffset": read, "latestOffset": newest, "numInputRows": rows}


def test_pulsars_lag_is_in_entries_by_topic() -> None:
    read = pulsar_offsets({f"{T}-partition-0": Position(7, 3), f"{T}-partition-1": Position(8, 9), U: Position(9, 0)})
    newest = pulsar_offsets(
        {f"{T}-partition-0": Position(7, 5), f"{T}-partition-1": Position(8, 10), U: Position(9, 0)}
    )
    assert progress(source(read, newest)).lags == (Lag(T, 3, "entries"), Lag(U, 0, "entries"))


def test_pulsars_lag_across_ledgers_is_a_bound() -> None:
    newest = pulsar_offsets({T: Position(9, 4)})
    for read in ({T: Position(7, 300)}, {T: EARLIEST}, {}):
        assert progress(source(pulsar_offsets(read), newest)).lags == (Lag(T, 5, "entries", is_exact=False),)
    # Read past the newest message at the time of planning.
    ahead = pulsar_offsets({T: Position(10, 0)})
    assert progress(source(ahead, newest)).lags == (Lag(T, 0, "entries"),)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 50)), max_size=6))
def test_tubemqs_lag_is_counted_by_store(partitions: list[tuple[int, int, int]]) -> None:
    read, newest, stores = {}, {}, {}
    for n, (store, at, behind) in enumerate(partitions):
        tp = TopicPartition("t", 1, store * tubemq.STORE_PARTITIONS + n)
        read[tp], newest[tp] = at * INDEX_BYTES, (at + behind) * INDEX_BYTES
        stores[store] = max(stores.get(store, 0), behind)
    found = progress(source(tubemq.encode_offsets(Trigger(read)), tubemq.encode_offsets(Trigger(newest)))).lags
    assert found == ((Lag("t", sum(stores.values()), "messages"),) if partitions else ())


@pytest.mark.parametrize("unit", ["messages", "entries"])
@pytest.mark.parametrize(("waiting", "behind"), [(100, 93), (3, 0), (None, None)])
def test_the_lag_of_a_queue_is_at_least_the_backlog_without_the_rows_read(
    unit: str, waiting: int | None, behind: int | None
) -> None:
    at = BatchOffset("8f0e", 7).to_json()
    lags = () if behind is None else (Lag("t", behind, unit, is_exact=False),)
    assert progress(source(at, at | {"topic": "t", "waiting": waiting, "unit": unit})).lags == lags


@pytest.mark.parametrize("newest", [None, {"flights": {"0": 17}}, "{}", 5])
def test_other_sources_and_older_sparks_have_no_lag(newest: object) -> None:
    assert progress(source({"flights": {"0": 3}}, newest)).lags == ()
    assert progress(source(BatchOffset("8f0e", 7).to_json(), newest)).lags == ()


def test_all_sources_of_a_query_are_added_up() -> None:
    read, newest = (pulsar_offsets({T: Position(7, entry)}) for entry in (3, 5))
    at = BatchOffset("8f0e", 7).to_json()
    found = progress(source(read, newest), source(at, at | {"topic": "n", "waiting": 10, "unit": "messages"}, rows=4))
    assert found.behind == 8
    behind = f"behind {T} 2 entries, behind n at least 6 messages"
    assert str(found) == f"8f0e5a1c batch 3: 7 rows in 1.50 s, 0 rows/s, {behind}"


OLDEST_US = 1357017300_000_000
"""A quarter of a second before the trigger of `progress`."""


def test_the_delay_is_the_age_of_the_oldest_row_when_its_trigger_ended() -> None:
    found = progress(observedMetrics={DELAY: {"oldest_us": OLDEST_US}}, name="delays", processedRowsPerSecond=4.6)
    assert found.delay_seconds == 1.75
    assert str(found) == "delays batch 3: 7 rows in 1.50 s, 5 rows/s, delay 1.75 s"
    # A trigger without rows has no oldest one.
    assert progress(observedMetrics={DELAY: {"oldest_us": None}}).delay_seconds is None
    assert progress(observedMetrics={DELAY: {}}, durationMs={}).delay_seconds is None
