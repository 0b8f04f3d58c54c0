"""Options for the addresses of the brokers and the client's identity."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final
from urllib.parse import SplitResult, urlsplit

from spark_mq_source.core.options import Scope, Section, duration_option, option, parse_text
from spark_mq_source.core.shared_options import EVERYWHERE, TlsOptions
from spark_mq_source.core.user_functions import parse_function

_DEFAULT_PORTS: Final = {"pulsar": 6650, "pulsar+ssl": 6651}


def parse_service_url(text: str) -> tuple[tuple[tuple[str, int], ...], bool]:
    """Parse a service URL into addresses, as (host, port), and whether they use TLS.

    Raises:
        ValueError: not a Pulsar service URL; the message gives the reason.

    Example:
        >>> parse_service_url("pulsar+ssl://h1,[::1]:7000")
        ((('h1', 6651), ('::1', 7000)), True)
    """
    scheme, found, rest = text.partition("://")
    if scheme.lower() in ("http", "https"):
        raise ValueError(
            "that is the admin address (adminUrl); the service address begins with pulsar:// (port 6650) or "
            "pulsar+ssl:// (port 6651)"
        )
    if not found or scheme.lower() not in _DEFAULT_PORTS:
        raise ValueError("expected pulsar://host:6650 or pulsar+ssl://host:6651, more hosts after commas")
    if "@" in rest:
        raise ValueError(
            "the address cannot contain a user or password; set authToken, or authBasicUser and authBasicPassword"
        )
    if "://" in rest:
        raise ValueError(f"write the scheme once, at the beginning: {scheme}://host1:port,host2:port")
    addresses = tuple(
        _parse_address(one.strip(), _DEFAULT_PORTS[scheme.lower()]) for one in rest.removesuffix("/").split(",")
    )
    return addresses, scheme.lower() == "pulsar+ssl"


def _parse_address(text: str, default_port: int) -> tuple[str, int]:
    match = re.fullmatch(r"(?:\[(?P<v6>[^]]*)\]|(?P<host>[A-Za-z0-9_.-]+))(?::(?P<port>[0-9]{1,5}))?", text, re.ASCII)
    if not match:
        more = "; put an IPv6 address in brackets" if text.count(":") > 1 else ""
        raise ValueError(f"{text!r} is not host or host:port{more}")
    port = int(match["port"]) if match["port"] else default_port
    if not 1 <= port <= 65535:
        raise ValueError(f"{port} is not a port")
    if match["host"]:
        return match["host"], port
    try:
        return str(ipaddress.IPv6Address(match["v6"])), port
    except ValueError:
        raise ValueError(f"{match['v6']!r} is not an IPv6 address") from None


def _parse_service_urls(text: str) -> tuple[str, ...]:
    urls = tuple(parse_text(url.strip()) for url in text.split(";"))
    for url in urls:
        parse_service_url(url)
    return urls


def _check_proxy_url(text: str) -> None:
    addresses, uses_tls = parse_service_url(text)
    if not uses_tls or len(addresses) > 1:
        raise ValueError("expected the address of one proxy: pulsar+ssl://host:4443")


def _parse_admin_url(text: str) -> str:
    parts = urlsplit(parse_text(text))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected http://host:8080 or https://host:8443")
    return _checked_url(text, parts)


def _checked_url(text: str, parts: SplitResult) -> str:
    if "@" in parts.netloc:
        raise ValueError("the address cannot contain a user or password")
    if parts.query or parts.fragment:
        raise ValueError("expected an address without ? and #")
    _ = parts.port  # raises ValueError if it is not a port
    return text.rstrip("/")


def _parse_issuer_url(text: str) -> str:
    """Check the URL of a token issuer, and return it.

    Raises:
        ValueError: not a URL, or one to which a secret must not be sent.
    """
    parts = urlsplit(parse_text(text))
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("expected https://issuer")
    if parts.scheme == "http" and not _is_loopback(parts.hostname):
        raise ValueError("the client's secret is sent there, so it must begin with https://")
    return _checked_url(text, parts)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, kw_only=True, repr=False)
class ConnectionOptions(TlsOptions):
    """Options for the addresses of the brokers and the client's identity."""

    tls_remedy: ClassVar[str] = "begin serviceUrl with pulsar+ssl://, or adminUrl with https://"

    service_url: str = option(
        "Address of the brokers or the proxy: `pulsar://host1:6650,host2:6650`, or `pulsar+ssl://` for TLS. Default "
        "ports: 6650 and, with TLS, 6651.",
        scope=EVERYWHERE,
        parse=parse_text,
        check=parse_service_url,
        section=Section.CONNECT,
    )
    failover_service_urls: tuple[str, ...] = option(
        "Addresses of other clusters, each as `serviceUrl`, separated by `;`: the first one that can be reached is "
        "used if that of `serviceUrl` cannot. For batch reads, which stay on the cluster on which they were planned, "
        "and for writes with `deliveryGuarantee=at-least-once`, of which each task attempt stays on one cluster: see "
        "[another cluster](../guarantees/broker.md#another-cluster). Not with `adminUrl`.",
        default=(),
        scope=EVERYWHERE,
        parse=_parse_service_urls,
    )
    failover_delay_ms: int = duration_option(
        "Time for which a cluster must be unreachable before another one of `failoverServiceUrls` is used.",
        "10s",
        scope=EVERYWHERE,
    )
    switch_back_delay_ms: int = duration_option(
        "Time for which the cluster of `serviceUrl` must be reachable again before it is used again. It is checked at "
        "the start of a read or task, at most twice in this time.",
        "1m",
        scope=EVERYWHERE,
    )
    proxy_service_url: str | None = option(
        "Address of a proxy that forwards TLS connections by their server name (SNI): `pulsar+ssl://proxy:4443`. Every "
        "connection to a broker goes there, with the broker's host as the server name, which its certificate must "
        "have. Not for Pulsar's own proxy, whose address is `serviceUrl`.",
        default=None,
        scope=EVERYWHERE,
        parse=parse_text,
        check=_check_proxy_url,
    )
    listener_name: str | None = option(
        "Advertised listener whose addresses the brokers return, on clusters with several listeners.",
        default=None,
        scope=EVERYWHERE,
    )
    admin_url: str | None = option(
        "Address of the admin API (`http://host:8080`). `readOffloaded` and `topicPartitions` need it. `minPartitions` "
        "uses it to split a read across ledgers, `maxBytesPerTrigger` to get ledger sizes, and queues and "
        "`spark-mq lag` to get backlogs. On a broker without PIP-344 (such as 2.10) it also finds partitioned topics "
        "that were never used. Not with `failoverServiceUrls`.",
        default=None,
        scope=EVERYWHERE,
        parse=_parse_admin_url,
    )
    auth_token: str | None = option(
        "A token (JWT).", default=None, scope=EVERYWHERE, secret=True, section=Section.AUTHENTICATE
    )
    auth_token_file: str | None = option(
        "File with the token, on every machine that reads or writes; read again each time the broker requests a new "
        "token.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_basic_user: str | None = option("User name of basic authentication.", default=None, scope=EVERYWHERE)
    auth_basic_password: str | None = option(
        "Password of basic authentication.", default=None, scope=EVERYWHERE, secret=True
    )
    auth_token_supplier: str | None = option(
        "Python function that returns the token, as `module:function`, importable on every machine that reads or "
        "writes; called at connect and each time the broker requests a new token.",
        default=None,
        scope=EVERYWHERE,
        parse=parse_function,
    )
    auth_plugin: str | None = option(
        "Python function that authenticates connections by a method of your own, as `module:function`: see "
        "[a method of your own](../pulsar/security.md#a-method-of-your-own).",
        default=None,
        scope=EVERYWHERE,
        parse=parse_function,
    )
    auth_issuer_url: str | None = option(
        "Token issuer of OAuth 2.0 client credentials: `https://...`. Its token endpoint is taken from "
        "`/.well-known/openid-configuration`. A token is reused until shortly before it expires.",
        default=None,
        scope=EVERYWHERE,
        parse=_parse_issuer_url,
    )
    auth_credentials_file: str | None = option(
        "JSON file with `client_id` and `client_secret` for `authIssuerUrl`, on every machine that reads or writes.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_client_id: str | None = option(
        "Client id for `authIssuerUrl`, instead of `authCredentialsFile`.", default=None, scope=EVERYWHERE
    )
    auth_client_secret: str | None = option(
        "Client secret for `authIssuerUrl`, instead of `authCredentialsFile`.",
        default=None,
        scope=EVERYWHERE,
        secret=True,
    )
    auth_audience: str | None = option(
        "Audience of the token, if the issuer requires one.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_scope: str | None = option(
        "Scope of the token, if the issuer requires one.",
        default=None,
        scope=EVERYWHERE,
    )
    auth_issuer_trust_certs: str | None = option(
        "File of the certificate authorities to trust for the issuer, as in `trustCerts`.",
        default=None,
        default_text="the system's",
        scope=EVERYWHERE,
    )
    auth_issuer_trust_certs_password: str | None = option(
        "Password of the store in `authIssuerTrustCerts`.", default=None, scope=EVERYWHERE, secret=True
    )
    operation_timeout_ms: int = duration_option(
        "Timeout of a request, and of the wait for the first message of a range: `30s`, `500ms`, or milliseconds.",
        "30s",
        scope=EVERYWHERE,
        section=Section.FAIL,
    )
    connect_timeout_ms: int = duration_option(
        "Timeout of connecting, including TLS and the protocol's handshake.",
        "10s",
        scope=EVERYWHERE,
    )
    keep_alive_interval_ms: int = duration_option(
        "After this time without data on a connection, a PING is sent; after as long again without an answer, the "
        "connection is closed. At most a quarter of `operationTimeout`, to leave time to reconnect: 7.5 s with both "
        "defaults. This limit does not apply to the connections of a write: a broker that limits the rate of a topic "
        "does not answer meanwhile.",
        "30s",
        scope=EVERYWHERE,
        least="100ms",
    )

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """(host, port) of each address of `service_url`."""
        return parse_service_url(self.service_url)[0]

    @property
    def sni_proxy(self) -> tuple[str, int] | None:
        """Host and port of the proxy that forwards by the server name; None without."""
        return None if self.proxy_service_url is None else parse_service_url(self.proxy_service_url)[0][0]

    @property
    def uses_tls(self) -> bool:
        """True if `service_url` is ``pulsar+ssl://``."""
        return parse_service_url(self.service_url)[1]

    @property
    def has_tls(self) -> bool:
        """True if any connection uses TLS, to brokers or to the admin API."""
        # A service URL that is missing is reported as such.
        return not self.service_url or self.uses_tls or (self.admin_url or "").startswith("https:")

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        if "failover_service_urls" in given:
            yield from self._failover_problems(given)
        else:
            yield from (
                f"{self.name_of(field)} needs failoverServiceUrls"
                for field in ("failover_delay_ms", "switch_back_delay_ms")
                if field in given
            )
        if self.proxy_service_url is not None and self.service_url and not self.uses_tls:
            yield "proxyServiceUrl needs TLS, whose handshake names the broker: begin serviceUrl with pulsar+ssl://"
        ways = (
            "auth_token",
            "auth_token_file",
            "auth_token_supplier",
            "auth_plugin",
            "auth_basic_user",
            "auth_issuer_url",
        )
        has_user = bool({"auth_basic_user", "auth_basic_password"} & given)
        chosen = [self.name_of(way) for way in ways if way in given or (way == "auth_basic_user" and has_user)]
        if len(chosen) > 1:
            yield f"{' and '.join(chosen)} contradict each other: set only one"
        yield from self.set_together("auth_basic_user", "auth_basic_password", given)
        yield from self._issuer_problems(given)
        if "auth_issuer_trust_certs_password" in given and "auth_issuer_trust_certs" not in given:
            yield "authIssuerTrustCertsPassword needs authIssuerTrustCerts"

    def _failover_problems(self, given: frozenset[str]) -> Iterator[str]:
        if self.service_url in self.failover_service_urls:
            yield "failoverServiceUrls: names the cluster of serviceUrl"
        if "admin_url" in given:
            yield "failoverServiceUrls and adminUrl contradict each other: adminUrl is for one cluster"

    @staticmethod
    def _issuer_problems(given: frozenset[str]) -> Iterator[str]:
        pair = {"auth_client_id", "auth_client_secret"} & given
        if "auth_issuer_url" not in given:
            if given & {"auth_credentials_file", "auth_client_id", "auth_client_secret", "auth_audience", "auth_scope"}:
                yield "authCredentialsFile, authClientId, authClientSecret, authAudience, authScope need authIssuerUrl"
        elif "auth_credentials_file" in given:
            if pair:
                yield "authCredentialsFile and authClientId with authClientSecret contradict each other: set only one"
        elif len(pair) < 2:
            yield "authIssuerUrl needs authCredentialsFile, or authClientId and authClientSecret"
