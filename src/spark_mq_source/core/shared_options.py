"""Options with the same meaning in every format, declared once: TLS, corrupt messages, batch sizes."""

from __future__ import annotations

import base64
import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from spark_mq_source.core.options import (
    INT32_MAX,
    READ,
    STREAM,
    WRITE,
    Scope,
    at_least,
    between,
    duration_option,
    option,
    parse_text,
    size_option,
)
from spark_mq_source.core.values.encodings import PRIMITIVES, Encoding, TypedRead, TypedWrite, is_avro_definition

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


class TypedOptions(Protocol):
    """The options that say how values are decoded."""

    @property
    def value_format(self) -> str:
        """How values are encoded."""

    @property
    def value_schema(self) -> bytes | None:
        """Their schema."""

    @property
    def value_message(self) -> str | None:
        """The name of their protobuf message."""

    @property
    def flatten(self) -> bool:
        """Whether the fields of the value are columns."""


class PaceOptions(Protocol):
    """The options that say how many rows a trigger has."""

    @property
    def min_rows_per_trigger(self) -> int | None:
        """How many a trigger waits for."""

    @property
    def max_rows_per_trigger(self) -> int | None:
        """How many it has at most."""


class TlsOptions(Protocol):
    """The options that make up `net.transport.TlsSettings`."""

    @property
    def trust_certs(self) -> str | None:
        """PEM file of the certificate authorities to trust."""

    @property
    def client_cert(self) -> str | None:
        """PEM file of the client certificate."""

    @property
    def client_key(self) -> str | None:
        """PEM file of the client certificate's private key."""

    @property
    def tls_verify_hostname(self) -> bool:
        """Whether a server's certificate must match its host name."""


def trust_certs_option(*aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """Option `trustCerts`."""
    return option(
        "PEM file of the certificate authorities to trust, on every machine that reads or writes.",
        default=None,
        default_text="the system's",
        scope=EVERYWHERE,
        aliases=aliases,
    )


def client_cert_option(shown_to: str, *aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """Option `clientCert`; `shown_to` names the servers that get the certificate."""
    doc = f"PEM file of the client certificate for {shown_to} (mTLS)."
    return option(doc, default=None, scope=EVERYWHERE, aliases=aliases)


def client_key_option(*aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """Option `clientKey`."""
    return option(
        "PEM file of the client certificate's private key.",
        default=None,
        default_text="in `clientCert`",
        scope=EVERYWHERE,
        aliases=aliases,
    )


def verify_hostname_option(whose: str, *aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """Option `tlsVerifyHostname`; `whose` is the possessive of the servers."""
    doc = f"Whether {whose} certificate must match the host name. The certificate itself is always verified."
    return option(doc, default=True, scope=EVERYWHERE, aliases=aliases)


def on_corrupt_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `onCorrupt`."""
    return option(
        "A message that cannot be decoded: `fail`; `skip`; `null` for a row with a NULL value; or `deadLetter`, which "
        "stores it in `deadLetterTopic` and gives no row. All but `fail` are logged.",
        default=OnCorrupt.FAIL,
    )


def wal_dir_option(why: str) -> Any:  # noqa: ANN401 - as `option`
    """Option `walDir`; `why` is a sentence on what it is for, and where it is required."""
    return option(
        "Folder for the write-ahead log, accessible to the driver and every executor: an absolute path (on one "
        "machine, or mounted on all), or `s3://`, `gs://`, `abfss://` (`pip install 'spark-mq-source[s3]'`; "
        f"credentials come from the environment). {why}",
        default=None,
    )


def run_id_option(parse: Callable[[str], str]) -> Any:  # noqa: ANN401 - as `option`
    """Option `runId`."""
    return option(
        "With `walDir`: identifies this read. Reading again with the same id returns the same rows, regardless of "
        "newer messages.",
        default=None,
        scope=READ,
        parse=parse,
    )


def max_rows_option(more: str = "") -> Any:  # noqa: ANN401 - as `option`
    """Option `maxRows`."""
    return option(f"The read ends after this many messages.{more}", default=None, scope=READ, check=at_least(1))


def max_seconds_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `maxSeconds`."""
    return option("The read ends after this many seconds.", default=None, scope=READ, check=at_least(1))


def idle_timeout_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `idleTimeout`."""
    return duration_option(
        "The read, or a trigger, ends after this time without a message: `2s`, `500ms`, or milliseconds. A read needs "
        "at least one of `maxRows`, `maxSeconds`, `idleTimeout`.",
        None,
        default_text="`500ms` in a stream",
    )


def drain_problems(given: frozenset[str], what: str) -> Iterator[str]:
    """Contradictions between the options of a read that takes messages from a queue; `what` has no end."""
    if not given & {"max_rows", "max_seconds", "idle_timeout_ms"}:
        yield f"{what} has no end: set maxRows, maxSeconds or idleTimeout"
    if "run_id" in given and "wal_dir" not in given:
        yield "runId needs walDir"
    if "wal_dir" in given and "run_id" not in given:
        yield "walDir needs runId, which identifies the rows stored there"


def min_rows_per_trigger_option(counted: str) -> Any:  # noqa: ANN401 - as `option`
    """Option `minRowsPerTrigger`; `counted` is a sentence on how exact it is."""
    return option(
        f"Minimum number of messages per trigger: a trigger waits until so many can be read, but not longer than "
        f"`maxTriggerDelay`. {counted} Not for `Trigger.AvailableNow` and `Trigger.Once`, which read what there is.",
        default=None,
        default_text="one",
        scope=STREAM,
        check=at_least(1),
    )


def max_trigger_delay_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `maxTriggerDelay`."""
    return duration_option(
        "Maximum time between two triggers while fewer than `minRowsPerTrigger` messages wait. The first trigger after "
        "a start is not delayed.",
        "15m",
        scope=STREAM,
    )


def pace_problems(options: PaceOptions, given: frozenset[str]) -> Iterator[str]:
    """Contradictions between the options that say how many rows a trigger has."""
    least, most = options.min_rows_per_trigger, options.max_rows_per_trigger
    if least is None and "max_trigger_delay_ms" in given:
        yield "maxTriggerDelay needs minRowsPerTrigger"
    if least is not None and most is not None and least > most:
        yield f"minRowsPerTrigger ({least}) is more than maxRowsPerTrigger ({most})"


def dead_letter_topic_option(parse: Callable[[str], str], *, doc: str) -> Any:  # noqa: ANN401 - as `option`
    """Option `deadLetterTopic`; `doc` says what a dead letter has, in Markdown."""
    return option(
        "With `onCorrupt=deadLetter`: the topic for messages that cannot be decoded, with their bytes as they were. "
        f"{doc} It must not be one that is read. A task that runs again sends its dead letters again.",
        default=None,
        parse=parse,
    )


def dead_letter_problems(
    on_corrupt: OnCorrupt, given: frozenset[str], *, is_read: bool, others: Mapping[str, bool] = _NO_OTHERS
) -> Iterator[str]:
    """Contradictions between `deadLetterTopic` and the options that use it.

    Args:
        on_corrupt: the option.
        given: the fields that the user set.
        is_read: whether the dead letter topic is read.
        others: the format's own options that use it, as `name=value`, and whether they are set so.
    """
    uses = {"onCorrupt=deadLetter": on_corrupt is OnCorrupt.DEAD_LETTER, **others}
    wanted = [name for name, is_set in uses.items() if is_set]
    if "dead_letter_topic" not in given:
        yield from (f"{name} and deadLetterTopic go together: set both" for name in wanted)
    elif not wanted:
        yield f"{' or '.join(uses)} and deadLetterTopic go together: set both"
    if is_read:
        yield "deadLetterTopic: must differ from a topic that is read, which would get its own messages back"


def value_format_option(*more: str, doc: str = "") -> Any:  # noqa: ANN401 - as `option`
    """Option `valueFormat`.

    Args:
        more: formats that the broker knows besides those of every format.
        doc: what the reference adds, in Markdown.
    """
    return option(
        "How the column `value` is encoded. `raw`: not at all, it is binary. `json`, `avro`, `protobuf`: it has the "
        f"type of `valueSchema`. `string`: it is text.{doc} Writing: a struct with `json`, `avro` or `protobuf`; `raw` "
        "is binary or a string.",
        default=RAW,
        scope=EVERYWHERE,
        parse=_parse_one_of(*dict.fromkeys((RAW, *DEFINED, "string", *more))),
    )


def key_format_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `keyFormat`."""
    return option(
        "The same of the column `key`: `raw`, `json`, `avro`, `protobuf`, `string`, or one of the single values. With "
        "a KEY_VALUE schema, `valueFormat=auto` decodes both. Writing: with it, key and value have a KEY_VALUE schema "
        "together.",
        default=RAW,
        scope=EVERYWHERE,
        parse=_parse_one_of(RAW, *DEFINED, *PRIMITIVES),
    )


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


def flatten_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `flatten`."""
    return option(
        "Whether the fields of the decoded value are columns beside those of the message, instead of one struct "
        "`value`.",
        default=False,
    )


def _parse_one_of(*names: str) -> Any:  # noqa: ANN401 - a parser, as `option` takes it
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


def typed_problems(options: TypedOptions, scope: Scope, given: frozenset[str]) -> Iterator[str]:
    """Contradictions between the options that say how values are decoded and encoded."""
    value_format = options.value_format
    for side, format_ in (("value", value_format), ("key", getattr(options, "key_format", RAW))):
        if (format_ == "protobuf") != (f"{side}_message" in given):
            yield f"{side}Format=protobuf and {side}Message go together: set both"
        yield from (_write_problems if scope == WRITE else _schema_problems)(side, format_, given)
    if scope == WRITE:
        return
    if options.flatten and value_format not in (AUTO, *DEFINED):
        yield f"flatten needs values with fields: set valueFormat to {' or '.join(DEFINED)}, not {value_format}"


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


def max_batch_rows_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `maxBatchRows`; `make bench` found its default to be best."""
    return option("Maximum number of rows in an Arrow batch.", default=100_000, check=between(1, INT32_MAX))


def max_batch_bytes_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `maxBatchBytes`; `make bench` found its default to be best."""
    return size_option("Bytes at which an Arrow batch is passed to Spark.", "2m", most="1g")
