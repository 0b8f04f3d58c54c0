"""Arrow columns as JSON texts, column by column, without Python objects per row.

The rules, which a reader with the column's Avro definition (`struct_schema`) understands:

- A NULL field of a struct is left out, as in Spark's ``to_json`` and Pulsar's Java client. A NULL element of an array,
  or value of a map, is ``null``.
- Numbers are numbers, in the shortest text that reads back as the same value. NaN and infinity, which JSON lacks, are
  the texts ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``, which Java's Jackson writes and reads.
- A decimal is a text, so that no digit is lost. Binary values are base64.
- A date is its days since 1970, a timestamp its microseconds. Readers without the definition cannot know this: for them
  both are ISO 8601 texts (`text_times`), which Spark's ``from_json`` reads. Java's client (4.0.8) takes an integer for
  an ``Instant`` as seconds, whatever the definition says; consumers that follow the definition need an integer.
"""

from __future__ import annotations

import base64
import datetime
from array import array
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from spark_mq_source.core.columns import ConstantColumn, is_text
from spark_mq_source.core.errors import UnwritableRowError

# The usual characters have a short JSON escape and are replaced first; each other one costs a pass over the column.
_USUAL_ESCAPES: Final = (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
_RARE_ESCAPES: Final = tuple((chr(code), f"\\u{code:04x}") for code in range(0x20) if chr(code) not in "\n\r\t")
_NAMED_FLOATS: Final = (("nan", '"NaN"'), ("-nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"'))
_FIRST_DAY: Final = datetime.date.min.toordinal() - datetime.date(1970, 1, 1).toordinal()
_LAST_DAY: Final = datetime.date.max.toordinal() - datetime.date(1970, 1, 1).toordinal()
_PER_DAY: Final = {"d": 1, "s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
_UNITS: Final = {"d": "days", "s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_CONTROL: Final = r"[\x00-\x1f]"


def json_texts(values: pa.Array, *, text_times: bool = False) -> pa.Array:
    """Return the JSON text of each value, as an Arrow string column; NULL if the value is NULL.

    Args:
        values: booleans, numbers, strings, binaries, dates, timestamps, and structs, lists and maps of these; the keys
            of maps are strings.
        text_times: whether dates and timestamps are written as texts.

    Raises:
        UnwritableRowError: a string is not UTF-8, or a date or timestamp to write as a text is outside the years 1 to
            9999.
        TypeError: a type has no JSON form.

    Example:
        >>> rows = pa.array([{"a": 1, "b": ["x", None]}, {"a": None, "b": []}, None])
        >>> json_texts(rows).to_pylist()
        ['{"a":1,"b":["x",null]}', '{"b":[]}', None]
    """
    kind = values.type
    if pa.types.is_map(kind) and not is_text(kind.key_type):
        raise TypeError(f"there is no JSON for {kind}: its keys must be strings")
    for is_it, joined_of in _NESTED:
        if is_it(kind):
            return joined_of(values, text_times)
    if text_times and pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return _quoted(_in_iso_8601(values))
    for is_it, texts_of in _WAYS:
        if is_it(kind):
            return texts_of(values)
    raise TypeError(f"there is no JSON for {kind}")


def _plain(values: pa.Array) -> pa.Array:
    return pc.cast(values, pa.string())


def _in_iso_8601(values: pa.Array) -> pa.Array:
    _check_years(values)
    if pa.types.is_timestamp(values.type) and values.type.tz:
        values = pc.cast(values, pa.timestamp(values.type.unit, "UTC"))
    return pc.replace_substring(_plain(values), " ", "T")


def _check_years(values: pa.Array) -> None:
    """Refuse dates and timestamps whose year does not have four digits in ISO 8601."""
    unit = "d" if pa.types.is_date32(values.type) else getattr(values.type, "unit", "")
    if unit not in _PER_DAY:
        return
    numbers = values.view(pa.int32() if unit == "d" else pa.int64())
    ends = pc.min_max(numbers)
    for bound in ("min", "max"):
        number = ends[bound].as_py()
        if number is not None and not _FIRST_DAY <= number // _PER_DAY[unit] <= _LAST_DAY:
            kind = "date" if unit == "d" else "timestamp"
            raise UnwritableRowError(
                f"a {kind} ({number} {_UNITS[unit]} since 1970) is outside the years 1 to 9999, which a text of "
                f"ISO 8601 is limited to; keep such values out, or cast them to numbers"
            )


def _texts(values: pa.Array) -> pa.Array:
    return _quoted(_escaped(values))


def _binaries(values: pa.Array) -> pa.Array:
    encoded = (None if value is None else base64.b64encode(value) for value in values.to_pylist())
    return _quoted(pa.array(encoded, pa.string()))


def _scalar(text: str) -> pa.Scalar:
    # Not pa.scalar, which imports pandas: see `ConstantColumn`.
    return ConstantColumn(text, pa.string()).take(1)[0]


def _joined(*parts: pa.Array | str) -> pa.Array:
    """Concatenate the parts of each row; NULL if one of them is NULL."""
    return pc.binary_join_element_wise(*(_scalar(p) if isinstance(p, str) else p for p in parts), _scalar(""))


def _quoted(texts: pa.Array) -> pa.Array:
    return _joined('"', texts, '"')


def _keep_nulls(values: pa.Array, texts: pa.Array) -> pa.Array:
    return texts if not values.null_count else pc.if_else(pc.is_valid(values), texts, pa.nulls(1, pa.string())[0])


def _objects(values: pa.Array, text_times: bool) -> pa.Array:
    # Each field is a comma and a member, or empty; the first comma is removed afterwards. (Skipping NULLs in the join
    # is no alternative: it leaves out a row with only NULLs, seen on pyarrow 26.)
    fields = [
        pc.fill_null(_joined(f",{_name(field.name)}:", json_texts(column, text_times=text_times)), _scalar(""))
        for field, column in zip(values.type, values.flatten(), strict=True)
    ]
    if not fields:
        return _keep_nulls(values, ConstantColumn("{}", pa.string()).take(len(values)))
    whole = pc.replace_substring(_joined("{", *fields, "}"), "{,", "{", max_replacements=1)
    return _keep_nulls(values, whole)


def _name(text: str) -> str:
    return str(_texts(ConstantColumn(text, pa.string()).take(1))[0].as_py())


def _lists(values: pa.Array, text_times: bool) -> pa.Array:
    values = _without_hidden(values)
    offsets, first, count = _offsets(values)
    texts = pc.fill_null(json_texts(values.values.slice(first, count), text_times=text_times), _scalar("null"))
    return _keep_nulls(values, _in_brackets("[", offsets, texts, "]"))


def _maps(values: pa.Array, text_times: bool) -> pa.Array:
    values = _without_hidden(values)
    offsets, first, count = _offsets(values)
    names = _texts(values.keys.slice(first, count))
    texts = pc.fill_null(json_texts(values.items.slice(first, count), text_times=text_times), _scalar("null"))
    return _keep_nulls(values, _in_brackets("{", offsets, _joined(names, ":", texts), "}"))


def _without_hidden(values: pa.Array) -> pa.Array:
    """Return the same lists or maps without the elements of NULL rows, which may have any content."""
    if not values.null_count:
        return values
    lengths = pc.subtract(values.offsets[1:], values.offsets[:-1])
    if not pc.sum(pc.filter(lengths, pc.is_null(values))).as_py():
        return values
    rows = pa.py_buffer(array("i", range(len(values))))
    return values.take(pa.Array.from_buffers(pa.int32(), len(values), [None, rows]))


def _offsets(values: pa.Array) -> tuple[pa.Array, int, int]:
    """Return the start of each row's elements relative to the first row's, and the start and number of all elements."""
    offsets = values.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.subtract(offsets, offsets[0]), first, last - first


def _in_brackets(opening: str, offsets: pa.Array, texts: pa.Array, closing: str) -> pa.Array:
    return _joined(opening, pc.binary_join(pa.ListArray.from_arrays(offsets, texts), _scalar(",")), closing)


def _floats(values: pa.Array) -> pa.Array:
    texts = _plain(values)
    finite = pc.is_finite(values)
    if pc.all(finite, min_count=0).as_py() in (True, None):
        return texts
    for text, named in _NAMED_FLOATS:
        texts = pc.if_else(pc.equal(texts, _scalar(text)), _scalar(named), texts)
    return texts


def _escaped(texts: pa.Array) -> pa.Array:
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid as error:
        raise UnwritableRowError(
            f"a text is not UTF-8, which JSON must be ({error}); keep such values out, or as binary"
        ) from error
    for raw, escape in _USUAL_ESCAPES:
        texts = pc.replace_substring(texts, raw, escape)
    if pc.any(pc.match_substring_regex(texts, _CONTROL), min_count=0).as_py():
        for raw, escape in _RARE_ESCAPES:
            texts = pc.replace_substring(texts, raw, escape)
    return texts


_NESTED: Final = ((pa.types.is_struct, _objects), (pa.types.is_map, _maps), (pa.types.is_list, _lists))
_WAYS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]]] = (
    (is_text, _texts),
    (pa.types.is_binary, _binaries),
    (pa.types.is_decimal, lambda values: _quoted(_plain(values))),
    (pa.types.is_floating, _floats),
    (
        pa.types.is_timestamp,
        lambda values: _plain(pc.cast(values, pa.timestamp("us", values.type.tz)).view(pa.int64())),
    ),
    (pa.types.is_date32, lambda values: _plain(values.view(pa.int32()))),
    (pa.types.is_boolean, _plain),
    (pa.types.is_integer, _plain),
)
"""The functions that convert values of a type to texts; the first match is used."""
