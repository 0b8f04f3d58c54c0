"""Groups of options with the same meaning in every format, declared once; see `options.Options`."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import base64
import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Final

from spark_mq_source.core.options import (
    INT32_MAX,
    READ,
    STREAM,
    WRITE,
    Options,
    Scope,
    at_least,
    between,
    duration_option,
    option,
    parse_text,
    size_option,
)
from spark_mq_source.core.values.encodings import Encoding, TypedRead, TypedWrite, is_avro_definition

EVERYWHERE: Final[Scope] = READ | STREAM | WRITE


class OnCorrupt(enum.StrEnum):
    """What to do with a message that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"
    NULL = "null"
    DEAD_LETTER = "deadLetter"


RAW: Final = "raw"
"""The `valueFormat` of bytes that are not decoded."""

AUTO: Final = "auto"
"""The `valueFormat` by which the registry says how values are encoded."""

DEFINED: Final = ("json", "avro", "protobuf")
"""The formats of values that have a schema."""

_FILE: Final = "file:"
_NO_OTHERS: Final[Mapping[str, bool]] = {}


def parse_one_of(*names: str) -> Callable[[str], str]:
    """Return the parser of an option that takes one of these names, in any case."""

    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"expected {', '.join(names[:-1])} or {names[-1]}")
        return text.lower()

    return parse


def _parse_definition(text: str) -> bytes:
    """The bytes of a schema, from the option itself or a file.

    Raises:
        ValueError: empty, or the file cannot be read.
    """
    if not text.startswith(_FILE):
        return parse_text(text.strip()).encode()
    path = Path(text.removeprefix(_FILE).removeprefix("//"))
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror}") from None


def parse_run_id(text: str) -> str:
    """Return a name that can be a folder's.

    Raises:
        ValueError: it cannot.
    """
    if not re.fullmatch(r"[-.\w]{1,200}", text, re.ASCII) or set(text) == {"."}:
        raise ValueError("expected letters, digits, '.', '_' or '-', at most 200")
    return text


def value_schema_option(side: str = "value") -> Any:  # noqa: ANN401 - as `option`
    """Option `valueSchema`, or `keySchema` with `side="key"`."""
    return option(
        f"Schema of the {side}s: with `avro` an Avro schema (JSON); with `json` one as well, or columns as in Spark's "
        f"`from_json` (`a int, b array<string>`); with `protobuf` a FileDescriptorSet (`protoc --include_imports "
        f"--descriptor_set_out`) in base64. Or `file:PATH` of a file with it (of a descriptor set, the bytes as they "
        f"are), on the machine that plans the query. Writing: that of `json` and `avro` is derived from the struct if "
        f"it is not set.",
        default=None,
        scope=EVERYWHERE,
        parse=_parse_definition,
    )


def value_message_option(side: str = "value") -> Any:  # noqa: ANN401 - as `option`
    """Option `valueMessage`, or `keyMessage` with `side="key"`."""
    return option(
        f"With `{side}Format=protobuf`: the full name of the message in `{side}Schema`, such as `flights.Flight`.",
        default=None,
        scope=EVERYWHERE,
        parse=parse_text,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class TlsOptions(Options):
    """Options that make up `net.transport.TlsSettings`."""

    tls_remedy: ClassVar[str] = "set tls=true"
    """The remedy for a certificate without TLS."""

    trust_certs: str | None = option(
        "PEM file of the certificate authorities to trust, on every machine that reads or writes.",
        default=None,
        default_text="the system's",
        scope=EVERYWHERE,
    )
    client_cert: str | None = option(
        "PEM file of the client certificate, for servers that require one (mTLS).", default=None, scope=EVERYWHERE
    )
    client_key: str | None = option(
        "PEM file of the client certificate's private key.",
        default=None,
        default_text="in `clientCert`",
        scope=EVERYWHERE,
    )
    tls_verify_hostname: bool = option(
        "Whether the server's certificate must match its host name. The certificate itself is always verified.",
        default=True,
        scope=EVERYWHERE,
    )

    @property
    def has_tls(self) -> bool:
        """Whether any connection uses TLS."""
        raise NotImplementedError

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """Yield the contradictions between options, one sentence each."""
        yield from super().problems(scope, given)
        if "client_key" in given and "client_cert" not in given:
            yield "clientKey needs clientCert"
        if not self.has_tls:
            for field in ("trust_certs", "client_cert"):
                if field in given:
                    yield f"{self.name_of(field)} has no meaning without TLS: {self.tls_remedy}"


@dataclass(frozen=True, kw_only=True, repr=False)
class DrainOptions(Options):
    """Options of a read that takes messages from a queue."""

    wal_dir: str | None = option(
        "Folder for the write-ahead log, accessible to the driver and every executor: an absolute path (on one "
        "machine, or mounted on all), or `s3://`, `gs://`, `abfss://` (`pip install 'spark-mq-source[s3]'`; "
        "credentials come from the environment).",
        default=None,
    )
    run_id: str | None = option(
        "With `walDir`: identifies this read. Reading again with the same id returns the same rows, regardless of "
        "newer messages.",
        default=None,
        scope=READ,
        parse=parse_run_id,
    )
    max_rows: int | None = option(
        "The read ends after this many messages.", default=None, scope=READ, check=at_least(1)
    )
    max_seconds: int | None = option(
        "The read ends after this many seconds.", default=None, scope=READ, check=at_least(1)
    )
    idle_timeout_ms: int | None = duration_option(
        "The read, or a trigger, ends after this time without a message: `2s`, `500ms`, or milliseconds. A read needs "
        "at least one of `maxRows`, `maxSeconds`, `idleTimeout`.",
        None,
        default_text="`500ms` in a stream",
    )

    @staticmethod
    def drain_problems(given: frozenset[str], source: str) -> Iterator[str]:
        """Yield the contradictions between the options of a batch read of `source`, which has no end of its own."""
        if not given & {"max_rows", "max_seconds", "idle_timeout_ms"}:
            yield f"{source} has no end: set maxRows, maxSeconds or idleTimeout"
        if "run_id" in given and "wal_dir" not in given:
            yield "runId needs walDir"
        if "wal_dir" in given and "run_id" not in given:
            yield "walDir needs runId, which identifies the rows stored there"


@dataclass(frozen=True, kw_only=True, repr=False)
class PaceOptions(Options):
    """Options that limit the rows of a trigger."""

    max_rows_per_trigger: int | None = option(
        "Maximum number of messages per trigger, distributed by backlog.",
        default=None,
        default_text="no limit",
        scope=STREAM,
        check=at_least(1),
    )
    min_rows_per_trigger: int | None = option(
        "Minimum number of messages per trigger: a trigger waits until so many can be read, but not longer than "
        "`maxTriggerDelay`. Not for `Trigger.AvailableNow` and `Trigger.Once`, which read the backlog.",
        default=None,
        default_text="one",
        scope=STREAM,
        check=at_least(1),
    )
    max_trigger_delay_ms: int = duration_option(
        "Maximum time between two triggers while fewer than `minRowsPerTrigger` messages wait. The first trigger after "
        "a start is not delayed.",
        "15m",
        scope=STREAM,
    )

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """Yield the contradictions between options, one sentence each."""
        yield from super().problems(scope, given)
        least, most = self.min_rows_per_trigger, self.max_rows_per_trigger
        if least is None and "max_trigger_delay_ms" in given:
            yield "maxTriggerDelay needs minRowsPerTrigger"
        if least is not None and most is not None and least > most:
            yield f"minRowsPerTrigger ({least}) is more than maxRowsPerTrigger ({most})"


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchOptions(Options):
    """Options that limit an Arrow batch; `make bench` found their defaults to be best."""

    max_batch_rows: int = option(
        "Maximum number of rows in an Arrow batch.", default=100_000, check=between(1, INT32_MAX)
    )
    max_batch_bytes: int = size_option("Bytes at which an Arrow batch is passed to Spark.", "2m", most="1g")


@dataclass(frozen=True, kw_only=True, repr=False)
class CorruptOptions(Options):
    """Options about messages that cannot be decoded."""

    on_corrupt: OnCorrupt = option(
        "A message that cannot be decoded: `fail`; `skip`; `null` for a row with a NULL value; or `deadLetter`, which "
        "stores it in `deadLetterTopic` and gives no row. All but `fail` are logged.",
        default=OnCorrupt.FAIL,
    )
    dead_letter_topic: str | None = option(
        "With `onCorrupt=deadLetter`: the topic for messages that cannot be decoded, with their bytes as they were. It "
        "must not be one that is read. A task that runs again sends its dead letters again.",
        default=None,
    )

    def dead_letter_problems(
        self, given: frozenset[str], *, is_read: bool, others: Mapping[str, bool] = _NO_OTHERS
    ) -> Iterator[str]:
        """Yield the contradictions between `deadLetterTopic` and the options that use it.

        Args:
            given: the fields that the user set.
            is_read: whether the dead letter topic is read.
            others: the format's own options that use it, as `name=value`, and whether they are set so.
        """
        uses = {"onCorrupt=deadLetter": self.on_corrupt is OnCorrupt.DEAD_LETTER, **others}
        wanted = [name for name, is_set in uses.items() if is_set]
        if "dead_letter_topic" not in given:
            yield from (f"{name} and deadLetterTopic go together: set both" for name in wanted)
        elif not wanted:
            yield f"{' or '.join(uses)} and deadLetterTopic go together: set both"
        if is_read:
            yield "deadLetterTopic: must differ from a topic that is read, which would get its own messages back"


@dataclass(frozen=True, kw_only=True, repr=False)
class TypedOptions(Options):
    """Options that say how values are decoded and encoded."""

    value_format: str = option(
        "Encoding of the column `value`. `raw`: the bytes as they are. `json`, `avro`, `protobuf`: the type of "
        "`valueSchema`. `string`: text. Writing: a struct with `json`, `avro` or `protobuf`; binary or a string with "
        "`raw`.",
        default=RAW,
        scope=EVERYWHERE,
        parse=parse_one_of(RAW, *DEFINED, "string"),
    )
    value_schema: bytes | None = value_schema_option()
    value_message: str | None = value_message_option()
    flatten: bool = option(
        "Whether the fields of the decoded value are columns beside those of the message, instead of one struct "
        "`value`.",
        default=False,
    )

    def problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        """Yield the contradictions between options, one sentence each."""
        yield from super().problems(scope, given)
        value_format = self.value_format
        for side, format_ in (("value", value_format), ("key", getattr(self, "key_format", RAW))):
            if (format_ == "protobuf") != (f"{side}_message" in given):
                yield f"{side}Format=protobuf and {side}Message go together: set both"
            yield from (_write_problems if scope == WRITE else _schema_problems)(side, format_, given)
        if scope != WRITE and self.flatten and value_format not in (AUTO, *DEFINED):
            yield f"flatten needs values with fields: set valueFormat to {' or '.join(DEFINED)}, not {value_format}"


def encoding_of(name: str, definition: bytes | None, message: str | None) -> Encoding | None:
    """The encoding that the options of a key or value name; None for bytes.

    Raises:
        ValueError: the definition is no text.
    """
    if name in (RAW, AUTO):
        return None
    if definition is None:
        return Encoding(name)
    if name == "protobuf":
        from spark_mq_source.core.values.protobuf_schema import descriptors_of  # noqa: PLC0415 - few need it

        return Encoding(name, base64.b64encode(descriptors_of(definition)).decode(), message or "")
    return Encoding(name, definition.decode().strip())


def key_encoding_of(options: TypedOptions) -> Encoding | None:
    """The encoding of keys that the options name; None for bytes, and for formats without keys.

    Raises:
        ValueError: the definition is no text.
    """
    names = ("key_schema", "key_message")
    return encoding_of(getattr(options, "key_format", RAW), *(getattr(options, name, None) for name in names))


def typed_read_of(options: TypedOptions) -> TypedRead | None:
    """What the options say that a read decodes, without a registry; None for nothing.

    Raises:
        ValueError: a definition is no text.
    """
    value = encoding_of(options.value_format, options.value_schema, options.value_message)
    key = key_encoding_of(options)
    if value is None and key is None and not options.flatten:
        return None
    return TypedRead(value, key, flatten=options.flatten)


def _schema_problems(side: str, format_: str, given: Sequence[str] | frozenset[str]) -> Iterator[str]:
    has_schema = f"{side}_schema" in given
    if has_schema and format_ not in DEFINED:
        hint = ": the registry has the schema" if format_ == AUTO else f": set {side}Format to avro, json or protobuf"
        yield f"{side}Schema has no meaning with {side}Format={format_}{hint}"
    if not has_schema and format_ in ("avro", "protobuf"):
        yield f"{side}Format={format_} needs {side}Schema"


def _write_problems(side: str, format_: str, given: frozenset[str]) -> Iterator[str]:
    if format_ == AUTO:
        yield f"{side}Format={format_} is for reading: name another encoding to write"
    elif format_ == "protobuf" and f"{side}_schema" not in given:
        yield f"{side}Format={format_} needs {side}Schema"
    elif f"{side}_schema" in given and format_ not in DEFINED:
        yield f"{side}Schema has no meaning with {side}Format={format_}: set {side}Format to avro, json or protobuf"


def typed_write_of(options: TypedOptions, *, registers: bool = False) -> TypedWrite | None:
    """What the options say that a write encodes; None for nothing.

    Args:
        options: of the write.
        registers: whether the broker keeps a schema, so that there is always one.

    Raises:
        ValueError: a definition is no text.
    """
    value = encoding_of(options.value_format, options.value_schema, options.value_message)
    key = key_encoding_of(options)
    if value is None and key is None:
        return None
    if value is not None and options.value_schema is None:
        value = replace(value, has_schema=registers)
    if value is not None and not registers:
        value = replace(value, text_times=not is_avro_definition(value.definition))
    return TypedWrite(value, key)
