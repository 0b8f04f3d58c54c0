"""The Spark classes without a Spark session: schemas, column checks, partitions, predicates, pickling."""

from __future__ import annotations

import dataclasses
import datetime
import logging
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import pyarrow as pa
import pyspark.sql.datasource as spark_datasource
import pytest
from pyspark import cloudpickle
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from pyspark.sql.worker import plan_data_source_read

import spark_mq_source
from spark_mq_source.core.columns import Column, ColumnTable
from spark_mq_source.core.counters import Counters
from spark_mq_source.core.errors import OptionError, TaskEndedError, UnsupportedFeatureError
from spark_mq_source.core.ports import Predicate, TaskAttempt
from spark_mq_source.pulsar.format import PulsarFormat
from spark_mq_source.pulsar.offsets import Position, TopicPartition
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.read.reader import PulsarRange
from spark_mq_source.spark import base
from spark_mq_source.spark._compat import FILTER_OPERATORS, arrow_schema
from spark_mq_source.spark.base import (
    MQBatchReader,
    MQCommit,
    MQDataSource,
    MQPartition,
    MQPushdownReader,
    MQStreamReader,
    check_columns,
)
from spark_mq_source.spark.sources import PulsarNativeDataSource
from spark_mq_source.values.encodings import Encoding, TypedRead

MESSAGE_ID = StructType(
    [
        StructField("ledger_id", LongType()),
        StructField("entry_id", LongType()),
        StructField("batch_index", IntegerType()),
    ]
)
OPTIONS = {"serviceurl": "pulsar://127.0.0.1:6650", "topic": "t"}
needs_filters = pytest.mark.skipif(not FILTER_OPERATORS, reason="this Spark passes no conditions to data sources")


def schema_of(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


@dataclass(frozen=True)
class ListOptions:
    rows: int
    typed: TypedRead | None = None


class ListFormat:
    """A minimal format for tests of the Spark classes, with one task for each number."""

    name = "list"
    columns = ColumnTable(Column("n", ("bigint",)), Column("value", written_from=("string",), required=True))

    def parse_options(self, options: Mapping[str, str]) -> ListOptions:
        return ListOptions(int(options.get("rows", "2")))

    def columns_by_default(self, options: Mapping[str, str]) -> tuple[pa.Schema, TypedRead | None]:
        typed = TypedRead(Encoding("string")) if "typed" in options else None
        return pa.schema([("n", pa.int64() if typed is None else pa.list_(pa.string()))]), typed

    def fit_read(self, options: ListOptions, schema: pa.Schema, typed: TypedRead | None = None) -> ListOptions:
        return dataclasses.replace(options, typed=typed)

    def decoded(self, options: ListOptions, names: Sequence[str]) -> Sequence[str]:
        return () if options.typed is None else ["n"]

    def has_other_columns(self, _: ListOptions) -> bool:
        return False

    def reads_ahead(self, _: object) -> bool:
        return True

    def wants_pushdown(self, options: ListOptions) -> bool:
        return options.rows > 100

    def plan(self, options: ListOptions, predicates: Sequence[Predicate]) -> Sequence[Any]:
        return [*range(options.rows), *predicates]

    def read(
        self, options: ListOptions, task: int, schema: pa.Schema, counters: Counters | None = None, *, tries: int = 0
    ) -> Iterator[pa.RecordBatch]:
        self.tries = tries
        yield pa.RecordBatch.from_pydict({"n": [task]}, schema=schema)

    ended: ClassVar[list[Any]] = []

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> ListOptions:
        return ListOptions(len(columns))

    def encoded(self, options: ListOptions) -> Sequence[str]:
        return ()

    def fit(self, options: ListOptions, schema: pa.Schema) -> ListOptions:
        return options

    def write(
        self,
        options: ListOptions,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> Any:
        return attempt, [(batch.schema.types, batch.to_pydict()) for batch in batches]

    def commit(self, options: ListOptions, reports: Sequence[Any]) -> None:
        self.ended.append(("commit", options, reports))

    def abort(self, options: ListOptions, reports: Sequence[Any]) -> None:
        self.ended.append(("abort", options, reports))


class ListDataSource(MQDataSource):
    format_name = "list"
    format = cached_property(lambda _: ListFormat())


# -- columns

MAP = MapType(StringType(), StringType())
KEY = StructType([*StructType().add("key", StringType()).add("value", BinaryType()), StructField("metadata", MAP)])
ENCRYPTION_CONTEXT = (
    StructType()
    .add("keys", ArrayType(KEY))
    .add("param", BinaryType())
    .add("algorithm", StringType())
    .add("compression", StringType())
    .add("uncompressed_size", LongType())
    .add("batch_size", IntegerType())
    .add("uuid", StringType())
    .add("chunk_id", IntegerType())
    .add("num_chunks", IntegerType())
)


def test_check_columns_accepts_each_column_in_each_of_its_types() -> None:
    kinds = {
        "binary": BinaryType(), "string": StringType(), "int": IntegerType(), "bigint": LongType(),
        "timestamp": TimestampType(), "map<string,string>": MapType(StringType(), StringType()),
        "struct<ledger_id:bigint,entry_id:bigint,batch_index:int>": MESSAGE_ID,
        COLUMNS.readable["encryption_context"][0]: ENCRYPTION_CONTEXT,
    }  # fmt: skip
    for column, types in COLUMNS.readable.items():
        for text in types:
            assert kinds[text].simpleString() == text
            check_columns(PulsarFormat(), schema_of(**{column: kinds[text]}))


# -- schemas


def test_default_schema_has_the_default_columns() -> None:
    assert PulsarNativeDataSource({}).schema() == schema_of(
        key=BinaryType(), value=BinaryType(), topic=StringType(), partition=IntegerType(), message_id=MESSAGE_ID,
        publish_time=TimestampType(), event_time=TimestampType(), properties=MapType(StringType(), StringType()),
    )  # fmt: skip


def test_arrow_schema_is_the_one_that_the_worker_compares(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker derives its schema from ours, and compares every batch with it if it compares batches."""
    made: list[pa.Schema] = []
    original = plan_data_source_read.to_arrow_schema

    def watched(*args: Any, **options: Any) -> pa.Schema:
        made.append(original(*args, **options))
        return made[-1]

    monkeypatch.setattr(plan_data_source_read, "to_arrow_schema", watched)
    schema = schema_of(
        value=BinaryType(), text=StringType(), at=TimestampType(), id=MESSAGE_ID, n=IntegerType(),
        properties=MapType(StringType(), StringType()),
    )  # fmt: skip
    ours = arrow_schema(schema)
    batch = pa.RecordBatch.from_pylist([], schema=ours)
    source = ListDataSource({})
    passed = list(plan_data_source_read.records_to_arrow_batches(iter([batch]), 10, schema, source))
    assert passed == [batch]
    assert made == [ours]
    assert ours.field("at").type == pa.timestamp("us", tz="UTC")
    assert str(made[0]) == str(ours)


def not_null(type_: DataType) -> StructType:
    return StructType([StructField("n", type_, nullable=False)])


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (not_null(LongType()), "n"),
        (schema_of(n=not_null(LongType())), "n.n"),
        (schema_of(n=ArrayType(not_null(LongType()))), "n[].n"),
        (schema_of(n=ArrayType(LongType(), containsNull=False)), "n[]"),
        (schema_of(n=MapType(not_null(LongType()), LongType(), valueContainsNull=False)), "n.key.n, n.value"),
    ],
)
def test_columns_must_allow_null(schema: StructType, path: str) -> None:
    with pytest.raises(OptionError, match=f": {re.escape(path)}: NOT NULL, but a message may lack it"):
        ListDataSource({}).reader(schema)


def test_a_timestamp_of_a_session_without_time_zones_is_explained() -> None:
    with pytest.raises(
        OptionError, match="publish_time is timestamp_ntz, expected timestamp; in a schema, timestamp_ltz"
    ):
        PulsarNativeDataSource(OPTIONS).reader(schema_of(publish_time=TimestampNTZType()))


def test_decodings_are_chosen_once_for_the_schema_and_the_reader():
    source = ListDataSource({"typed": "yes"})
    assert source.schema() == schema_of(n=ArrayType(StringType()))
    # As Spark passes it between processes.
    source = pickle.loads(cloudpickle.dumps(source))  # noqa: S301 - our own
    reader = source.reader(schema_of(n=ArrayType(StringType())))
    assert reader._options.typed == TypedRead(Encoding("string"))
    assert ListDataSource({}).schema() == schema_of(n=LongType())
    with pytest.raises(OptionError, match="column n is array<string>, expected bigint"):
        ListDataSource({}).reader(schema_of(n=ArrayType(StringType())))


# -- partitions and readers


def test_a_partition_survives_pickling_and_compares_by_value() -> None:
    one = MQPartition(
        PulsarRange(TopicPartition("persistent://public/default/t", 3), Position(1, 2), Position(4, 5, 6))
    )
    again = pickle.loads(pickle.dumps(one))  # noqa: S301 - our own
    assert again == one
    assert hash(again) == hash(one)
    assert again != MQPartition(None)
    assert isinstance(again, InputPartition)


def test_reader_plans_one_partition_a_range_and_reads_them() -> None:
    source = ListDataSource({"rows": "3"})
    reader = source.reader(schema_of(n=LongType()))
    partitions = reader.partitions()
    assert partitions == [MQPartition(n) for n in range(3)]
    assert isinstance(partitions, list)  # Spark requires a list
    assert [batch.to_pydict() for partition in partitions for batch in reader.read(partition)] == [
        {"n": [n]} for n in range(3)
    ]


def test_reader_passes_the_number_of_earlier_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ListDataSource({"rows": "1"}).reader(schema_of(n=LongType()))
    list(reader.read(MQPartition(0)))
    assert reader._format.tries == 0
    monkeypatch.setattr(base.TaskContext, "get", lambda: SimpleNamespace(attemptNumber=lambda: 2))
    list(reader.read(MQPartition(0)))
    assert reader._format.tries == 2


def test_a_stream_reader_remembers_the_start_of_the_next_trigger() -> None:
    """Releases before 4.2 do not pass it."""
    stream = SimpleNamespace(ranges=lambda *at: [at])
    reader = MQStreamReader(SimpleNamespace(name="list", open_stream=lambda _: stream), None, None)
    assert reader._begins_at is None
    assert reader.partitions({"n": 1}, {"n": 2}) == [MQPartition(({"n": 1}, {"n": 2}))]
    assert reader._begins_at == {"n": 2}


def test_the_empty_partition_that_spark_adds_has_no_rows() -> None:
    reader = ListDataSource({"rows": "0"}).reader(schema_of(n=LongType()))
    assert list(reader.partitions()) == []
    rows = reader.read(InputPartition(None))
    assert isinstance(rows, Iterator)  # Spark refuses an Iterable
    assert list(rows) == []


def test_reader_checks_options_before_columns() -> None:
    with pytest.raises(OptionError, match="did you mean topic"):
        PulsarNativeDataSource(OPTIONS | {"tpic": "u"}).reader(schema_of(valeu=BinaryType()))
    with pytest.raises(OptionError, match="column valeu is unknown"):
        PulsarNativeDataSource(OPTIONS).reader(schema_of(valeu=BinaryType()))


def test_source_and_reader_survive_cloudpickle() -> None:
    source = cloudpickle.loads(cloudpickle.dumps(PulsarNativeDataSource(OPTIONS | {"authtoken": "secret"})))
    assert source.options["authtoken"] == "secret"
    reader = cloudpickle.loads(cloudpickle.dumps(source.reader(schema_of(value=StringType()))))
    assert type(reader) is MQBatchReader
    assert reader._options == PulsarFormat().parse_options(OPTIONS | {"authtoken": "secret"})
    assert reader._schema == arrow_schema(schema_of(value=StringType()))
    assert cloudpickle.loads(cloudpickle.dumps(PulsarNativeDataSource)).name() == "pulsar-native"


# -- writing


class Context:
    """A substitute for Spark's `TaskContext`, which exists only in tasks."""

    def __init__(self, **properties: str) -> None:
        self._properties = properties

    def partitionId(self) -> int:  # noqa: N802 - Spark's name
        return 3

    def attemptNumber(self) -> int:  # noqa: N802 - Spark's name
        return 1

    def taskAttemptId(self) -> int:  # noqa: N802 - Spark's name
        return 77

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        return self._properties.get(key.replace(".", "_"))


def in_task(monkeypatch: pytest.MonkeyPatch, **properties: str) -> None:
    monkeypatch.setattr(base.TaskContext, "get", lambda: Context(**properties))


VALUE = schema_of(value=StringType())
STREAM = {"sql_streaming_queryId": "q", "streaming_sql_batchId": "9"}


def test_a_batch_is_one_job_for_all_of_its_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch)
    writer = ListDataSource({}).writer(VALUE, False)
    copies = [cloudpickle.loads(cloudpickle.dumps(writer)) for _ in range(2)]
    attempts = [copy.write(iter([])).report[0] for copy in copies]
    assert attempts == [TaskAttempt(attempts[0].job_id, None, 3, 1, 77)] * 2
    assert ListDataSource({}).writer(VALUE, False).write(iter([])).report[0].job_id != attempts[0].job_id


def test_a_stream_is_one_job_in_any_process(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch, **STREAM)
    for overwrite in (False, True):
        message = ListDataSource({}).streamWriter(VALUE, overwrite).write(iter([]))
        assert message.report[0] == TaskAttempt("q", 9, 3, 1, 77)
    assert pickle.loads(pickle.dumps(message)) == message  # noqa: S301 - our own
    # A batch that is written within foreachBatch has a number, and is a separate job.
    within = ListDataSource({}).writer(VALUE, False).write(iter([])).report[0]
    assert (within.batch_id, within.job_id != "q") == (9, True)


def test_a_stream_without_a_batch_number_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch)
    with pytest.raises(UnsupportedFeatureError, match="does not set the query and batch id"):
        ListDataSource({}).streamWriter(VALUE, False).write(iter([]))


def test_the_driver_commits_and_aborts_the_reports_of_tasks(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    ListFormat.ended.clear()
    messages = [MQCommit("a", Counters(rows=1)), None, MQCommit("b", Counters(rows=2))]
    for writer, batch in [
        (ListDataSource({}).writer(VALUE, False), ()),
        (ListDataSource({}).streamWriter(VALUE, False), (9,)),
    ]:
        writer.commit(messages, *batch)
        writer.abort(messages, *batch)
    assert ListFormat.ended == [(kind, ListOptions(1), ["a", "b"]) for kind in ("commit", "abort")] * 2
    assert [text.partition(" in ")[0] for text in caplog.messages] == ["list: wrote with 2 tasks: 3 rows"] * 2


def test_the_rows_of_a_task_that_spark_has_ended_are_aborted(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch)
    ListFormat.ended.clear()
    near, far = socket.socketpair()
    with near, far:
        monkeypatch.setattr(base, "connection_of_task", near.fileno)
        monkeypatch.setattr(base, "rows_while_running", lambda batches, _: batches)
        writer = ListDataSource({}).writer(VALUE, False)
        report = writer.write(iter([])).report
        assert ListFormat.ended == []
        # Between the end of the rows and the report.
        far.close()
        with pytest.raises(TaskEndedError):
            writer.write(iter([]))
    assert ListFormat.ended == [("abort", ListOptions(1), [report])]


def test_large_types_are_written_like_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    in_task(monkeypatch)
    batch = pa.record_batch([pa.array(["x", None], pa.large_string())], names=["value"])
    _, written = ListDataSource({}).writer(VALUE, False).write(iter([batch])).report
    assert written == [([pa.string()], {"value": ["x", None]})]


# -- pushdown


def test_only_a_reader_with_pushdown_enabled_takes_conditions() -> None:
    # Spark checks whether the class itself defines the method.
    assert "pushFilters" not in vars(MQBatchReader)
    assert "pushFilters" in vars(MQPushdownReader)
    assert type(ListDataSource({"rows": "1"}).reader(schema_of(n=LongType()))) is MQBatchReader


@needs_filters
def test_conditions_become_predicates_and_are_still_checked_by_spark() -> None:
    reader = ListDataSource({"rows": "101"}).reader(schema_of(n=LongType()))
    assert type(reader) is MQPushdownReader
    at = datetime.datetime(2013, 1, 1, 5, 15, 0, 123456)  # without a zone on purpose
    s = spark_datasource
    filters = [
        s.EqualTo(("n",), 1), s.LessThan(("n",), 2), s.LessThanOrEqual(("n",), 3), s.GreaterThan(("n",), 4),
        s.GreaterThanOrEqual(("publish_time",), at), s.In(("n",), (5, 6)),
        s.EqualTo(("message_id", "ledger_id"), 7), s.IsNotNull(("n",)), s.Not(s.EqualTo(("n",), 8)),
        s.EqualNullSafe(("n",), 9), s.StringStartsWith(("topic",), "x"),
    ]  # fmt: skip
    assert list(reader.pushFilters(filters)) == filters
    expected = [
        Predicate("n", "=", 1), Predicate("n", "<", 2), Predicate("n", "<=", 3), Predicate("n", ">", 4),
        Predicate("publish_time", ">=", at.replace(tzinfo=datetime.timezone.utc)), Predicate("n", "in", (5, 6)),
    ]  # fmt: skip
    assert [partition.value for partition in reader.partitions()[101:]] == expected


def test_pushdown_without_support_in_spark_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "FILTER_OPERATORS", {})
    with pytest.raises(UnsupportedFeatureError, match=r"pushdown=true needs Spark 4\.1 or newer; remove this option"):
        PulsarNativeDataSource(OPTIONS | {"pushdown": "true"}).reader(schema_of(value=BinaryType()))


# -- the package


def run_in_a_new_process(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_package_imports_pyspark_only_for_a_data_source() -> None:
    program = (
        "import sys, spark_mq_source\n"
        "spark_mq_source.OptionError, spark_mq_source.implementation\n"
        "assert not {'pyspark', 'py4j'} & set(sys.modules), 'pyspark was imported'\n"
        "spark_mq_source.PulsarNativeDataSource\n"
        "assert 'pyspark' in sys.modules and 'pandas' not in sys.modules\n"
    )
    run_in_a_new_process(program)


@pytest.mark.parametrize("comes_while_closing", [False, True])
def test_the_end_of_a_query_closes_its_stream(comes_while_closing: bool) -> None:
    program = (
        "__name__ = 'pyspark.sql.streaming.python_streaming_source_runner'\n"
        "import os, signal, pyarrow as pa\n"
        "from types import SimpleNamespace\n"
        "from spark_mq_source.spark.base import MQStreamReader\n"
        "end = lambda: os.kill(os.getpid(), signal.SIGTERM)\n"
        f"close = lambda: ({comes_while_closing} and end(), print('closed', flush=True))\n"
        "stream = SimpleNamespace(close=close)\n"
        "reader = MQStreamReader(SimpleNamespace(open_stream=lambda options: stream), None, pa.schema([]))\n"
        "assert reader.stream is stream\n"
        "try:\n"
        f"    {comes_while_closing} or (end(), signal.pause())\n"
        "finally:\n"
        "    reader.stop()\n"
    )
    assert run_in_a_new_process(program) == "closed\n"


def test_spark_finds_and_makes_a_source_without_its_format() -> None:
    program = (
        "import sys, pyspark_nsq, pyspark_pulsar_native, pyspark_tubemq\n"
        "for module in (pyspark_nsq, pyspark_pulsar_native, pyspark_tubemq):\n"
        "    module.DefaultSource.name(), module.DefaultSource({})\n"
        "found = [name for name in sys.modules if name.startswith('spark_mq_source.') and name.endswith('.format')]\n"
        "assert found == [], found\n"
    )
    run_in_a_new_process(program)


def test_a_worker_imports_a_format_without_garbage_collections_and_rarely_used_modules() -> None:
    program = (
        "import gc, socket, sys\n"
        "__name__, (connection, _) = 'pyspark.worker', socket.socketpair()\n"
        "import spark_mq_source.spark.base\n"
        "assert gc.get_freeze_count() > 0\n"
        "import spark_mq_source.pulsar.format\n"
        "found = {'pyarrow.compute', 'cryptography', 'obstore', 'urllib3', 'zstandard'} & set(sys.modules)\n"
        "assert not found, found\n"
    )
    run_in_a_new_process(program)


def test_exactly_the_public_names_are_exported() -> None:
    for name in spark_mq_source.__all__:
        assert getattr(spark_mq_source, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        spark_mq_source.Nonsense  # noqa: B018 - the look-up is the test
