"""Typed columns: flights as Avro, JSON and protobuf, read by their registered schemas, beside other decoders.

Each way reads the same messages from the broker and makes the twelve fields of each, or three of them. Spark's own
functions and the plain loops get their bytes from our reader, which is the fastest source of them here.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Final, cast

import fastavro
import pyarrow as pa
import pyspark
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from bench import avro, loops, protobuf
from bench.avro import THREE
from bench.engine import VALUE_ONLY, AnyEngine, Engine, Job, Sample, timed
from bench.pulsar_broker import NAMESPACE, WARM_UP_READS, Broker, create_topic, publish_values
from bench.runner import Case, Contender, UnavailableError, here
from bench.sources import OURS
from bench.values import make_flights
from spark_mq_source.core.sql_types import arrow_type_of_ddl
from spark_mq_source.pulsar.protocol.commands import Schema, SchemaType

LABEL: Final = "pulsar-native"
MESSAGES: Final = 1_000_000

WARM_UP_RUNS: Final = 4
"""Runs of each contender in Spark: a run takes a second, and Spark's JVM compiles during several of them."""

FIELDS: Final = {
    "year": "int",
    "month": "int",
    "day": "int",
    "dep_delay": "double",
    "arr_delay": "double",
    "carrier": "string",
    "flight": "int",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "distance": "double",
    "time_hour": "timestamp",
}

CONNECTORS: Final = (pyspark.__version__, "4.1.1")
"""Releases of Spark's own connectors; the first one in Maven Central is used. That of 4.1.1 runs on 4.3.0:
Avro's decoder is a part of Spark itself there, and the connector only calls it."""


@dataclass(frozen=True)
class _Format:
    """One encoding of flights.

    Attributes:
        schema: the schema in the registry.
        values: different ones, which are sent in turn.
        decode: the function that a program in Python would call for each message.
        connector: of Spark, without which it does not decode this; empty for none.
        expression: Spark's own way to decode the column `value` to these fields, as SQL.
    """

    schema: Schema
    values: Sequence[bytes]
    decode: Callable[[bytes], object]
    connector: str
    expression: Callable[[Collection[str]], str]


def typed(broker: Broker) -> Iterator[Case]:
    """Yield a case for each encoding."""
    for name, make in (("Avro", _avro), ("JSON", _json), ("protobuf", _protobuf)):
        yield _Typed(broker, name, make, broker.setup.scaled(MESSAGES)).case()


def columns(names: Collection[str]) -> str:
    """Return the column `value` with these fields, as SQL.

    Example:
        >>> columns(("carrier", "year"))
        'value struct<year:int,carrier:string>'
    """
    return f"value struct<{','.join(f'{name}:{type_}' for name, type_ in FIELDS.items() if name in names)}>"


class _Typed:
    """One encoding in a topic."""

    def __init__(self, broker: Broker, name: str, make: Callable[[Path], _Format], messages: int) -> None:
        self._broker = broker
        self._name = name
        self._make = make
        self._messages = messages
        self._topic = f"persistent://{NAMESPACE}/flights-{name.lower()}-n{messages}"

    @cached_property
    def _format(self) -> _Format:
        # Not before the case needs it.
        return self._make(self._broker.setup.folder)

    def case(self) -> Case:
        all_, three = tuple(FIELDS), THREE
        warm = WARM_UP_RUNS
        contenders = (
            Contender("ours", LABEL, "ours", partial(self._ours, all_), warm=warm),
            Contender("null", "null source", "limit", partial(self._null, all_), warm=warm),
            Contender("raw", "raw value", "limit", self._raw, warm=warm),
            Contender("alone", "without Spark", "ours", here(self._alone, all_)),
            Contender("spark", "Spark's own", "peer", partial(self._spark, all_), warm=warm),
            Contender("loop", "plain loop", "peer", here(self._loop)),
            Contender("ours_three", "three columns", "ours", partial(self._ours, three), warm=warm),
            Contender("null_three", "null source", "limit", partial(self._null, three), "ours_three", warm),
            Contender("spark_three", "Spark's own", "peer", partial(self._spark, three), "ours_three", warm),
        )
        return Case("typed", self._name, contenders, prepare=self._prepare)

    def _prepare(self) -> None:
        if create_topic(self._broker.standalone.admin_url, self._topic, 1):
            publish_values(self._broker.address, self._topic, self._format.values, self._format.schema, self._messages)
            os.sync()
        for _ in range(WARM_UP_READS):
            self._read(self._raw_job())

    def _job(self, names: Collection[str]) -> Job:
        options = self._broker.options(self._topic) | {"valueFormat": "auto"}
        return Job("read", "pulsar-native", options, self._messages, columns(names))

    def _ours(self, names: Collection[str], engine: AnyEngine) -> Sample:
        return engine.run(self._job(names))

    def _raw(self, engine: AnyEngine) -> Sample:
        return engine.run(self._raw_job())

    def _raw_job(self) -> Job:
        return Job("read", "pulsar-native", self._broker.options(self._topic), self._messages, VALUE_ONLY)

    def _null(self, names: Collection[str], engine: AnyEngine) -> Sample:
        job = self._job(names)
        path = self._broker.setup.folder / f"null-{self._topic.rpartition('/')[2]}-{len(names)}.arrow"
        self._broker.keep_batches(path, job.options, job.columns)
        given = {"batches": str(path), "rows": str(self._messages), "partitions": "1"}
        return engine.run(replace(job, format="bench-null", options=given))

    def _spark(self, names: Collection[str], engine: AnyEngine) -> Sample:
        if self._format.connector:
            _load_connector(self._broker.setup.engine, self._format.connector)
        return engine.run(replace(self._raw_job(), select=f"{self._format.expression(names)} AS value"))

    def _alone(self, names: Collection[str]) -> Sample:
        return timed(self._messages, partial(self._read, self._job(names)))

    def _loop(self) -> Sample:
        decode = self._format.decode

        def work() -> None:
            for batch in self._batches(self._raw_job()):
                for value in batch.column(0).to_pylist():
                    decode(value)

        return timed(self._messages, work)

    def _read(self, job: Job) -> None:
        for _ in self._batches(job):
            pass

    def _batches(self, job: Job) -> Iterator[pa.RecordBatch]:
        format_ = OURS[job.format]({}).format
        schema = pa.schema(arrow_type_of_ddl(f"{job.columns}"))
        options = format_.fit_read(format_.parse_options(dict(job.options)), schema)
        (task,) = format_.plan(options, ())
        return cast("Iterator[pa.RecordBatch]", format_.read(options, task, schema))


_loaded: dict[str, str] = {}


def _load_connector(engine: Engine, name: str) -> None:
    """Load one of Spark's connectors into the session, by its Maven coordinates.

    Raises:
        UnavailableError: Maven Central has none.
    """
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

    spark = engine.session(1)
    application = spark.sparkContext.applicationId
    if _loaded.get(name) == application:
        return
    for release in CONNECTORS:
        with contextlib.suppress(Py4JJavaError):
            spark.sql(f"ADD JAR ivy://org.apache.spark:{name}_2.13:{release}?transitive=false")
            _loaded[name] = application
            return
    raise UnavailableError(f"Maven Central has no {name} of {' or '.join(CONNECTORS)} for Scala 2.13")


def _avro(_folder: Path) -> _Format:
    schema = fastavro.parse_schema(avro.SCHEMA)

    def expression(names: Collection[str]) -> str:
        fields = [field for field in avro.SCHEMA["fields"] if field["name"] in names]
        options = f"'avroSchema', '{json.dumps(avro.SCHEMA | {'fields': fields})}'" if len(names) < len(FIELDS) else ""
        return f"from_avro(value, '{json.dumps(avro.SCHEMA)}', map({options}))"

    return _Format(
        _registered(SchemaType.AVRO),
        avro.flights(),
        lambda value: fastavro.schemaless_reader(io.BytesIO(value), schema),
        "spark-avro",
        expression,
    )


def _json(_folder: Path) -> _Format:
    def expression(names: Collection[str]) -> str:
        # Spark reads a number as seconds; milliseconds unchanged save it the conversion.
        ddl = columns(names).removeprefix("value ").replace("timestamp", "bigint")
        return f"from_json(CAST(value AS STRING), '{ddl}')"

    values = [json.dumps(flight, separators=(",", ":")).encode() for flight in make_flights(loops.ROWS)]
    return _Format(_registered(SchemaType.JSON), values, json.loads, "", expression)


def _protobuf(folder: Path) -> _Format:
    make, values = protobuf.flights()
    names = list(protobuf.FIELDS)

    def decode(value: bytes) -> object:
        message = make.FromString(value)
        return [
            None if name in protobuf.NULLABLE and not message.HasField(name) else getattr(message, name)
            for name in names
        ]

    def expression(names: Collection[str]) -> str:
        files = protobuf.files(names)
        path = folder / f"flight-{len(names)}.desc"
        path.write_bytes(FileDescriptorSet(file=files).SerializeToString())
        return f"from_protobuf(value, '{protobuf.MESSAGE}', '{path}', map())"

    definition = {
        "fileDescriptorSet": base64.b64encode(FileDescriptorSet(file=protobuf.files()).SerializeToString()).decode(),
        "rootMessageTypeName": protobuf.MESSAGE,
        "rootFileDescriptorName": "flight.proto",
    }
    schema = Schema("flight", json.dumps(definition).encode(), SchemaType.PROTOBUF_NATIVE)
    return _Format(schema, values, decode, "spark-protobuf", expression)


def _registered(kind: SchemaType) -> Schema:
    """Return the schema of a definition in Avro's JSON."""
    return Schema("flight", json.dumps(avro.SCHEMA).encode(), kind)
