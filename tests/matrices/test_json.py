"""Every type against every kind of JSON, read and written: the oracle's value, or the oracle's refusal."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa
import pytest

from spark_mq_source.core.errors import OptionError
from spark_mq_source.values.json.decode import json_decoder
from spark_mq_source.values.json.encode import json_texts
from tests.oracles.arrays import laid_out
from tests.oracles.json import differences, read_all, reader_of, storage_of
from tests.oracles.json_tokens import SPACES, TOKENS, VALID

INSTANT, LOCAL, DATE = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
SCALARS = {
    str(type_): type_
    for type_ in (
        pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.decimal128(5, 2), pa.decimal128(38, 10), pa.string(), pa.binary(), DATE, INSTANT, LOCAL,
    )
}  # fmt: skip

# -- nested types, two levels deep

Shape = tuple[Callable[[pa.DataType], pa.DataType], Callable[[str], str]]
SHAPES: dict[str, Shape] = {
    "list": (pa.list_, lambda text: f"[{text}]"),
    "map": (lambda type_: pa.map_(pa.string(), type_), lambda text: f'{{"k":{text}}}'),
    "struct": (lambda type_: pa.struct([("f", type_)]), lambda text: f'{{"f":{text}}}'),
}
NESTINGS = [nesting for depth in range(3) for nesting in itertools.product(SHAPES, repeat=depth)]


def nested(type_: pa.DataType, nesting: Iterable[str]) -> pa.DataType:
    for shape in reversed([*nesting]):
        type_ = SHAPES[shape][0](type_)
    return type_


def within(text: str, nesting: Iterable[str], key: str = "f") -> str:
    for shape in reversed([*nesting]):
        text = SHAPES[shape][1](text).replace('{"f":', f'{{"{key}":', 1)
    return text


def texts_for(scalar: str, nesting: tuple[str, ...]) -> list[str]:
    """Return each token in the innermost place of a type; for two scalars in the other places too."""
    depths = range(len(nesting) + 1) if scalar in ("int32", "string") else [len(nesting)]
    return [within(token, nesting[:depth]) for depth in depths for token in TOKENS]


# -- comparing


def check(type_: pa.DataType, texts: list[str], definition: str | None = None, *, all_layouts: bool = True) -> int:
    """Compare a batch with the oracle, then other layouts with that batch; return the number of comparisons."""
    payloads = [text.encode() for text in texts]
    expected = read_all(reader_of(type_, definition), payloads)
    decoder = json_decoder(type_, definition)
    decoded = decoder.decode(pa.array(payloads, pa.binary()))
    for row, found in differences(decoded.values, decoded.reasons, expected):
        raise AssertionError(f"{type_}, {definition}: {texts[row]!r} is {found!r}, not {expected[row]!r}")
    if not all_layouts:
        return len(texts)
    bits = storage_of(type_, bits=True)
    whole = decoded.values.view(bits)
    single = [decoder.decode(laid_out([payload], row % 16)) for row, payload in enumerate(payloads)]
    assert [row for row, one in enumerate(single) if one.reasons] == list(decoded.reasons), f"{type_}, one row"
    assert pa.concat_arrays([one.values for one in single]).view(bits).equals(whole), f"{type_}, one row"
    checked = 2 * len(texts)
    # Finding a reason is slow: each offset has all rows that can be decoded, and some of the others.
    refused = list(decoded.reasons)
    for offset in range(16):
        skipped = set(refused) - set(refused[offset::16])
        rows = [row for row in range(len(texts)) if row not in skipped]
        again = decoder.decode(laid_out([payloads[row] for row in rows], offset))
        assert [rows[row] for row in again.reasons] == refused[offset::16], f"{type_}, offset {offset}"
        assert again.values.view(bits).equals(whole.take(pa.array(rows))), f"{type_}, offset {offset}"
        checked += len(rows)
    return checked


# -- the matrices


@pytest.mark.parametrize("scalar", SCALARS)
def test_every_type_against_every_token(scalar: str) -> None:
    checked = sum(check(nested(SCALARS[scalar], nesting), texts_for(scalar, nesting)) for nesting in NESTINGS)
    assert len(TOKENS) == 256
    assert checked >= 3 * 256 * (34 if scalar in ("int32", "string") else 13)


WANTED = pa.struct([("w", pa.int32()), ("v", pa.string())])
FRAMES = [
    '{"x":%s,"w":1,"v":"a"}', '{"w":1,"v":"a","x":%s}', '{"w":1,"x":%s,"y":%s,"v":"a"}',
    '{ "w" : 1 , "x" : %s , "v" : "a" }',
    '{"a key of more than sixteen characters":%s,"w":1,"v":"a"}', '{"x\\u0041":%s,"w":1,"v":"a"}',
    '{"\u00e9":%s,"w":1,"v":"a"}', '{"fourteen_chars":%s,"w":1,"v":"a"}', '{"' + "n" * 60 + '":%s,"w":1,"v":"a"}',
]  # fmt: skip


@pytest.mark.parametrize("frame", FRAMES)
def test_a_projection_skips_every_token(frame: str) -> None:
    texts = [frame.replace("%s", within(token, nesting)) for nesting in NESTINGS for token in TOKENS]
    assert check(WANTED, texts) > 10 * 256 * 13
    assert check(pa.struct([]), texts, all_layouts=False) == len(TOKENS) * 13


def spaced(text: str, space: str) -> str:
    """Return a text with white space wherever JSON allows it."""
    return re.sub(r'"(?:[^"\\]|\\.)*"|[^\s\[\]{},:"]+|[\[\]{},:]', lambda part: space + part[0] + space, text)


@pytest.mark.parametrize("space", SPACES, ids=repr)
def test_white_space_is_allowed_between_all_tokens(space: str) -> None:
    checked = 0
    for nesting in NESTINGS:
        texts = [spaced(within(token, nesting), space) for token in VALID]
        for type_ in (pa.string(), LOCAL):
            checked += check(nested(type_, nesting), texts, all_layouts=False)
    for frame in FRAMES:
        texts = [spaced(frame.replace("%s", token), space) for token in VALID]
        checked += check(WANTED, texts, all_layouts=False)
    assert checked == len(VALID) * (13 * 2 + len(FRAMES))


@pytest.mark.parametrize("space", SPACES[1:], ids=repr)
def test_white_space_is_allowed_in_each_single_place(space: str) -> None:
    parts = ["{", '"x"', ":", "1", ",", '"w"', ":", "5", ",", '"y"', ":", '"z"', ",", '"v"', ":", "[", "]", "}"]
    texts = ["".join([*parts[:at], space, *parts[at:]]) for at in range(len(parts) + 1)]
    assert check(WANTED, texts) > 0
    assert not [text for text in texts if json_decoder(WANTED).decode(pa.array([text.encode()])).reasons]


# -- definitions


def logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def record(name: str, *fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": type_} for key, type_ in fields]}


DEFINITIONS: list[Any] = [
    "null", "boolean", "int", "long", "float", "double", "string", "bytes",
    {"type": "fixed", "name": "X", "size": 2}, {"type": "enum", "name": "E", "symbols": ["A"]},
    {"type": "string", "java-class": "java.math.BigInteger"}, {"type": "int", "java-class": "java.lang.Character"},
    logical("bytes", "decimal", precision=5, scale=2), logical("string", "decimal", precision=38, scale=10),
    logical("string", "uuid"), logical("int", "date"), logical("int", "time-millis"), logical("long", "time-micros"),
    *(logical("long", f"timestamp-{unit}") for unit in ("millis", "micros", "nanos")),
    *(logical("long", f"local-timestamp-{unit}") for unit in ("millis", "micros", "nanos")),
    ["null", logical("long", "timestamp-millis")], ["int", "long"], ["float", "null", "double"], ["int", "string"],
    record("java.util.Date"), record("java.time.ZonedDateTime"), record("java.lang.Object"),
]  # fmt: skip
NESTED_DEFINITIONS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: {"type": "array", "items": inner},
    "map": lambda inner: {"type": "map", "values": inner},
    "struct": lambda inner: record(f"R{len(json.dumps(inner))}", ("F", inner)),
}
PAIRS = {"type": "array", "items": record("org.apache.avro.reflect.PairX", ("key", "int"), ("value", DEFINITIONS[15]))}


def defined_types() -> Iterator[tuple[str, pa.DataType, tuple[str, ...]]]:
    for definition, type_, nesting in itertools.product(DEFINITIONS, SCALARS.values(), NESTINGS):
        # Nested types: those that a definition changes.
        is_time = pa.types.is_temporal(type_) or (pa.types.is_integer(type_) and "time-m" in str(definition))
        if not nesting or (is_time and isinstance(definition, dict)):
            whole = definition
            for shape in reversed(nesting):
                whole = NESTED_DEFINITIONS[shape](whole)
            yield json.dumps(whole), nested(type_, nesting), nesting
    yield json.dumps(PAIRS), nested(DATE, ("map",)), ("map",)


def test_every_definition_against_every_token() -> None:
    checked = planned = refused = 0
    for definition, type_, nesting in defined_types():
        try:
            json_decoder(type_, definition)
        except OptionError:
            refused += 1
            continue
        planned += 1
        checked += check(type_, [within(token, nesting, "F") for token in TOKENS], definition, all_layouts=False)
    assert (planned, refused, checked) == (531, 715, 135_936)


# -- reused decoders


@pytest.mark.parametrize("nesting", NESTINGS, ids="-".join)
def test_a_decoder_is_right_after_any_damage(nesting: tuple[str, ...]) -> None:
    fields = [(name.translate({ord(","): "_"}), nested(type_, nesting)) for name, type_ in SCALARS.items()]
    type_ = pa.struct([(name, one) for at, (name, one) in enumerate(fields) if at % 5 != 3])
    leaf = {"null": "[]", "bool": "true", "string": '"a\\u0062"', "binary": '"AQ=="', "date32[day]": "[2020,2,29]",
            "timestamp[us, tz=UTC]": '"2020-02-29T00:00Z"', "timestamp[us]": "[2020,2,29,1,2,3]"}  # fmt: skip
    members = [
        f'"{name}":{within(leaf.get(key, "1"), nesting)}' for (name, _), key in zip(fields, SCALARS, strict=True)
    ]
    good = "{" + ", ".join([*members, *members[::2]]) + "}"
    damaged = [good[:at] for at in range(len(good))] + [good[:at] + "\x01" + good[at + 1 :] for at in range(len(good))]
    decoder = json_decoder(type_)
    thousand = pa.array([good.encode()] * 1000, pa.binary())
    first = decoder.decode(thousand)
    assert not list(differences(first.values, first.reasons, read_all(reader_of(type_), [good.encode()]) * 1000))
    for bad in damaged[::41]:
        reasons = decoder.decode(pa.array([bad.encode()], pa.binary())).reasons
        again = decoder.decode(thousand)
        assert ([*reasons], [*again.reasons]) == ([0], [])
        again.values.validate(full=True)
        assert again.values.equals(first.values)
    texts = [text for bad in damaged[::23] for text in (bad, good)]
    assert check(type_, texts) > 9 * len(texts)


# -- writing

# A number as Arrow stores it, and its JSON; for a date or timestamp also its JSON text.
CELLS: dict[pa.DataType, list[tuple[Any, ...]]] = {
    pa.bool_(): [(True, True), (False, False)],
    **{
        type_: [(number, number) for number in (0, -7, (1 << type_.bit_width - 1) - 1, -(1 << type_.bit_width - 1))]
        for type_ in (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    },
    pa.float32(): [(1.5, 1.5), (3.4028234663852886e38, 3.4028235e38), (-0.0, 0), (float("nan"), "NaN")],
    pa.float64(): [(0.1, 0.1), (5e-324, 5e-324), (1e22, 1e22), (float("inf"), "Infinity"), (-1e999, "-Infinity")],
    pa.decimal128(5, 2): [(Decimal("-999.99"), "-999.99"), (Decimal("0.00"), "0.00")],
    pa.decimal128(38, 10): [(Decimal("0.0000000001"), "1E-10"), (Decimal("9" * 28), "9" * 28 + ".0000000000")],
    pa.string(): [
        (text, text) for text in ("", "a", "\u00e9\U0001f600", '"\\/', "".join(map(chr, range(0x21))), "\x7f\u2028")],
    pa.binary(): [(b"", ""), (b"\0", "AA=="), (bytes(range(251, 256)) * 3, "+/z9/v/7/P3+//v8/f7/")],
    DATE: [(0, 0, "1970-01-01"), (-719162, -719162, "0001-01-01"), (2932896, 2932896, "9999-12-31")],
    **{
        type_: [
            (-1, -1, f"1969-12-31T23:59:59.999999{zone}"),
            (-62135596800000000, -62135596800000000, f"0001-01-01T00:00:00.000000{zone}"),
            (253402300799999999, 253402300799999999, f"9999-12-31T23:59:59.999999{zone}"),
        ]
        for type_, zone in ((INSTANT, "Z"), (LOCAL, ""))
    },
}  # fmt: skip


def random_cell(rng: Random, type_: pa.DataType, *, text_times: bool) -> tuple[Any, Any]:
    """Return a value, as Arrow stores it, and its JSON."""
    if rng.random() < 0.3:
        return None, None
    if type_ in CELLS:
        cell = rng.choice(CELLS[type_])
        return cell[0], cell[-1 if text_times else 1]
    inner = type_.field(0).type if not pa.types.is_map(type_) else type_.item_type
    cells = [random_cell(rng, inner, text_times=text_times) for _ in range(rng.randint(0, 3))]
    if pa.types.is_struct(type_):
        value, text = random_cell(rng, inner, text_times=text_times)
        return {"f": value}, {"f": text} if value is not None else {}
    if pa.types.is_map(type_):
        keys = rng.sample(["", "k", "\u00e9", '"\n'], len(cells))
        return [(key, cell) for key, (cell, _) in zip(keys, cells, strict=True)], dict(
            zip(keys, (t for _, t in cells), strict=True)
        )
    return [cell for cell, _ in cells], [text for _, text in cells]


@pytest.mark.parametrize("text_times", [False, True])
@pytest.mark.parametrize("nesting", NESTINGS, ids="-".join)
def test_every_type_is_written_from_any_part_of_a_column(nesting: tuple[str, ...], text_times: bool) -> None:
    checked = 0
    for leaf in CELLS:
        type_ = nested(leaf, nesting)
        rng = Random(f"{type_} {text_times}")
        cells = [random_cell(rng, type_, text_times=text_times) for _ in range(40)]
        column = pa.array([cell for cell, _ in cells], storage_of(type_)).view(type_)
        for begin, end in ((0, 40), (0, 0), (40, 40), (7, 8), (3, 29), (9, 40)):
            texts = json_texts(column[begin:end], text_times=text_times).to_pylist()
            found = [None if text is None else json.loads(text) for text in texts]
            assert repr(found) == repr([text for _, text in cells[begin:end]]), type_
            checked += end - begin
        nulls = pa.nulls(3, storage_of(type_)).view(type_)
        assert json_texts(nulls, text_times=text_times).to_pylist() == [None] * 3
    assert checked == 14 * (40 + 1 + 26 + 31)
