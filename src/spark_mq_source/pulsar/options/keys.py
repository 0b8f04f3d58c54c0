"""Options for the encoding of keys."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from spark_mq_source.core.options import WRITE, Options, Scope, Section, StrEnum, option
from spark_mq_source.core.shared_options import EVERYWHERE, parse_one_of
from spark_mq_source.values.encodings import PRIMITIVES
from spark_mq_source.values.options import DEFINED, RAW, value_message_option, value_schema_option


class KeyValueEncodingType(StrEnum):
    """Place of the key of a KEY_VALUE schema."""

    SEPARATED = "SEPARATED"
    INLINE = "INLINE"


@dataclass(frozen=True, kw_only=True, repr=False)
class KeyOptions(Options):
    """Options for the encoding of keys."""

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

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """Yield the contradictions between options, one sentence each."""
        yield from super().problems(scope, given)
        if "key_value_encoding" in given and self.key_format == RAW:
            yield "keyValueEncoding needs keyFormat"
