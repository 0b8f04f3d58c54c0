"""Options of InLong's messages, for the formats that InLong writes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from spark_mq_source.core.options import WRITE, Scope, Section, option, parse_list, parse_text
from spark_mq_source.core.shared_options import EVERYWHERE, parse_one_of
from spark_mq_source.values.encodings import Encoding
from spark_mq_source.values.inlong.fields import CSV, JSON, KV, StreamLayout
from spark_mq_source.values.inlong.texts import Delimiters
from spark_mq_source.values.options import INLONG, TypedOptions

_CODES: Final = range(1, 128)
_MEANT_FOR: Final = {
    "inlong_separator": (CSV,),
    "inlong_entry_separator": (KV,),
    "inlong_kv_separator": (KV,),
    "inlong_line_separator": (CSV, KV),
    "inlong_escape": (CSV, KV),
    "inlong_quote": (CSV, KV),
    "inlong_null_text": (CSV, KV),
}
"""The data types that an option applies to."""

_INSTEAD: Final = {
    ("inlong_separator", KV): "set inlongEntrySeparator instead",
    ("inlong_entry_separator", CSV): "set inlongSeparator instead",
}


def _parse_character(text: str) -> str:
    """Return one character, given itself or as its decimal code in ASCII, as in InLong's console."""
    if len(text) == 1 and not text.isdigit():
        return text
    if text.isdecimal() and int(text) in _CODES:
        return chr(int(text))
    raise ValueError("expected one character, or its code in ASCII such as 124")


def _character(doc: str, default: str | None, default_text: str | None = None) -> Any:  # noqa: ANN401 - as `option`
    return option(doc, default=default, default_text=default_text, scope=EVERYWHERE, parse=_parse_character)


@dataclass(frozen=True, kw_only=True, repr=False)
class InlongOptions(TypedOptions):
    """Options that apply with `valueFormat=inlong`."""

    inlong_streams: tuple[str, ...] = option(
        "Comma-separated ids of the streams to read, with `valueFormat=inlong`.",
        default=(),
        default_text="all",
        parse=parse_list,
        section=Section.VALUES,
    )
    inlong_fields: str | None = option(
        "Fields of a record, with `valueFormat=inlong`: columns as in Spark's `from_json` (`a int, b string`). The "
        "column `data` is then a struct of them. A write takes them from the struct.",
        default=None,
        default_text="`data` is binary",
        scope=EVERYWHERE,
        parse=parse_text,
    )
    inlong_data_type: str = option(
        "Format of the records with `inlongFields`: `csv`, `kv` or `json`, as the stream's data type in InLong.",
        default=CSV,
        scope=EVERYWHERE,
        parse=parse_one_of(CSV, KV, JSON),
    )
    inlong_separator: str = _character(
        "Character between the fields of csv, or its code in ASCII, as in InLong's console (`124`).", "|"
    )
    inlong_entry_separator: str = _character("Character between the entries of kv, or its code.", "&")
    inlong_kv_separator: str = _character("Character between key and value of kv, or its code.", "=")
    inlong_line_separator: str | None = _character(
        "Character between the rows in a record of csv or kv, or its code (`10` for a newline): each is a row.",
        None,
        "a record is one row",
    )
    inlong_escape: str | None = _character(
        "Character that makes the next one plain in csv and kv, or its code.", None, "none"
    )
    inlong_quote: str | None = _character(
        "Character that makes all characters plain up to the next one in csv and kv, or its code.", None, "none"
    )
    inlong_null_text: str | None = option(
        "Text of NULL in csv and kv.",
        default=None,
        default_text="an empty text, except for strings",
        scope=EVERYWHERE,
        parse=str,
    )

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        ours = [name for name in sorted(given) if name.startswith("inlong_")]
        if self.value_format != INLONG:
            yield from (f"{self.name_of(name)} needs valueFormat=inlong" for name in ours)
            return
        if self.inlong_fields is None and scope != WRITE:
            rest = [name for name in ours if name not in ("inlong_streams", "inlong_fields")]
            yield from (f"{self.name_of(name)} needs inlongFields" for name in rest)
            return
        for name in ours:
            kind = self.inlong_data_type
            meant_for = _MEANT_FOR.get(name, (kind,))
            if kind not in meant_for:
                yield (
                    f"{self.name_of(name)} has no meaning with inlongDataType={kind}, but with "
                    f"{' and '.join(meant_for)}: {_INSTEAD.get((name, kind), 'remove it')}"
                )
        special = self.layout.delimiters.special
        if len(set(special)) < len(special):
            yield f"inlongSeparator and the other characters of inlongDataType={self.inlong_data_type} must differ"

    @property
    def layout(self) -> StreamLayout:
        """The layout of records."""
        is_kv = self.inlong_data_type == KV
        delimiters = Delimiters(
            self.inlong_entry_separator if is_kv else self.inlong_separator,
            self.inlong_kv_separator if is_kv else None,
            self.inlong_line_separator,
            self.inlong_escape,
            self.inlong_quote,
        )
        zone = getattr(self, "message_time_zone", "UTC")
        return StreamLayout(self.inlong_data_type, delimiters, self.inlong_null_text, self.inlong_streams, zone)

    def finished(self, encoding: Encoding | None) -> Encoding | None:
        """Return an encoding with what these options add to it."""
        if encoding is None or not encoding.is_packed:
            return encoding
        return replace(encoding, definition=self.inlong_fields or "", layout=self.layout, has_schema=False)
