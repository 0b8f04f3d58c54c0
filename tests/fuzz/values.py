"""Targets for the decoders and encoders of values: sessions that decode payloads of random schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from random import Random

import pyarrow as pa

from spark_mq_source.core.implementation import Implementation
from spark_mq_source.values import _pairs_python
from spark_mq_source.values.avro.decode import arrow_type_of, avro_decoder
from spark_mq_source.values.avro.encode import avro_encoder
from spark_mq_source.values.decoder import Decoded, ValueDecoder
from spark_mq_source.values.json.decode import json_decoder
from spark_mq_source.values.protobuf.decode import arrow_type_of as protobuf_type_of
from spark_mq_source.values.protobuf.decode import protobuf_decoder
from spark_mq_source.values.protobuf.encode import protobuf_encoder
from tests.fuzz import directed_avro, directed_json
from tests.oracles import avro, protobuf
from tests.oracles.arrays import cells

PAYLOADS = 12
# Seeds of schemas with many fields and without recursion.
AVRO = [directed_avro.random_root(Random(seed), []) for seed in (0, 8, 10, 11)]
JSON = [
    directed_json.with_definition(Random(seed), directed_json.random_struct(Random(seed), 3)) for seed in (5, 7, 9, 11)
]
PROTOBUF = [protobuf.random_schema(Random(seed)) for seed in (3, 6, 17, 27)]


def avro_values() -> Iterator[bytes]:
    """Yield Avro values, after a byte with the number of their schema."""
    rng = Random(1)
    for number, schema in enumerate(AVRO):
        yield from (bytes([number]) + avro.random_value(rng, schema) for _ in range(PAYLOADS))


def json_values() -> Iterator[bytes]:
    """Yield JSON, after a byte with the number of its type."""
    rng = Random(1)
    for number, (shape, _) in enumerate(JSON):
        for _ in range(PAYLOADS):
            text = directed_json.Writer(rng).value(shape)
            yield bytes([number]) + text.encode(errors="surrogatepass")


def protobuf_values() -> Iterator[bytes]:
    """Yield messages, after a byte with the number of their schema."""
    rng = Random(1)
    for number, one in enumerate(PROTOBUF):
        yield from (bytes([number]) + protobuf.random_bytes_of(rng, one.descriptor) for _ in range(PAYLOADS))


def pairs() -> Iterator[bytes]:
    """Yield keys and values, after a byte that is ignored."""
    parts = [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\3key", b"\0\0\1\0" + bytes(256)]
    yield from (b"\0" + key + value for key in parts for value in parts)


class Outcome:
    """Decoded values; equal if all cells and reasons are equal, with NaN equal to NaN."""

    def __init__(self, decoded: Decoded) -> None:
        decoded.values.validate(full=True)
        self.decoded = decoded

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Outcome) or dict(self.decoded.reasons) != dict(other.decoded.reasons):
            return False
        ours, theirs = self.decoded.values, other.decoded.values
        return ours.type == theirs.type and (ours == theirs or cells(ours) == cells(theirs))

    def __hash__(self) -> int:
        return len(self.decoded.values)

    def __repr__(self) -> str:
        return repr(self.decoded)


class ValueDecoding:
    """A session whose input is a byte with the number of the decoder, and a payload."""

    def __init__(self, decoders: Iterable[ValueDecoder]) -> None:
        self.decoders = list(decoders)

    def feed(self, data: memoryview) -> object:
        return Outcome(self.decode(data))

    def decode(self, data: memoryview) -> Decoded:
        decoder = self.decoders[data[0] % len(self.decoders) if data else 0]
        payload = data[1:]
        # In the memory of the input, so that the sanitizer detects a read beyond it.
        buffers = [None, pa.array([0, len(payload)], pa.int32()).buffers()[1], pa.py_buffer(payload)]
        return decoder.decode(pa.Array.from_buffers(pa.binary(), 1, buffers))

    def finish(self) -> object:
        return None


class ValueEncoding(ValueDecoding):
    """A session that encodes the values of an input again, and reads them back."""

    def encode(self, number: int, values: pa.Array) -> pa.Array:
        raise NotImplementedError

    def feed(self, data: memoryview) -> object:
        number = data[0] % len(self.decoders) if data else 0
        values = self.decode(data).values
        written = self.encode(number, values)
        written.validate(full=True)
        assert Outcome(self.decoders[number].decode(written)) == Outcome(Decoded(values, {}))
        return written.to_pylist()


def avro_decoding(seed: int, _implementation: str) -> ValueDecoding:
    rng = Random(seed)
    is_whole = rng.random() < 0.5
    decoders = []
    for schema in AVRO:
        whole = avro.spark_type(schema)
        decoders.append(avro_decoder(json.dumps(schema), whole if is_whole else avro.random_part(rng, whole)))
    return ValueDecoding(decoders)


def json_decoding(seed: int, implementation: str) -> ValueDecoding:
    rng = Random(seed)
    is_whole = rng.random() < 0.5
    decoders = []
    for shape, definition in JSON:
        part = directed_json.part_of(rng, shape, has_definition=definition is not None)
        decoders.append(json_decoder(shape.type if is_whole else part, definition, implementation))
    return ValueDecoding(decoders)


def protobuf_decoding(seed: int, _implementation: str) -> ValueDecoding:
    rng = Random(seed)
    return ValueDecoding(
        protobuf_decoder(one.descriptors, one.message, protobuf.random_columns(rng, one.descriptor)) for one in PROTOBUF
    )


def pair_decoding(_seed: int, implementation: str) -> ValueDecoding:
    return ValueDecoding([Implementation(_pairs_python, implementation).load().PairDecoder()])


class AvroEncoding(ValueEncoding):
    def __init__(self, _seed: int, _implementation: str) -> None:
        self.definitions = [json.dumps(schema) for schema in AVRO]
        super().__init__(avro_decoder(one, arrow_type_of(one)) for one in self.definitions)

    def encode(self, number: int, values: pa.Array) -> pa.Array:
        return avro_encoder(values.type, self.definitions[number])(values)


class ProtobufEncoding(ValueEncoding):
    def __init__(self, _seed: int, _implementation: str) -> None:
        types = [protobuf_type_of(one.descriptors, one.message) for one in PROTOBUF]
        super().__init__(
            protobuf_decoder(one.descriptors, one.message, type_) for one, type_ in zip(PROTOBUF, types, strict=True)
        )

    def encode(self, number: int, values: pa.Array) -> pa.Array:
        return protobuf_encoder(values.type, PROTOBUF[number].descriptors, PROTOBUF[number].message)(values)
