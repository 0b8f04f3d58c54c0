import pyarrow as pa
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spark_mq_source.core.values.protobuf import arrow_type_of, protobuf_decoder
from tests.protobuf_cases import in_any_order, meanings, random_bytes_of, random_schema

RANDOM = st.randoms(use_true_random=False)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(params=["native", "python"])
def implementation(request):
    return request.param


def plain(value):
    """An Arrow value as the oracle has it: times as microseconds, maps in any order."""
    if isinstance(value, pa.StructScalar):
        return {name: plain(inner) for name, inner in value.items()} if value.is_valid else None
    if isinstance(value, pa.MapScalar):
        if not value.is_valid:
            return None
        entries = [(plain(entry["key"]), plain(entry["value"])) for entry in value.values]
        assert len(dict(entries)) == len(entries)
        return in_any_order(entries)
    if isinstance(value, pa.ListScalar):
        return [plain(inner) for inner in value.values] if value.is_valid else None
    if isinstance(value, pa.TimestampScalar | pa.DurationScalar):
        return value.value
    return value.as_py()


def expected(schema, payload):
    try:
        message = schema.make.FromString(payload)
    except DecodeError:
        return None
    return meanings(message) if message.IsInitialized() else None


@SETTINGS
@given(RANDOM)
def test_a_message_is_what_the_runtime_makes_of_it(implementation, rng):
    schema = random_schema(rng)
    payloads = [random_bytes_of(rng, schema.descriptor) for _ in range(4)]
    type_ = arrow_type_of(schema.descriptors, schema.message)
    decoder = protobuf_decoder(schema.descriptors, schema.message, type_, implementation=implementation)
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    decoded.values.validate(full=True)
    assert [repr(plain(value)) for value in decoded.values] == [repr(expected(schema, one)) for one in payloads]
    assert [at for at, one in enumerate(payloads) if expected(schema, one) is None] == [*decoded.reasons]


def projected(rng, type_):
    """Some of the columns at any depth, in any order; and a function that selects them of a value."""
    if pa.types.is_struct(type_):
        fields = [field for field in type_ if rng.random() < 0.6]
        rng.shuffle(fields)
        parts = [(field.name, *projected(rng, field.type)) for field in fields]

        def select(value):
            return None if value is None else {name: of_part(value[name]) for name, _, of_part in parts}

        return pa.struct([(name, part) for name, part, _ in parts]), select
    if pa.types.is_map(type_):
        inner, of_item = projected(rng, type_.item_type)
        return pa.map_(type_.key_type, inner), lambda value: [(key, of_item(item)) for key, item in value]
    if pa.types.is_list(type_):
        inner, of_item = projected(rng, type_.value_type)
        return pa.list_(inner), lambda value: [of_item(item) for item in value]
    return type_, lambda value: value


@SETTINGS
@given(RANDOM)
def test_a_projection_is_the_whole_value_without_the_rest(implementation, rng):
    schema = random_schema(rng)
    payloads = pa.array([random_bytes_of(rng, schema.descriptor) for _ in range(4)], pa.binary())
    type_ = arrow_type_of(schema.descriptors, schema.message)
    some, select = projected(rng, type_)
    whole, part = (
        protobuf_decoder(schema.descriptors, schema.message, wanted, implementation=implementation).decode(payloads)
        for wanted in (type_, some)
    )
    for row in set(range(4)) - set(whole.reasons):
        assert repr(plain(part.values[row])) == repr(select(plain(whole.values[row])))
    assert set(part.reasons) <= set(whole.reasons)


def damaged(rng, payload):
    data = bytearray(payload)
    for _ in range(rng.randint(1, 3)):
        if data:
            at = rng.randrange(len(data))
            change = rng.randint(0, 3)
            if change == 0:
                data[at] = rng.choice([0, 0x7F, 0x80, 0xFF, rng.getrandbits(8), data[at] ^ 1 << rng.randint(0, 7)])
            elif change == 1:
                del data[at:]
            elif change == 2:
                del data[at]
            else:
                data[at:at] = rng.choice([b"\xff" * 9, b"\x80\x80\x01", b"\x0b\x13\x0b", b"\xf8\xff\xff\xff\x0f\x00"])
    return bytes(data)


@SETTINGS
@given(RANDOM)
def test_both_implementations_find_the_same_in_damaged_bytes(rng):
    schema = random_schema(rng, required=False)
    payloads = [damaged(rng, random_bytes_of(rng, schema.descriptor)) for _ in range(6)]
    good = random_bytes_of(rng, schema.descriptor)
    array = pa.array([*payloads, None, good], pa.binary())
    wanted, _ = projected(rng, arrow_type_of(schema.descriptors, schema.message))
    native, python = (
        protobuf_decoder(schema.descriptors, schema.message, wanted, implementation=one).decode(array)
        for one in ("native", "python")
    )
    native.values.validate(full=True)
    assert list(native.reasons) == list(python.reasons)
    assert repr([plain(value) for value in native.values]) == repr([plain(value) for value in python.values])
    assert native.values[6].as_py() is None
    assert not {6, 7} & set(native.reasons)
