"""Options for the decoding and encoding of values, and the encodings that they select."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from spark_mq_source.core.options import WRITE, Options, Scope, Section, option, parse_text
from spark_mq_source.core.shared_options import EVERYWHERE, parse_one_of
from spark_mq_source.values.encodings import Encoding, TypedRead, TypedWrite, is_avro_definition

RAW: Final = "raw"
"""The `valueFormat` for undecoded bytes."""

AUTO: Final = "auto"
"""The `valueFormat` for the encoding that the schema registry names."""

INLONG: Final = "inlong"
"""The `valueFormat` for messages of InLong."""

DEFINED: Final = ("json", "avro", "protobuf")
"""The formats of values with a schema."""

_FILE: Final = "file:"


def _parse_definition(text: str) -> bytes:
    """Return the bytes of a schema from the option itself or a file.

    Raises:
        ValueError: the text is empty, or the file cannot be read.
    """
    if not text.startswith(_FILE):
        return parse_text(text.strip()).encode()
    path = Path(text.removeprefix(_FILE).removeprefix("//"))
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def value_schema_option(side: str = "value") -> Any:  # noqa: ANN401 - as `option`
    """Declare the option `valueSchema`, or `keySchema` with `side="key"`."""
    return option(
        f"Schema of the {side}s: with `avro` an Avro schema (JSON); with `json` one as well, or columns as in Spark's "
        f"`from_json` (`a int, b array<string>`); with `protobuf` a FileDescriptorSet (`protoc --include_imports "
        f"--descriptor_set_out`) in base64. Or `file:PATH` of a file with it (for a descriptor set, its bytes), on "
        f"the machine that plans the query. Writing: the schema of `json` and `avro` is derived from the struct if it "
        f"is not set.",
        default=None,
        scope=EVERYWHERE,
        parse=_parse_definition,
    )


def value_message_option(side: str = "value") -> Any:  # noqa: ANN401 - as `option`
    """Declare the option `valueMessage`, or `keyMessage` with `side="key"`."""
    return option(
        f"Full name of the message in `{side}Schema` with `{side}Format=protobuf`, such as `flights.Flight`.",
        default=None,
        scope=EVERYWHERE,
        parse=parse_text,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class TypedOptions(Options):
    """Options for decoding and encoding values."""

    typed: TypedRead | None = None
    """The decoding of a read; not an option: the driver derives it from the options and the registry."""

    encoded: TypedWrite | None = None
    """The encoding of a write, likewise."""

    value_format: str = option(
        "Encoding of the column `value`. `raw`: unchanged bytes. `json`, `avro`, `protobuf`: the type of "
        "`valueSchema`. `string`: text. Writing: a struct with `json`, `avro` or `protobuf`; binary or a string with "
        "`raw`.",
        default=RAW,
        scope=EVERYWHERE,
        parse=parse_one_of(RAW, *DEFINED, "string"),
        section=Section.VALUES,
    )
    value_schema: bytes | None = value_schema_option()
    value_message: str | None = value_message_option()
    flatten: bool = option(
        "Whether the fields of the decoded value are columns beside those of the message, instead of one struct "
        "`value`.",
        default=False,
    )

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        value_format = self.value_format
        for side, format_ in (("value", value_format), ("key", getattr(self, "key_format", RAW))):
            if (format_ == "protobuf") != (f"{side}_message" in given):
                yield f"{side}Format=protobuf and {side}Message go together: set both"
            yield from _schema_problems(side, format_, scope, has_schema=f"{side}_schema" in given)
        if scope != WRITE and self.flatten and value_format not in (AUTO, INLONG, *DEFINED):
            yield f"flatten needs values with fields: set valueFormat to {' or '.join(DEFINED)}, not {value_format}"

    def finished(self, encoding: Encoding | None) -> Encoding | None:
        """Return the encoding of the value with what further options of a format add to it."""
        return encoding


def encoding_of(name: str, definition: bytes | None, message: str | None) -> Encoding | None:
    """Return the encoding that the options of a key or value select; None for bytes.

    Raises:
        ValueError: the definition is not text.
    """
    if name in (RAW, AUTO):
        return None
    if definition is None:
        return Encoding(name)
    if name == "protobuf":
        from spark_mq_source.values.protobuf.schema import descriptors_of  # noqa: PLC0415 - few need it

        return Encoding(name, base64.b64encode(descriptors_of(definition)).decode(), message or "")
    return Encoding(name, definition.decode().strip())


def key_encoding_of(options: TypedOptions) -> Encoding | None:
    """Return the encoding of keys that the options select; None for bytes, and for formats without keys.

    Raises:
        ValueError: the definition is not text.
    """
    names = ("key_schema", "key_message")
    return encoding_of(getattr(options, "key_format", RAW), *(getattr(options, name, None) for name in names))


def typed_read_of(options: TypedOptions) -> TypedRead | None:
    """Return the decoding that the options determine without a registry; None if nothing is decoded.

    Raises:
        ValueError: a definition is not text.
    """
    value = options.finished(encoding_of(options.value_format, options.value_schema, options.value_message))
    key = key_encoding_of(options)
    if value is None and key is None and not options.flatten:
        return None
    return TypedRead(value, key, flatten=options.flatten or options.value_format == INLONG)


def _schema_problems(side: str, format_: str, scope: Scope, *, has_schema: bool) -> Iterator[str]:
    if has_schema and format_ not in DEFINED:
        hint = ": the registry has the schema" if format_ == AUTO else f": set {side}Format to avro, json or protobuf"
        yield f"{side}Schema has no meaning with {side}Format={format_}{hint}"
    elif not has_schema and (format_ == "protobuf" or (scope != WRITE and format_ == "avro")):
        # Of avro, a write derives it.
        yield f"{side}Format={format_} needs {side}Schema"


def typed_write_of(options: TypedOptions, *, registers: bool = False) -> TypedWrite | None:
    """Return the encoding of a write that the options determine; None if nothing is encoded.

    Args:
        options: the options of the write.
        registers: whether the broker stores a schema, so that an encoding always has one.

    Raises:
        ValueError: a definition is not text.
    """
    value = options.finished(encoding_of(options.value_format, options.value_schema, options.value_message))
    key = key_encoding_of(options)
    if value is None and key is None:
        return None
    if value is not None and options.value_schema is None and not value.is_packed:
        value = replace(value, has_schema=registers)
    if value is not None and not registers:
        value = replace(value, text_times=not is_avro_definition(value.definition))
    return TypedWrite(value, key)
