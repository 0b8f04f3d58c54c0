"""Directed fuzzing of JSON: a seed makes types and values, with any key order, white space, escapes and damage."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pyarrow as pa

from spark_mq_source.values.json.decode import json_decoder
from tests.oracles.arrays import laid_out
from tests.oracles.json import differences, read_all, reader_of
from tests.oracles.json_tokens import NO_JSON, SPACES, TOKENS

INSTANT, LOCAL, DATE = pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.date32()
BASES = 40
COPIES = 5
NAMES = [
    "a", "b", "id", "name", "Value", "price_in_euro", "fourteen_chars", "fifteen_chars__",
    "a_name_of_more_than_sixteen",
    "twice_as_long_as_the_longest_of_the_registers", "\u00e9t\u00e9", 'q"uote', "", " ", "a\\", "k" * 70,
]  # fmt: skip
AVRO_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]*")
Logical = tuple[str, str] | str
LEAVES: list[tuple[pa.DataType, list[Logical]]] = [
    (pa.null(), ["null"]), (pa.bool_(), ["boolean"]), (pa.int8(), ["int"]), (pa.int16(), ["long"]),
    (pa.int32(), ["int", ("int", "time-millis"), ("long", "time-micros"), ("int", "date")]),
    (pa.int64(), ["long", ("int", "time-millis"), ("long", "time-micros"), ("long", "timestamp-nanos")]),
    (pa.float32(), ["float"]), (pa.float64(), ["double", "float", "int"]), (pa.string(), ["string", "boolean", "int"]),
    (pa.decimal128(5, 2), ["double", "long", "string"]), (pa.decimal128(38, 10), ["double"]),
    (pa.decimal128(18, 0), ["int", "string"]), (pa.binary(), ["bytes", "string"]), (DATE, [("int", "date"), "string"]),
    (INSTANT, [("long", "timestamp-millis"), ("long", "timestamp-micros"), "string"]),
    (LOCAL, [("long", "local-timestamp-millis"), ("long", "local-timestamp-micros"), "string"]),
]  # fmt: skip


@dataclass
class Shape:
    """A type with the definition of its values; `fields` have keys in JSON."""

    type: pa.DataType
    definition: Any = None
    fields: list[tuple[str, Shape]] = field(default_factory=list)


def random_shape(rng: Random, depth: int) -> Shape:
    kind = rng.random()
    if depth and kind < 0.35:
        return random_struct(rng, depth)
    if depth and kind < 0.65:
        inner = random_shape(rng, depth - 1)
        if kind < 0.5:
            return Shape(pa.list_(inner.type), {"type": "array", "items": inner.definition}, [("", inner)])
        return Shape(pa.map_(pa.string(), inner.type), {"type": "map", "values": inner.definition}, [("", inner)])
    type_, logicals = rng.choice(LEAVES)
    logical = rng.choice(logicals)
    return Shape(type_, {"type": logical[0], "logicalType": logical[1]} if isinstance(logical, tuple) else logical)


def random_struct(rng: Random, depth: int) -> Shape:
    keys = rng.sample(NAMES, rng.choice((0, 1, 2, 3, 5, 12)))
    shapes = [random_shape(rng, depth - 1) for _ in keys]
    record = {
        "type": "record",
        "name": f"R{rng.getrandbits(60)}",
        "fields": [{"name": key, "type": shape.definition} for key, shape in zip(keys, shapes, strict=True)],
    }
    type_ = pa.struct([(key, shape.type) for key, shape in zip(keys, shapes, strict=True)])
    return Shape(type_, record, [*zip(keys, shapes, strict=True)])


def with_definition(rng: Random, shape: Shape) -> tuple[Shape, str | None]:
    """Return the shape, and its definition if all names are valid in one, or None."""
    text = json.dumps(shape.definition)
    if rng.random() < 0.5 or any(json.dumps(name) in text for name in NAMES if not AVRO_NAME.fullmatch(name)):
        return shape, None
    return shape, json.dumps(["null", shape.definition] if rng.random() < 0.2 else shape.definition)


def part_of(rng: Random, shape: Shape, *, has_definition: bool) -> pa.DataType:
    """Return a type of some fields, at any depth, in another order; some of them renamed, or of another type."""
    if pa.types.is_struct(shape.type):
        picked = [one for one in shape.fields if rng.random() < 0.6]
        rng.shuffle(picked)
        names = [key.swapcase() if has_definition and rng.random() < 0.2 else key for key, _ in picked]
        types = [part_of(rng, inner, has_definition=has_definition) for _, inner in picked]
        fields = dict(zip(names, types, strict=True))
        if rng.random() < 0.1:
            fields["not there"] = pa.int32()
        return pa.struct([*fields.items()])
    if not shape.fields:
        return rng.choice(LEAVES)[0] if not has_definition and rng.random() < 0.05 else shape.type
    inner_type = part_of(rng, shape.fields[0][1], has_definition=has_definition)
    return pa.list_(inner_type) if pa.types.is_list(shape.type) else pa.map_(pa.string(), inner_type)


class Writer:
    """A writer of JSON texts of a shape, in a random style."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        style = rng.random()
        spaces = ["", rng.choice(SPACES)] if style < 0.4 else SPACES
        self.space: Callable[[], str] = (lambda: "") if style < 0.2 else (lambda: rng.choice(spaces))
        self.odd = rng.choice((0.0, 0.02, 0.1))
        self.is_ordered = rng.random() < 0.7

    def value(self, shape: Shape) -> str:
        """Return a text of a value, with white space around it; some values are of another kind."""
        rng = self.rng
        if rng.random() < self.odd:
            text = rng.choice(TOKENS) if rng.random() < 0.99 else self.deep()
        elif rng.random() < 0.08:
            text = "null"
        elif pa.types.is_struct(shape.type):
            text = self.object([one for one in shape.fields if rng.random() < 0.9])
        elif pa.types.is_map(shape.type):
            keys = [rng.choice(("k", "key", "\u00e9", "", "\U0001f600")) for _ in range(rng.choice((0, 1, 2, 4)))]
            if rng.random() < 0.03:
                keys = [str(rng.randrange(30)) for _ in range(40)]
            text = self.object([(key, shape.fields[0][1]) for key in keys])
        elif pa.types.is_list(shape.type):
            items = [self.value(shape.fields[0][1]) for _ in range(rng.choice((0, 1, 2, 4)))]
            text = f"[{','.join(items) or self.space()}]"
        else:
            text = self.leaf(shape.type)
        return f"{self.space()}{text}{self.space()}"

    def object(self, members: list[tuple[str, Shape]]) -> str:
        rng = self.rng
        if not self.is_ordered:
            rng.shuffle(members)
        if members and rng.random() < self.odd:
            members.insert(rng.randint(0, len(members)), rng.choice(members))
        texts = [f"{self.space()}{self.quoted(key)}{self.space()}:{self.value(inner)}" for key, inner in members]
        if rng.random() < self.odd:
            texts.insert(rng.randint(0, len(texts)), f'{self.space()}"junk{rng.randrange(80)}":{rng.choice(TOKENS)}')
        return f"{{{','.join(texts) or self.space()}}}"

    def quoted(self, text: str) -> str:
        rng = self.rng
        if rng.random() > 0.1:
            return json.dumps(text, ensure_ascii=rng.random() < 0.5)
        return (
            '"'
            + "".join(
                json.dumps(one)[1:-1] if ord(one) > 0xFFFF else f"\\u{ord(one):04{rng.choice('xX')}}" for one in text
            )
            + '"'
        )

    def deep(self) -> str:
        depth = self.rng.choice((3, 490, 497, 498, 499, 500, 501, 900))
        return "[" * depth + "]" * depth if self.rng.random() < 0.5 else '{"f":' * depth + "1" + "}" * depth

    def integer(self) -> str:
        return str(self.rng.randint(-(1 << self.rng.randint(0, 65)), 1 << self.rng.randint(0, 65)))

    def leaf(self, type_: pa.DataType) -> str:  # noqa: PLR0911 - a table
        rng = self.rng
        if pa.types.is_integer(type_):
            if rng.random() < 0.15:
                return json.dumps([rng.randint(-1, 24), *(rng.randint(0, 60) for _ in range(rng.randint(0, 3)))])
            return self.integer()
        if pa.types.is_floating(type_):
            number = rng.choice((rng.uniform(-1e3, 1e3), 10 ** rng.uniform(-330, 308), rng.randrange(10**9) / 1000))
            return rng.choice(
                (repr(number), f"{number:.{rng.randint(0, 25)}f}", f"{number:.{rng.randint(0, 20)}e}", '"-INF"')
            )
        if pa.types.is_decimal(type_):
            digits = str(rng.randrange(10 ** rng.randint(1, 40)))
            at = rng.randint(1, len(digits))
            text = f"{rng.choice(('', '-'))}{digits[:at]}" + (f".{digits[at:]}" if digits[at:] else "")
            text = text.lstrip("0") if text[:1] == "0" and text[1:2].isdigit() else text
            text += rng.choice(("", "", f"e{rng.randint(-20, 20)}", "0000"))
            return rng.choice((text, f'"{text}"'))
        if pa.types.is_boolean(type_):
            return rng.choice(("true", "false"))
        if pa.types.is_string(type_):
            return self.quoted(
                "".join(rng.choice('abc \u00e9\u20ac\U0001f600"\\/\n\0') for _ in range(rng.choice((0, 1, 7, 20))))
            )
        if pa.types.is_binary(type_):
            return json.dumps(
                "".join(rng.choice("AZaz09+/") for _ in range(4 * rng.randint(0, 4)))
                + rng.choice(("", "AQ==", "AQI=", "="))
            )
        return self.moment()

    def moment(self) -> str:
        rng = self.rng
        bounds = [rng.choice(((1, 9999), (1, 9999), (-1, 10_001))), (1, 12), (1, 31), (0, 24), (0, 59), (0, 60)]
        parts = [*itertools.starmap(rng.randint, bounds), rng.randrange(10**9)]
        way = rng.random()
        if way < 0.2:
            return json.dumps(parts[: rng.randint(2, 8)])
        if way < 0.4:
            return f"{self.integer()}{rng.choice(('', '', '.5', '.123456789'))}"
        year, month, day, hour, minute, second, ns = parts
        text = f"{year:04}-{month:02}-{day:02}"
        if way > 0.55:
            text += f"{rng.choice('T ')}{hour:02}:{minute}" + rng.choice(("", f":{second:02}", f":{second}.{ns}"))
            text += rng.choice(
                ("", "Z", "UTC", f"{rng.choice('+-')}{rng.randint(0, 19):02}:{rng.randint(0, 61):02}", "+01", "-0130")
            )
        return f'"{text}"'


def damaged(rng: Random, payload: bytes) -> bytes:
    data = bytearray(payload)
    at = rng.randint(0, len(data))
    way = rng.random()
    if way < 0.25:
        del data[at : at + rng.randint(1, 3)]
    elif way < 0.5:
        data[at:at] = rng.choice((*NO_JSON, ",", ":", " ", "\\", '"', "\xe9")).encode(
            rng.choice(("utf-8", "latin-1")), "replace"
        )
    elif way < 0.75:
        data[at : at + 1] = bytes([rng.choice((rng.randrange(256), rng.choice(b'{}[],:"\\ 0-.eE')))])
    else:
        del data[at:]
    return bytes(data)


def run(seed: int) -> int:
    """Compare the payloads of a seed with the oracle; return the number of decoded payloads.

    Raises:
        AssertionError: they differ; the error names the seed and the payload.
    """
    rng = Random(seed)
    shape = random_struct(rng, 3) if rng.random() < 0.9 else random_shape(rng, 2)
    shape, definition = with_definition(rng, shape)
    has_definition = definition is not None
    wanted = shape.type if rng.random() < 0.3 else part_of(rng, shape, has_definition=has_definition)
    writer = Writer(rng)
    bases = [writer.value(shape).encode(errors="surrogatepass") for _ in range(BASES)]
    hostile = rng.choice((0.0, 0.1, 0.5))
    payloads = [damaged(rng, base) if rng.random() < hostile else base for base in bases for _ in range(COPIES)]
    if rng.random() < 0.3:
        rng.shuffle(payloads)
    unique = [*dict.fromkeys(payloads)]
    values = dict(zip(unique, read_all(reader_of(wanted, definition), unique), strict=True))
    explained = json_decoder(wanted, definition, "python").decode(pa.array(unique, pa.binary()))
    for row, found in differences(explained.values, explained.reasons, [values[one] for one in unique]):
        raise AssertionError(f"seed {seed}: {wanted}, definition {definition}: {unique[row]!r} is {found!r} in Python")
    reasons = {unique[row]: reason for row, reason in explained.reasons.items()}
    decoder = json_decoder(wanted, definition)
    count = 0
    # One decoder, to show that it keeps no state of a batch: all, some, and some in batches of one row.
    for rows in (
        payloads,
        rng.sample(payloads, len(payloads) // 2),
        *([one] for one in rng.sample(payloads, 5)),
        payloads,
    ):
        decoded = decoder.decode(laid_out(rows, rng.randrange(16)))
        for row, found in differences(decoded.values, decoded.reasons, [values[one] for one in rows]):
            expected = values[rows[row]] if row < len(rows) else "no row"
            raise AssertionError(
                f"seed {seed}: {wanted}, definition {definition}: {rows[row]!r} in row {row} of {len(rows)} is "
                f"{found!r}, expected {expected!r}"
            )
        assert decoded.reasons == {row: reasons[one] for row, one in enumerate(rows) if one in reasons}, f"seed {seed}"
        count += len(rows)
    return count
