"""Groups of options with the same meaning in every format; see `options.Options`."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from spark_mq_source.core.errors import DataLossError
from spark_mq_source.core.options import (
    INT32_MAX,
    READ,
    STREAM,
    WRITE,
    Options,
    Scope,
    Section,
    StrEnum,
    at_least,
    between,
    duration_option,
    option,
    size_option,
)

logger = logging.getLogger(__name__)

EVERYWHERE: Final[Scope] = READ | STREAM | WRITE


class OnCorrupt(StrEnum):
    """Action for a message that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"
    NULL = "null"
    DEAD_LETTER = "deadLetter"


_NEEDED_FILES: Final = {
    "client_key": "client_cert",
    "client_key_password": "client_cert",
    "trust_certs_password": "trust_certs",
}
_NO_OTHERS: Final[Mapping[str, bool]] = {}


def parse_one_of(*names: str) -> Callable[[str], str]:
    """Return a parser for an option that takes one of these names, in any case."""
    known = {name.lower(): name for name in names}

    def parse(text: str) -> str:
        if text.lower() not in known:
            raise ValueError(f"expected {', '.join(names[:-1])} or {names[-1]}")
        return known[text.lower()]

    return parse


def parse_run_id(text: str) -> str:
    """Return the text if it can be the name of a folder.

    Raises:
        ValueError: it cannot.
    """
    if not re.fullmatch(r"[-.\w]{1,200}", text, re.ASCII) or set(text) == {"."}:
        raise ValueError("expected letters, digits, '.', '_' or '-', at most 200")
    return text


# Longer than any topic name, and short enough to compile quickly.
_MAX_PATTERN: Final = 1000
# Matches (..a+..)* and similar, but not the possessive (..a++..)*; a{3} inside is harmless, a{3,} is not.
_REPEATED_REPETITION: Final = re.compile(
    r"\([^()]*(?:(?<![\\+*?}])[+*](?!\+)|\{[0-9]*,[0-9]*\}(?!\+))[^()]*\)(?:[+*](?!\+)|\{[0-9]*,)"
)


TOPIC_FIELDS: Final = ("topic", "topics", "topics_pattern")
"""The fields of the three options that choose what a read reads."""


def parse_regex(expression: str) -> re.Pattern[str]:
    """Compile a regular expression for names of topics, unless Java reads it differently or it may never end.

    Raises:
        ValueError: not such an expression; the message gives the reason.

    Example:
        >>> parse_regex("flights-.*").fullmatch("flights-2013") is not None
        True
    """
    if len(expression) > _MAX_PATTERN:
        raise ValueError(f"longer than {_MAX_PATTERN} characters")
    # Other expressions can backtrack endlessly too, but this form is written by accident.
    if _REPEATED_REPETITION.search(expression):
        raise ValueError(
            "a repeated group that contains a repetition can take for ever to match; remove the inner repetition"
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", FutureWarning)  # nested sets, which Java reads differently
            return re.compile(expression)
    except (re.error, FutureWarning, RecursionError, OverflowError) as error:
        raise ValueError(f"not a regular expression: {error}") from None


@dataclass(frozen=True, kw_only=True, repr=False)
class TlsOptions(Options):
    """Options that set `net.transport.TlsSettings`."""

    tls_remedy: ClassVar[str] = "set tls=true"
    """The remedy for a certificate without TLS."""

    trust_certs: str | None = option(
        "File of the certificate authorities to trust, on every machine that reads or writes: PEM, or a store of type "
        "PKCS12 or JKS, whose certificates are all trusted.",
        default=None,
        default_text="the system's",
        scope=EVERYWHERE,
        section=Section.AUTHENTICATE,
    )
    trust_certs_password: str | None = option(
        "Password of the store in `trustCerts`. A JKS store needs none; its integrity is then not verified.",
        default=None,
        scope=EVERYWHERE,
        secret=True,
    )
    client_cert: str | None = option(
        "File of the client certificate, for servers that require one (mTLS): PEM, or a store of type PKCS12 or JKS "
        "with one private key. Read for each connection.",
        default=None,
        scope=EVERYWHERE,
    )
    client_key: str | None = option(
        "PEM file of the client certificate's private key.",
        default=None,
        default_text="in `clientCert`",
        scope=EVERYWHERE,
    )
    client_key_password: str | None = option(
        "Password of the private key: of the store in `clientCert` and its key, or of an encrypted PEM file.",
        default=None,
        scope=EVERYWHERE,
        secret=True,
    )
    tls_verify_hostname: bool = option(
        "Whether the server's certificate must match its host name. The certificate itself is always verified.",
        default=True,
        scope=EVERYWHERE,
    )

    @property
    def has_tls(self) -> bool:
        """True if any connection uses TLS."""
        raise NotImplementedError

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        for field, file in _NEEDED_FILES.items():
            if field in given and file not in given:
                yield f"{self.name_of(field)} needs {self.name_of(file)}"
        if not self.has_tls:
            for field in ("trust_certs", "client_cert"):
                if field in given:
                    yield f"{self.name_of(field)} has no meaning without TLS: {self.tls_remedy}"


@dataclass(frozen=True, kw_only=True, repr=False)
class LossOptions(Options):
    """Option of a read by position, from which the broker can have removed messages."""

    fail_on_data_loss: bool = option(
        "Whether to fail if messages of the range are no longer on the broker, or if a position never existed there "
        "(recreated topic, different cluster). `false` logs the loss and continues with the messages that remain.",
        default=True,
        section=Section.FAIL,
    )

    def report_loss(self, loss: str, *, task: object = None) -> None:
        """Report that messages are lost.

        Args:
            loss: the place, the messages and what to do.
            task: the task that reports it, which begins the line of the log; its reader adds it to errors.

        Raises:
            DataLossError: unless `failOnDataLoss` is false; then it is logged.
        """
        if self.fail_on_data_loss:
            raise DataLossError(loss)
        logger.warning("%s", loss if task is None else f"{task}: {loss}")


@dataclass(frozen=True, kw_only=True, repr=False)
class DrainOptions(Options):
    """Options of a read that takes messages from a queue."""

    wal_dir: str | None = option(
        "Folder for the write-ahead log, accessible to the driver and every executor: an absolute path (on one "
        "machine, or mounted on all), or `s3://`, `gs://`, `abfss://` (`pip install 'spark-mq-source[s3]'`; "
        "credentials come from the environment). A batch read also needs `runId`.",
        default=None,
        section=Section.DRAIN,
    )
    run_id: str | None = option(
        "Identifier of this read in `walDir`. Reading again with the same id returns the same rows, regardless of "
        "newer messages.",
        default=None,
        scope=READ,
        parse=parse_run_id,
    )
    max_rows: int | None = option(
        "The read ends after this many messages; without `maxSeconds` and `idleTimeout`, also after 2 s without a "
        "message.",
        default=None,
        scope=READ,
        check=at_least(1),
    )
    max_seconds: int | None = option(
        "The read ends after this many seconds.", default=None, scope=READ, check=at_least(1)
    )
    idle_timeout_ms: int | None = duration_option(
        "The read, or a trigger, ends after this time without a message: `2s`, `500ms`, or milliseconds. A read needs "
        "at least one of `maxRows`, `maxSeconds`, `idleTimeout`.",
        None,
        default_text="`500ms` in a stream; `2s` in a batch read without `maxSeconds`",
    )

    @staticmethod
    def drain_problems(given: frozenset[str], source: str) -> Iterator[str]:
        """Yield the contradictions between the options of a batch read of `source`, which has no end."""
        if not given & {"max_rows", "max_seconds", "idle_timeout_ms"}:
            yield f"{source} has no end: set maxRows, maxSeconds or idleTimeout"
        if "run_id" in given and "wal_dir" not in given:
            yield "runId needs walDir"
        if "wal_dir" in given and "run_id" not in given:
            yield "walDir needs runId, which identifies the rows stored there"


@dataclass(frozen=True, kw_only=True, repr=False)
class PaceOptions(Options):
    """Options of a stream's triggers: their rows, and what they wait for."""

    max_rows_per_trigger: int | None = option(
        "Maximum number of messages per trigger, distributed by backlog.",
        default=None,
        default_text="no limit",
        scope=STREAM,
        check=at_least(1),
        section=Section.LIMIT,
    )
    min_rows_per_trigger: int | None = option(
        "Minimum number of messages per trigger: a trigger waits until so many can be read, but not longer than "
        "`maxTriggerDelay`. Not for `Trigger.AvailableNow` and `Trigger.Once`, which read the backlog.",
        default=None,
        default_text="one",
        scope=STREAM,
        check=at_least(1),
        section=Section.LIMIT,
    )
    max_trigger_delay_ms: int = duration_option(
        "Maximum time between two triggers while fewer than `minRowsPerTrigger` messages wait; needs that option. The "
        "first trigger after a start is not delayed.",
        "15m",
        scope=STREAM,
    )
    wait_for_topic_ms: int | None = duration_option(
        "Time for which a new query waits for topics that do not exist yet: `5m`.",
        None,
        default_text="a missing topic is an error",
        scope=STREAM,
        section=Section.FAIL,
    )

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        least, most = self.min_rows_per_trigger, self.max_rows_per_trigger
        if least is None and "max_trigger_delay_ms" in given:
            yield "maxTriggerDelay needs minRowsPerTrigger"
        if least is not None and most is not None and least > most:
            yield f"minRowsPerTrigger ({least}) is more than maxRowsPerTrigger ({most})"


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchOptions(Options):
    """Options that limit a task and its Arrow batches; `make bench` found the best defaults."""

    max_batch_rows: int = option(
        "Maximum number of rows in an Arrow batch.",
        default=100_000,
        check=between(1, INT32_MAX),
        section=Section.LIMIT,
    )
    max_records_per_partition: int | None = option(
        "Maximum number of messages of a task: what a batch or micro-batch reads of a partition is split into as many "
        "tasks as that takes.",
        default=None,
        default_text="no limit",
        check=at_least(1),
    )
    max_batch_bytes: int = size_option("Bytes at which an Arrow batch is passed to Spark.", "2m", most="1g")


@dataclass(frozen=True, kw_only=True, repr=False)
class SendOptions(Options):
    """Options that limit what a write sends ahead, and how long it waits."""

    max_pending_bytes: int = size_option(
        "Maximum bytes that a task may have sent without an acknowledgement.",
        "16m",
        scope=WRITE,
        section=Section.LIMIT,
    )
    send_timeout_ms: int = duration_option(
        "Maximum time a task waits, while retrying, without any acknowledgement of the messages it sent.",
        "1m",
        scope=WRITE,
        section=Section.FAIL,
    )


@dataclass(frozen=True, kw_only=True, repr=False)
class CorruptOptions(Options):
    """Options about messages that cannot be decoded."""

    on_corrupt: OnCorrupt = option(
        "Action for a message that cannot be decoded: `fail`; `skip`; `null` for a row with a NULL value; or "
        "`deadLetter`, which stores it in `deadLetterTopic` and gives no row. All but `fail` are logged.",
        default=OnCorrupt.FAIL,
        section=Section.FAIL,
    )
    dead_letter_topic: str | None = option(
        "Topic for messages that cannot be decoded, with their original bytes: see `onCorrupt=deadLetter`. It "
        "must not be one that is read. A task that runs again sends its dead letters again.",
        default=None,
    )

    @property
    def topic_names(self) -> tuple[str, ...]:
        """The names of `topic` or `topics`; empty if `topics_pattern` is set."""
        raise NotImplementedError

    @property
    def topics_pattern(self) -> Any:  # noqa: ANN401 - a regular expression, in Pulsar with namespaces
        """The option `topicsPattern`, which each format declares."""
        raise NotImplementedError

    def reads_topic(self, topic: str) -> bool:
        """Return whether a read with these options reads a topic."""
        return topic in self.topic_names or bool(self.topics_pattern and self.topics_pattern.fullmatch(topic))

    def dead_letter_problems(self, given: frozenset[str], others: Mapping[str, bool] = _NO_OTHERS) -> Iterator[str]:
        """Yield the contradictions between `deadLetterTopic`, the topics that are read, and the options that use it.

        `others` are the format's further options that use it, as `name=value`, and whether they have that value.
        """
        uses = {"onCorrupt=deadLetter": self.on_corrupt is OnCorrupt.DEAD_LETTER, **others}
        wanted = [name for name, is_set in uses.items() if is_set]
        if "dead_letter_topic" not in given:
            yield from (f"{name} and deadLetterTopic go together: set both" for name in wanted)
        elif not wanted:
            yield f"{' or '.join(uses)} and deadLetterTopic go together: set both"
        if self.dead_letter_topic is not None and self.reads_topic(self.dead_letter_topic):
            yield "deadLetterTopic: must differ from a topic that is read, which would get its own messages back"
