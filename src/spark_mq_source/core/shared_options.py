"""Options that mean the same in every format, declared once: how a connection is secured, how large a batch is."""

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
    """The options of which `net.transport.TlsSettings` are made."""

    @property
    def trust_certs(self) -> str | None:
        """PEM file of the authorities to trust."""

    @property
    def client_cert(self) -> str | None:
        """PEM file of the certificate to show."""

    @property
    def client_key(self) -> str | None:
        """PEM file of its key."""

    @property
    def tls_verify_hostname(self) -> bool:
        """Whether a certificate must be for the host."""


def trust_certs_option(*aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """The authorities to trust."""
    return option(
        "PEM file of the authorities to trust, on every machine that reads or writes.",
        default=None,
        default_text="the system's",
        scope=EVERYWHERE,
        aliases=aliases,
    )


def client_cert_option(shown_to: str, *aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """The certificate to show, and to whom."""
    doc = f"PEM file of the certificate to show to {shown_to} (mTLS)."
    return option(doc, default=None, scope=EVERYWHERE, aliases=aliases)


def client_key_option(*aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """Its key."""
    return option(
        "PEM file of that certificate's private key.",
        default=None,
        default_text="in `clientCert`",
        scope=EVERYWHERE,
        aliases=aliases,
    )


def verify_hostname_option(whose: str, *aliases: str) -> Any:  # noqa: ANN401 - as `option`
    """Whether the certificate of a server must be for its host."""
    doc = (
        f"Whether {whose} certificate must be for the host name connected to. The certificate itself is always checked."
    )
    return option(doc, default=True, scope=EVERYWHERE, aliases=aliases)


def on_corrupt_option() -> Any:  # noqa: ANN401 - as `option`
    """What becomes of a corrupt message."""
    return option(
        "A message that cannot be decoded: `fail`, `skip` it, or `null` for a row without value; both are logged.",
        default=OnCorrupt.FAIL,
    )


def max_batch_rows_option() -> Any:  # noqa: ANN401 - as `option`
    """The most rows of a batch; the default is what `make bench` found to be best."""
    return option("Most rows of one Arrow batch.", default=100_000, check=between(1, INT32_MAX))


def max_batch_bytes_option() -> Any:  # noqa: ANN401 - as `option`
    """The most bytes of a batch; the default is what `make bench` found to be best."""
    return size_option("An Arrow batch is handed over when it holds this much.", "2m", most="1g")
