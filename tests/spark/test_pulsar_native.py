"""Features of Pulsar only in Spark: rare columns, times, minPartitions, pushdown, refusals."""

from __future__ import annotations

import datetime
import functools
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody writes it

from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.spark._compat import FILTER_OPERATORS
from tests.fix_brokers import PulsarUnderTest
from tests.formats import numbers
from tests.formats.pulsar import MESSAGE_ID_TYPE, PulsarFeed
from tests.readable import ddl_of, types_of
from tests.spark.frames import failure, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NAME = "pulsar-native"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
FEATURED_TIMEOUT = {"operationTimeout": "20s"}
needs_filters = pytest.mark.skipif(not FILTER_OPERATORS, reason="this Spark pushes no conditions down to data sources")


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """Return the session with pushdown of conditions to data sources.

    Not a separate session: Spark reads the setting from the one that was active last. And each query here loads a
    separate DataFrame: see `test_one_load_serves_several_conditions`.
    """
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    spark.conf.set("spark.sql.session.timeZone", "UTC")


def secured(broker: PulsarUnderTest, topic: str) -> dict[str, str]:
    """Return options to read a topic of the broker with authentication."""
    token = broker.require_own().admin_token
    assert token is not None
    return {"serviceUrl": broker.service_url, "topic": topic, "authToken": token} | FEATURED_TIMEOUT


# -- columns


def test_rare_columns_have_their_types_and_values(spark: SparkSession, pulsar_featured: PulsarUnderTest) -> None:
    topic = pulsar_featured.topic(1)
    producer = pulsar_featured.client().create_producer(
        f"{topic}-partition-0", producer_name="p-1", initial_sequence_id=41, batching_enabled=False
    )
    producer.send(b"a", partition_key="k", ordering_key="o", event_timestamp=1357017300123, properties={"x": "1"})
    producer.send(b"b")
    schema = types_of(COLUMNS, key="string")
    options = secured(pulsar_featured, topic)
    df = load(spark, NAME, options, ddl_of(COLUMNS, key="string"))
    assert {field.name: field.dataType.simpleString() for field in df.schema} == schema
    first, second = df.withColumn("late", F.col("broker_publish_time") < F.col("publish_time")).collect()
    assert (first.producer_name, first.sequence_id, second.sequence_id) == ("p-1", 42, 43)
    assert (bytes(first.ordering_key), second.ordering_key) == (b"o", None)
    assert (first.key, second.key) == ("k", None)
    assert (first.properties, second.properties) == ({"x": "1"}, {})
    assert (first.broker_index, second.broker_index) == (0, 1)
    assert (first.replicated_from, second.replicated_from) == (None, None)
    assert (first.late, second.late) == (False, False)
    assert first.message_id.batch_index == second.message_id.batch_index == -1
    assert second.message_id > first.message_id


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata"])
def test_times_are_utc_in_every_session_time_zone(spark: SparkSession, pulsar: PulsarUnderTest, zone: str) -> None:
    feed = PulsarFeed(pulsar, 1)
    producer = pulsar.client().create_producer(feed.topic_partitions[0])
    before_ms = time.time_ns() // 1_000_000
    producer.send(b"with", event_timestamp=1357017300123)
    producer.send(b"without")
    after_ms = time.time_ns() // 1_000_000
    session = spark.newSession()
    session.conf.set("spark.sql.session.timeZone", zone)
    df = load(session, NAME, feed.options)
    with_time, without = df.select(F.unix_micros("event_time").alias("event"), F.unix_micros("publish_time")).collect()
    assert with_time.event == 1357017300123000
    assert without.event is None
    assert before_ms <= with_time[1] // 1000 <= without[1] // 1000 <= after_ms
    assert df.where("event_time = timestamp'2013-01-01 05:15:00.123Z'").count() == 1


# -- topics and tasks


def test_min_partitions_gives_more_tasks_and_the_same_rows(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    feed = PulsarFeed(pulsar, 4)
    feed.publish(numbers(400), batching_enabled=False)
    plain = load(spark, NAME, feed.options, f"value string, message_id {MESSAGE_ID_TYPE}")
    more = load(spark, NAME, feed.options | {"minPartitions": "10"}, f"value string, message_id {MESSAGE_ID_TYPE}")
    assert plain.rdd.getNumPartitions() == 4
    assert more.rdd.getNumPartitions() >= 10
    assert sorted(more.collect()) == sorted(plain.collect())
    by_task = more.groupBy(F.spark_partition_id()).count().collect()
    assert len(by_task) >= 10
    assert max(row["count"] for row in by_task) <= 50


# -- pushdown


def test_pushdown_without_sparks_setting_names_the_setting(spark: SparkSession, pulsar: PulsarUnderTest) -> None:
    text = failure(load(spark, NAME, PulsarFeed(pulsar, 1).options | {"pushdown": "true"}))
    if FILTER_OPERATORS:
        assert "'spark.sql.python.filterPushdown.enabled' is false. Set it to true" in text
    else:
        assert "pushdown=true needs Spark 4.1 or newer; remove this option" in text


@needs_filters
@pytest.mark.parametrize(
    ("condition", "tasks"),
    [
        ("partition = 2", 1),
        ("partition IN (1, 3)", 2),
        ("partition = 9", 1),  # none match: Spark makes up an empty partition
        ("partition = 1 OR partition = 2", 4),  # Spark pushes down no OR
        ("partition <> 1", 4),
        ("topic = 'persistent://public/tests/nonsense'", 1),
        ("value = '7' AND partition = 3", 1),
    ],
)
def test_conditions_drop_partitions(pushing: SparkSession, pulsar: PulsarUnderTest, condition: str, tasks: int) -> None:
    feed = PulsarFeed(pulsar, 4)
    feed.publish(numbers(16))
    pushed = load(pushing, NAME, feed.options | {"pushdown": "true"}).where(condition)
    plain = load(pushing, NAME, feed.options).where(condition)
    assert plain.rdd.getNumPartitions() == 4
    assert pushed.rdd.getNumPartitions() == tasks
    assert sorted(pushed.select("value").collect()) == sorted(plain.select("value").collect())


@needs_filters
@pytest.mark.xfail(
    strict=True,
    reason="Spark 4.1 to 4.3 keeps one plan a load(): the partitions of the condition pushed last serve every query "
    "over that DataFrame, with any data source. When this passes, the warning at the option can go.",
)
def test_one_load_serves_several_conditions(pushing: SparkSession, pulsar: PulsarUnderTest) -> None:
    feed = PulsarFeed(pulsar, 4)
    feed.publish(numbers(16))
    df = load(pushing, NAME, feed.options | {"pushdown": "true"})
    found = [df.where("partition = 2").count(), df.count()]
    found.append(df.where("partition = 1").union(df.where("partition = 3")).count())
    assert found == [4, 16, 8]


def publish_at_different_times(client: Any, topic_partitions: list[str]) -> None:
    """Publish two messages a partition, one partition after the other, each in a different millisecond."""
    last = 0
    for name in topic_partitions:
        producer = client.create_producer(name, batching_enabled=False)
        for value in (b"early", b"late"):
            while (now := time.time_ns() // 1_000_000) <= last + 1:
                pass  # until the clock ticks
            producer.send(value)
            last = time.time_ns() // 1_000_000
            assert last >= now


OPERATORS: list[tuple[str, Callable[[Any, Any], bool]]] = [
    ("=", operator.eq), ("<", operator.lt), ("<=", operator.le), (">", operator.gt), (">=", operator.ge),
]  # fmt: skip


def check_publish_times(session: SparkSession, options: dict[str, str], around: Sequence[int]) -> None:
    """Check conditions on publish_time, to the microsecond around some of six messages, against rows filtered here."""
    schema = f"partition int, message_id {MESSAGE_ID_TYPE}, publish_time timestamp"
    rows = load(session, NAME, options, schema).select("message_id", F.unix_micros("publish_time")).collect()
    times = sorted(at for _, at in rows)
    assert len(times) == 6
    assert len(set(times)) == 6
    queries: list[DataFrame] = []
    expected = []

    def pushed() -> DataFrame:
        return load(session, NAME, options | {"pushdown": "true"}, schema)

    for pivot in (times[number] for number in around):
        for distance in (-1, 0, 1):
            moment = EPOCH + datetime.timedelta(microseconds=pivot + distance)
            for sign, compare in OPERATORS:
                label = f"{sign} {pivot}{distance:+}"
                text = f"publish_time {sign} timestamp'{moment:%Y-%m-%d %H:%M:%S.%f}Z'"
                queries.append(pushed().where(text).select(F.lit(label).alias("label"), "message_id"))
                expected += [(label, row.message_id) for row in rows if compare(row[1], pivot + distance)]
    found = functools.reduce(DataFrame.unionAll, queries).collect()
    assert sorted(map(tuple, found)) == sorted(expected)
    # IN has no bounds: all rows are read, and Spark filters.
    moments = ", ".join(
        f"timestamp'{EPOCH + datetime.timedelta(microseconds=at):%Y-%m-%d %H:%M:%S.%f}Z'" for at in times[1:3]
    )
    assert pushed().where(f"publish_time IN ({moments})").count() == 2


@needs_filters
@pytest.mark.parametrize(("zone", "around"), [("UTC", (0, 3, 5)), ("America/New_York", (3,))])
def test_conditions_on_publish_time_return_the_same_rows(
    pushing: SparkSession, pulsar: PulsarUnderTest, zone: str, around: Sequence[int]
) -> None:
    feed = PulsarFeed(pulsar, 3)
    publish_at_different_times(pulsar.client(), feed.topic_partitions)
    pushing.conf.set("spark.sql.session.timeZone", zone)
    check_publish_times(pushing, dict(feed.options), around)


@needs_filters
def test_conditions_on_publish_time_return_the_same_rows_with_broker_publish_times(
    pushing: SparkSession, pulsar_featured: PulsarUnderTest
) -> None:
    topic = pulsar_featured.topic(3)
    publish_at_different_times(pulsar_featured.client(), [f"{topic}-partition-{n}" for n in range(3)])
    check_publish_times(pushing, secured(pulsar_featured, topic), (3,))


@needs_filters
def test_conditions_on_publish_time_drop_partitions(pushing: SparkSession, pulsar: PulsarUnderTest) -> None:
    feed = PulsarFeed(pulsar, 3)
    publish_at_different_times(pulsar.client(), feed.topic_partitions)

    def pushed() -> DataFrame:
        return load(pushing, NAME, feed.options | {"pushdown": "true", "publishTimeSlack": "0ms"})

    rows = pushed().select("partition", F.unix_micros("publish_time").alias("at")).collect()
    newest = EPOCH + datetime.timedelta(microseconds=min(row.at for row in rows if row.partition == 2))
    last = pushed().where(f"publish_time >= timestamp'{newest:%Y-%m-%d %H:%M:%S.%f}Z'")
    assert (last.rdd.getNumPartitions(), last.count()) == (1, 2)
    others = pushed().where(f"publish_time < timestamp'{newest:%Y-%m-%d %H:%M:%S.%f}Z'")
    assert (others.rdd.getNumPartitions(), others.count()) == (2, 4)
