"""Options for the columns, and for the encoding of keys."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from spark_mq_source.core.options import WRITE, Options, Scope, Section, StrEnum, option
from spark_mq_source.core.shared_options import EVERYWHERE, parse_one_of
from spark_mq_source.values.encodings import PRIMITIVES
from spark_mq_source.values.options import DEFINED, RAW, value_message_option, value_schema_option

NATIVE: Final = "pulsar-native"
PULSAR_SPARK: Final = "pulsar-spark"


class KeyValueEncodingType(StrEnum):
    """Place of the key of a KEY_VALUE schema."""

    SEPARATED = "SEPARATED"
    INLINE = "INLINE"


@dataclass(frozen=True, kw_only=True, repr=False)
class KeyOptions(Options):
    """Options for the columns, and for the encoding of keys."""

    columns: str = option(
        "Names and types of the columns: those of this format, or of `pulsar-spark` for a job that moves: `__key`, "
        "`__topic`, `__messageId` and so on beside the fields of the value, which the topic's schema decodes. Writing: "
        "all other columns are the value, with the schema of pulsar-spark.",
        default=NATIVE,
        scope=EVERYWHERE,
        parse=parse_one_of(NATIVE, PULSAR_SPARK),
        section=Section.VALUES,
    )
    key_format: str = option(
        "Encoding of the column `key`: `raw`, `json`, `avro`, `protobuf`, `string`, or one of the single values. With "
        "a KEY_VALUE schema, `valueFormat=auto` decodes both. Writing: with it, key and value have a KEY_VALUE schema "
        "together.",
        default=RAW,
        scope=EVERYWHERE,
        parse=parse_one_of(RAW, *DEFINED, *PRIMITIVES),
        section=Section.VALUES,
    )
    key_schema: bytes | None = value_schema_option("key")
    key_message: str | None = value_message_option("key")
    key_value_encoding: KeyValueEncodingType = option(
        "With `keyFormat`, the place of the key: `SEPARATED`, the message's key, by which the topic is partitioned "
        "and compacted; `INLINE`, the payload before the value, and the message has no key.",
        default=KeyValueEncodingType.SEPARATED,
        scope=WRITE,
    )

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if "key_value_encoding" in given and self.key_format == RAW:
            yield "keyValueEncoding needs keyFormat"
        if self.columns == PULSAR_SPARK:
            yield from (
                f"{self.name_of(field)} has no meaning with columns={PULSAR_SPARK}: remove it"
                for field in ("flatten", "key_format", "schema")
                if field in given
            )
