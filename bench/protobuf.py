"""Rates of decoding protobuf messages to Arrow arrays, and of encoding them: no broker, no network, no Spark.

    python -m bench protobuf [--seconds 0.3] [--repeats 5]

Prints messages per second of processor time (the median of the rounds, and the best), and ns a message, of 10,000
flights with twelve fields: ours with all columns and with three, beside protobuf's runtime (upb, in C): its
parser alone, and a loop that reads each field and makes an Arrow array of each column. Of writing, ours.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any, Final

import pyarrow as pa
from google.protobuf import timestamp_pb2
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from bench.loops import ROWS, Run, run_of
from bench.values import make_flights
from spark_mq_source.values.protobuf.decode import arrow_type_of, protobuf_decoder
from spark_mq_source.values.protobuf.encode import protobuf_encoder

FIELDS: Final = {
    "year": "int32",
    "month": "int32",
    "day": "int32",
    "dep_delay": "double",
    "arr_delay": "double",
    "carrier": "string",
    "flight": "int32",
    "tailnum": "string",
    "origin": "string",
    "dest": "string",
    "distance": "double",
    "time_hour": "google.protobuf.Timestamp",
}
NULLABLE: Final = ("dep_delay", "arr_delay", "tailnum")
THREE: Final = ("carrier", "dep_delay", "time_hour")
MESSAGE: Final = "air.Flight"


def files(names: Collection[str] = tuple(FIELDS)) -> list[FileDescriptorProto]:
    """Return the descriptors of a flight (proto3; the fields that may be null are optional) and of its imports.

    Args:
        names: its fields.
    """
    timestamp = FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    file = FileDescriptorProto(name="flight.proto", package="air", syntax="proto3", dependency=[timestamp.name])
    message = file.message_type.add(name="Flight")
    for number, (name, kind) in enumerate(FIELDS.items(), 1):
        if name not in names:
            continue
        field = message.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
        if "." in kind:
            field.type = FieldDescriptorProto.TYPE_MESSAGE
            field.type_name = f".{kind}"
        else:
            field.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
        if name in NULLABLE:
            field.proto3_optional = True
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")
    return [timestamp, file]


def flights() -> tuple[type[Any], list[bytes]]:
    """Return the runtime's class of a flight, and flights as protobuf."""
    pool = DescriptorPool()
    for file in files():
        pool.AddSerializedFile(file.SerializeToString())
    make = GetMessageClass(pool.FindMessageTypeByName(MESSAGE))
    values = []
    for flight in make_flights(ROWS):
        time = flight.pop("time_hour")
        message: Any = make(**{name: value for name, value in flight.items() if value is not None})
        message.time_hour.FromMilliseconds(time)
        values.append(message.SerializeToString())
    return make, values


def runs() -> Iterator[tuple[str, Run]]:
    """Yield our runs and those of the runtime."""
    make, values = flights()
    payloads = pa.array(values, pa.binary())
    descriptors = FileDescriptorSet(file=files()).SerializeToString()
    whole = arrow_type_of(descriptors, MESSAGE)
    three = pa.struct([whole.field(name) for name in THREE])
    for columns, type_ in (("all columns", whole), ("three columns", three)):
        decoder = protobuf_decoder(descriptors, MESSAGE, type_)
        yield f"ours, {columns}", run_of(partial(decoder.decode, payloads))
    rows = protobuf_decoder(descriptors, MESSAGE, whole).decode(payloads).values
    yield "ours, written", run_of(partial(protobuf_encoder(rows.type, descriptors, MESSAGE), rows))
    yield "upb, a message a value", run_of(lambda: [make.FromString(value) for value in values])
    for columns, type_ in (("all columns", whole), ("three columns", three)):
        yield f"upb, {columns} as Arrow arrays", run_of(partial(_read, make, values, type_))


def _read(make: type[Any], values: list[bytes], type_: pa.StructType) -> pa.Array:
    names = [field.name for field in type_]
    columns: list[list[object]] = [[] for _ in names]
    for value in values:
        message = make.FromString(value)
        for name, column in zip(names, columns, strict=True):
            if name in NULLABLE and not message.HasField(name):
                column.append(None)
            elif name == "time_hour":
                column.append(message.time_hour.seconds * 1_000_000 + message.time_hour.nanos // 1000)
            else:
                column.append(getattr(message, name))
    arrays = [pa.array(column, field.type) for column, field in zip(columns, type_, strict=True)]
    return pa.StructArray.from_arrays(arrays, names)
