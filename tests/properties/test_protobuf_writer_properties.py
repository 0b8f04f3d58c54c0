import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from spark_mq_source.core.values.protobuf import arrow_type_of, protobuf_decoder
from spark_mq_source.core.values.protobuf_writer import encode_protobuf
from tests.properties.test_protobuf_properties import RANDOM, SETTINGS, plain
from tests.protobuf_cases import is_map, meanings, random_bytes_of, random_schema


def has_map(message, above=()):
    return any(
        is_map(field)
        or (field.message_type and field.message_type not in above and has_map(field.message_type, (*above, message)))
        for field in message.fields
    )


@SETTINGS
@given(RANDOM, st.integers(0, 3))
def test_what_is_written_is_read_as_it_was(rng, start):
    schema = random_schema(rng)
    type_ = arrow_type_of(schema.descriptors, schema.message)
    decoder = protobuf_decoder(schema.descriptors, schema.message, type_)
    payloads = [random_bytes_of(rng, schema.descriptor) for _ in range(5)]
    values = decoder.decode(pa.array([*payloads, None], pa.binary())).values.slice(start)
    native, python = (
        encode_protobuf(values, schema.descriptors, schema.message, implementation=implementation)
        for implementation in ("native", "python")
    )
    native.validate(full=True)
    assert native.to_pylist() == python.to_pylist()
    again = decoder.decode(native)
    assert not again.reasons
    assert repr([plain(value) for value in again.values]) == repr([plain(value) for value in values])
    for data, value in zip(native.to_pylist(), values, strict=True):
        if data is not None:
            message = schema.make.FromString(data)
            assert repr(meanings(message)) == repr(plain(value))
            assert has_map(schema.descriptor) or message.SerializeToString() == data
