"""`pulsar-native`: the interface for Spark and the command line."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from spark_mq_source.base_format import BaseFormat
from spark_mq_source.core.columns import CORRUPT, ERROR, VALUE
from spark_mq_source.core.errors import BrokerError, OptionError
from spark_mq_source.core.options import READ, fields_of
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.core.shared_options import DrainOptions
from spark_mq_source.pulsar.client.client import PulsarClient
from spark_mq_source.pulsar.client.failover import on_available_cluster
from spark_mq_source.pulsar.inspector import PulsarInspector
from spark_mq_source.pulsar.offsets import count_lag
from spark_mq_source.pulsar.options import PULSAR_SPARK, AckMode, PulsarOptions
from spark_mq_source.pulsar.options.queue import QueueOptions, SubscriptionOptions
from spark_mq_source.pulsar.payload.columns import COLUMNS
from spark_mq_source.pulsar.payload.spark_columns import PUBLISH_TIME, TOPIC, SparkRows, SparkWrite, default_columns
from spark_mq_source.pulsar.pulsar_spark import from_pulsar_spark
from spark_mq_source.pulsar.read.letters import LETTER_FORM
from spark_mq_source.pulsar.read.offloaded import read_offloaded
from spark_mq_source.pulsar.read.planner import check_dead_letter_topic, plan_batch, topics_of
from spark_mq_source.pulsar.read.queue_reader import PulsarQueueRange, read_queue
from spark_mq_source.pulsar.read.queue_stream import PulsarQueueStream, plan_queue
from spark_mq_source.pulsar.read.reader import PulsarRange, read_range
from spark_mq_source.pulsar.read.schemas import check_needs_no_schema, fetch_version, registered_read
from spark_mq_source.pulsar.read.stream import PulsarStream
from spark_mq_source.pulsar.write.transactions import abort_transactions, commit_transactions
from spark_mq_source.pulsar.write.values import check_raw_values, check_topic_partitions, with_registered, write_of
from spark_mq_source.pulsar.write.writer import PulsarWriter, WriteReport
from spark_mq_source.values.encodings import TypedRead, TypedWrite, type_of
from spark_mq_source.values.options import AUTO, RAW

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import pyarrow as pa

    from spark_mq_source.core.counters import Counters
    from spark_mq_source.core.ports import Predicate, Stream
    from spark_mq_source.pulsar.offsets import TopicPartition
    from spark_mq_source.values.rows import SchemaLookup


AnyRange = PulsarRange | PulsarQueueRange
"""The work of one task: a range of positions, or messages of a queue."""


class PulsarFormat(BaseFormat[PulsarOptions, AnyRange, WriteReport]):
    """Apache Pulsar."""

    name = "pulsar-native"
    has_namespaces = True
    columns = COLUMNS
    writer_type = PulsarWriter
    inspector_type = PulsarInspector
    options_type = PulsarOptions
    raw_errors = (CORRUPT, ERROR)
    count_lag = staticmethod(count_lag)
    from_pulsar_spark = staticmethod(from_pulsar_spark)

    def wants_pushdown(self, options: PulsarOptions) -> bool:
        """Return the option `pushdown`."""
        return options.pushdown

    def has_other_columns(self, options: PulsarOptions) -> bool:
        """Return whether the columns are those of pulsar-spark."""
        return options.columns == PULSAR_SPARK

    def parse_write_options(self, options: Mapping[str, str], columns: Sequence[str]) -> PulsarOptions:
        """Parse the options of a write; an option or a column must provide the topic."""
        names = ["topic" if name == TOPIC else name for name in columns]
        parsed = super().parse_write_options(options, names)
        return with_registered(parsed, names) if parsed.value_format == AUTO else parsed

    def encoded(self, options: PulsarOptions) -> Collection[str]:
        """Return the columns that are encoded; `fit` checks the value of a topic without schema."""
        without_schema = options.value_format == AUTO and options.encoded is None
        return (VALUE,) if without_schema else super().encoded(options)

    def fit(self, options: PulsarOptions, schema: pa.Schema) -> PulsarOptions:
        """Return the options, with the encodings of columns of these types.

        Raises:
            OptionError: a column cannot be written with these options.
        """
        if self.has_other_columns(options):
            with self._option_errors(OptionError):
                rows = SparkWrite(schema, has_topic=options.topic is not None)
            schema = rows.native
            if options.value_format == RAW:
                definition = None if rows.definition is None else rows.definition.encode()
                options = replace(options, value_format=rows.value_format, value_schema=definition)
        check_topic_partitions(options)
        with self._option_errors(OptionError):
            check_raw_values(options, schema.field("value").type)
        try:
            return super().fit(options, schema)
        except OptionError as error:
            if options.value_format != AUTO:
                raise
            raise error.with_remedy(f"; valueFormat=auto: by the newest schema of {options.topic}") from error

    def fit_read(self, options: PulsarOptions, schema: pa.Schema, typed: TypedRead | None = None) -> PulsarOptions:
        """Return the options of a read of these columns, with their encodings.

        Raises:
            OptionError: with `valueFormat=auto`: the columns need a schema, and the topics have none.
        """
        # Planning and all tasks are on one cluster.
        options = on_available_cluster(options)
        typed = typed or self._typed_read(options)
        if self.has_other_columns(options):
            with self._option_errors(OptionError):
                schema = SparkRows(schema, _value_type(typed)).native
        if options.value_format == AUTO and typed is not None and typed.value is None:
            check_needs_no_schema(options, schema)
        return super().fit_read(options, schema, typed)

    def columns_by_default(self, options: Mapping[str, str]) -> tuple[pa.Schema, TypedRead | None]:
        """Return the columns of a batch or stream with these options, and the decoding."""
        columns, typed = super().columns_by_default(options)
        if self._names_pulsar_spark(options):
            with self._option_errors(OptionError):
                columns = default_columns(_value_type(typed))
        return columns, typed

    def _is_raw(self, options: Mapping[str, str]) -> bool:
        return super()._is_raw(options) and not self._names_pulsar_spark(options)

    @staticmethod
    def _names_pulsar_spark(options: Mapping[str, str]) -> bool:
        return any((name.lower(), text.lower()) == ("columns", PULSAR_SPARK) for name, text in options.items())

    def read(
        self,
        options: PulsarOptions,
        task: AnyRange,
        schema: pa.Schema,
        counters: Counters | None = None,
        *,
        tries: int = 0,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one range, decoded, in the columns of the option `columns`."""
        if not self.has_other_columns(options):
            return super().read(options, task, schema, counters, tries=tries)
        rows = SparkRows(schema, _value_type(options.typed))
        batches = super().read(options, task, rows.native, counters, tries=tries)
        return self._as_pulsar_spark(rows, batches, task.topic_partition)

    def _as_pulsar_spark(
        self, rows: SparkRows, batches: Iterator[pa.RecordBatch], topic_partition: TopicPartition
    ) -> Iterator[pa.RecordBatch]:
        try:
            for batch in batches:
                yield rows.take(batch, topic_partition)
        finally:
            if isinstance(batches, Generator):
                batches.close()

    def write(
        self,
        options: PulsarOptions,
        batches: Iterator[pa.RecordBatch],
        attempt: TaskAttempt,
        counters: Counters | None = None,
    ) -> WriteReport:
        """Encode and write the rows of one task, in the columns of the option `columns`."""
        if self.has_other_columns(options):
            has_topic = options.topic is not None
            batches = (SparkWrite(batch.schema, has_topic=has_topic).take(batch) for batch in batches)
        return super().write(options, batches, attempt, counters)

    def _typed_write(self, options: PulsarOptions) -> TypedWrite | None:
        with self._option_errors(prefix="valueSchema: "):
            return write_of(options)

    def _typed_read(self, options: PulsarOptions) -> TypedRead | None:
        """Return the encodings of a read; with `valueFormat=auto`, from the schema of its topics."""
        if options.value_format != AUTO:
            return super()._typed_read(options)
        return registered_read(options)

    def _schema_lookup(self, options: PulsarOptions, task: AnyRange) -> SchemaLookup:
        return partial(fetch_version, options, task.topic_partition.topic)

    _dead_letter_form = LETTER_FORM

    def _dead_letter_writer(self, options: PulsarOptions, counters: Counters) -> PulsarWriter:
        # A message within the broker's size limit may exceed it with the properties of a dead letter.
        return PulsarWriter(replace(options, chunking=True), TaskAttempt("dead letters"), counters)

    def _letter_writer(self, options: PulsarOptions, topic: str, counters: Counters) -> PulsarWriter:
        return self._dead_letter_writer(replace(options, topic=topic), counters)

    def _parsed_to_look(self, options: Mapping[str, str]) -> PulsarOptions:
        """Return the options of a read; a queue's return its messages and end after 2 s without a message."""
        unused = {"waldir", "runid", "columns"}
        if "subscriptiontype" in options:
            # A preview neither puts off nor gives up messages.
            unused |= {"retrytopic", "nackdelay", "nackmaxdelay", "maxredelivercount", "onmaxredeliver"}
            if options.get("oncorrupt", "").lower() != "deadletter":
                unused |= {"deadlettertopic", "createtopic"}
        given = {name: text for name, text in options.items() if name not in unused}
        if "subscriptiontype" in given:
            ends = {"maxrows", "maxseconds", "idletimeout"} & given.keys()
            stores_nothing = any("non-persistent://" in given.get(name, "") for name in ("topic", "topics"))
            given |= ({} if stores_nothing else {"ackmode": "nack"}) | ({} if ends else {"idletimeout": "2s"})
        return PulsarOptions.from_spark(given, READ)

    _every_topic = {"topicspattern": ".*"}  # noqa: RUF012 - never changed

    def parse_tail_options(self, options: Mapping[str, str]) -> PulsarOptions:
        """Return the options of a read of the newest messages by position, without the options of queues."""
        groups = (SubscriptionOptions, QueueOptions, DrainOptions)
        unused = {PulsarOptions.name_of(field).lower() for group in groups for field in fields_of(group)}
        return super().parse_tail_options({name: text for name, text in options.items() if name not in unused})

    def plan_look(self, options: PulsarOptions) -> Sequence[AnyRange]:
        """Return the plan of a read, without creating the subscription of a queue.

        Raises:
            OptionError: a queue's topic is non-persistent, so messages shown here would be lost for others.
            BrokerError: the subscription does not exist.
        """
        if options.subscription_type is None:
            return super().plan_look(options)
        if options.live_topics:
            raise OptionError(
                f"pulsar-native: {', '.join(options.live_topics)}: a non-persistent topic stores nothing, so looking "
                "at a message would take it from the other consumers"
            )
        with PulsarClient(options, role="spark-mq") as client:
            partitions = client.fetch_partitions(topics_of(client, options))
            found = client.fetch_subscribed(partitions, options.subscription or "")
        missing = [str(tp) for tp in partitions if tp not in found]
        if missing:
            raise BrokerError(
                f"pulsar-native: {', '.join(missing)}: there is no durable subscription {options.subscription}, and "
                "looking at a queue creates none"
            )
        return super().plan_look(options)

    def plan(self, options: PulsarOptions, predicates: Sequence[Predicate]) -> Sequence[AnyRange]:
        """See `plan_batch`; a missing dead letter topic is an error, or is created."""
        check_dead_letter_topic(options)
        if options.subscription_type is not None:
            return plan_queue(options)
        if self.has_other_columns(options):
            # A field of the value may have the name of one of our columns.
            predicates = [replace(one, column="publish_time") for one in predicates if one.column == PUBLISH_TIME]
        return plan_batch(options, predicates)

    def reads_ahead(self, task: AnyRange) -> bool:
        """See `BaseFormat`; true for ranges of the object store."""
        return isinstance(task, PulsarRange) and bool(task.ledgers)

    def read_raw(
        self, options: PulsarOptions, task: AnyRange, schema: pa.Schema, counters: Counters, tries: int
    ) -> Iterator[pa.RecordBatch]:
        """See `read_range`, `read_offloaded` and `read_queue`; every attempt at a range reads the same rows.

        Raises:
            DataLossError: an earlier attempt may have acknowledged messages whose rows are lost.
        """
        if isinstance(task, PulsarRange):
            return (read_offloaded if task.ledgers else read_range)(options, task, schema, counters)
        if options.ack_mode is not AckMode.NACK:
            task.check_attempt(f"pulsar-native: reading {task}", tries)
        open_writer = partial(self._letter_writer, options)
        return read_queue(options, task, schema, counters, open_writer=open_writer, tries=tries)

    def commit(self, options: PulsarOptions, reports: Sequence[WriteReport]) -> None:
        """See `commit_transactions`; without transactions the rows of a finished task are already visible."""
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions:
            commit_transactions(options, transactions)

    def abort(self, options: PulsarOptions, reports: Sequence[WriteReport]) -> None:
        """See `abort_transactions`; without transactions the rows of a finished task stay."""
        transactions = [report.transaction for report in reports if report.transaction is not None]
        if transactions:
            abort_transactions(options, transactions)

    def open_stream(self, options: PulsarOptions) -> Stream[AnyRange]:
        """See `PulsarStream` and `PulsarQueueStream`; a missing dead letter topic is an error, or is created."""
        check_dead_letter_topic(options)
        return PulsarStream(options) if options.wal_dir is None else PulsarQueueStream(options)


def _value_type(typed: TypedRead | None) -> pa.DataType:
    """Return the type of a decoded value, for the columns of pulsar-spark.

    Raises:
        OptionError: keys are decoded too, so they are not `__key`.
    """
    if typed is not None and typed.is_packed:
        raise OptionError("columns=pulsar-spark: its rows are messages, not the records of valueFormat=inlong")
    if typed is not None and (typed.key is not None or typed.is_inline):
        raise OptionError(
            "columns=pulsar-spark: the topic's KEY_VALUE schema says how keys are encoded, which pulsar-spark does not "
            "read: remove this option"
        )
    return type_of(None if typed is None else typed.value)
