"""Options with the same meaning in every format, declared once: TLS, corrupt messages, batch sizes."""

from __future__ import annotations

import enum
from typing import Any, Final, Protocol

from spark_mq_source.core.options import INT32_MAX, READ, STREAM, WRITE, Scope, between, option, size_option

EVERYWHERE: Final[Scope] = READ | STREAM | WRITE


class OnCorrupt(enum.StrEnum):
    """What to do with a message that cannot be decoded."""

    FAIL = "fail"
    SKIP = "skip"
    NULL = "null"


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
        "A message that cannot be decoded: `fail`, `skip`, or `null` for a row with a NULL value; the last two are "
        "logged.",
        default=OnCorrupt.FAIL,
    )


def max_batch_rows_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `maxBatchRows`; `make bench` found its default to be best."""
    return option("Maximum number of rows in an Arrow batch.", default=100_000, check=between(1, INT32_MAX))


def max_batch_bytes_option() -> Any:  # noqa: ANN401 - as `option`
    """Option `maxBatchBytes`; `make bench` found its default to be best."""
    return size_option("Bytes at which an Arrow batch is passed to Spark.", "2m", most="1g")
