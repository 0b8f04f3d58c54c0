"""JSON over HTTP(S): the brokers' admin interfaces, and the tokens of OAuth issuers."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from urllib.parse import urlencode, urljoin, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, SSLError

from spark_mq_source.core.errors import (
    AuthenticationError,
    BrokerError,
    OptionError,
    RemoteProtocolError,
    ServiceNotReadyError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.net.retry import Deadline, retrying
from spark_mq_source.net.transport import CLOSED, TlsSettings, connect, is_tls_port

MAX_BODY_BYTES = 256 << 20
MAX_REDIRECTS = 5
_MAX_WORDS = 2000
_CONTROL = re.compile(r"[\0-\x1f\x7f]")

_ERRORS: Mapping[int, type[BrokerError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: TopicNotFoundError,
    # The statuses of a gateway whose broker restarts.
    502: ServiceNotReadyError,
    503: ServiceNotReadyError,
    504: ServiceNotReadyError,
}


def fetch_json(
    url: str,
    *,
    headers: Mapping[str, str],
    tls: TlsSettings | None,
    timeout_seconds: float,
    form: Mapping[str, str] | None = None,
    put: object = None,
    address: str = "the admin address",
    retries: bool = True,
    is_trusted: Callable[[str], bool] = lambda _: False,
    remedy: str = "",
) -> object:
    """GET `url` and parse the JSON; retry failed connections and statuses 502 to 504 until the timeout.

    Redirects are followed with the same headers: brokers redirect a request about a topic to the broker that serves
    it, which requires the same token. `Authorization` is sent only to the host of `url` and to trusted hosts; a
    redirect to another host is then an error.

    Args:
        url: the URL to get.
        headers: sent with every request, including redirected ones.
        tls: verification of the peer; None for the defaults.
        timeout_seconds: for all attempts together.
        form: fields to POST instead. They may be secret, so redirects are not followed, and the answer's text is only
            in the error's `broker_message`.
        put: a document to PUT instead; redirects are followed as for GET.
        address: the name of the address in errors.
        retries: False for a single attempt, for requests that are not essential.
        is_trusted: returns whether a redirect's host (in lower case) may receive `Authorization`.
        remedy: the remedy for an untrusted host, for errors.

    Raises:
        TopicNotFoundError: status 404.
        AuthenticationError: status 401 or 403.
        ServiceNotReadyError: status 502 to 504 until the timeout.
        BrokerError: any other status that is not 200 or 204 (no content, for which the result is None).
        TransportError: no answer; not retryable if TLS cannot work.
        RemoteProtocolError: the answer is not JSON or too large, or redirects form a circle, or lead away from HTTPS or
            with `Authorization` to an untrusted host.
        OptionError: a certificate file cannot be used, or a header contains a control character.
    """
    for name, value in headers.items():
        # The error of http.client would show the value.
        if _CONTROL.search(value):
            raise OptionError(
                f"{url}: the value of the header {name} contains a control character, such as a line end, which cannot "
                f"be sent: remove it from the credentials"
            )
    tls = tls or TlsSettings()
    deadline = Deadline.after_ms(round(timeout_seconds * 1000))

    def fetch() -> bytes:
        return _fetch(url, headers, tls, deadline, form, put, address, is_trusted, remedy)

    body = retrying(fetch, deadline=deadline) if retries else fetch()
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"{url}: the answer is not JSON; check {address}") from error


def _pool(url: str, tls: TlsSettings) -> urllib3.PoolManager:
    if not url.startswith("https:"):
        return urllib3.PoolManager(retries=False)
    context = tls.context()
    # urllib3 checks the host name instead: 1.26 cannot connect to an IP address with a context that checks it.
    context.check_hostname = False
    return urllib3.PoolManager(
        retries=False, ssl_context=context, assert_hostname=None if tls.verify_hostname else False
    )


def _read(response: urllib3.BaseHTTPResponse, deadline: Deadline, asked: str, address: str) -> Iterator[bytes]:
    """Yield the body in pieces, to its end or just past the limit. urllib3 1.26 detects a lost end at the last read.

    Raises:
        TransportError: the body continues past the deadline; the timeout of urllib3 is that of each read.
    """
    # The methods of urllib3 1.26 all wait for a whole piece.
    read = getattr(response, "read1", response.read)
    size = 0
    while size <= MAX_BODY_BYTES and (piece := read(1 << 20)):
        if deadline.expired:
            raise TransportError(f"{asked}: the answer had not ended in time; check {address}")
        size += len(piece)
        yield piece


def _host_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _timeout(url: str, deadline: Deadline) -> urllib3.Timeout:
    """Return the remaining time; the addresses of a host share it, while urllib3 would spend all of it on the first."""
    try:
        addresses = len(socket.getaddrinfo(*_host_port(url), type=socket.SOCK_STREAM))
    except (OSError, ValueError):
        addresses = 1  # urllib3 raises an error that names the host
    # urllib3 rejects a timeout of 0.
    seconds = max(deadline.remaining_seconds(), 0.001)
    return urllib3.Timeout(connect=max(seconds / max(addresses, 1), 0.001), total=seconds)


def _close_reason(failure: TransportError, url: str, tls: TlsSettings, deadline: Deadline) -> TransportError:
    """Return the reason why a connection was closed without an answer."""
    host, port = _host_port(url)
    if urlsplit(url).scheme == "https":
        try:
            connect(host, port, tls=tls, deadline=deadline).close()
        except TransportError as error:
            return error
        failure.retryable = True
    elif is_tls_port(host, port):
        failure = TransportError(f"{url}: this port speaks TLS: use https:// in this address")
        failure.retryable = False
    return failure


def _content(form: Mapping[str, str] | None, put: object) -> tuple[str, str | None, Mapping[str, str]]:
    """Return the method of a request, its body, and headers for that."""
    if form is not None:
        return "POST", urlencode(form), {"Content-Type": "application/x-www-form-urlencoded"}
    if put is not None:
        return "PUT", json.dumps(put), {"Content-Type": "application/json"}
    return "GET", None, {}


def _fetch(
    url: str,
    headers: Mapping[str, str],
    tls: TlsSettings,
    deadline: Deadline,
    form: Mapping[str, str] | None,
    put: object,
    address: str,
    is_trusted: Callable[[str], bool],
    remedy: str,
) -> bytes:
    asked = url
    method, sent, more = _content(form, put)
    headers = {**headers, **more}
    for _ in range(MAX_REDIRECTS + 1):
        response = None
        try:
            with _pool(asked, tls) as pool:
                response = pool.request(
                    method,
                    asked,
                    body=sent,
                    headers=headers,
                    timeout=_timeout(asked, deadline),
                    redirect=False,
                    preload_content=False,
                    # Reject incomplete answers; not the default of urllib3 1.26.
                    enforce_content_length=True,
                )
                try:
                    body = b"".join(_read(response, deadline, asked, address))
                finally:
                    response.close()
        except HTTPError as error:
            reason = error.__cause__ or error.__context__ or error
            msg = f"{asked}: no answer ({type(error).__name__}: {reason}); check {address}"
            failure = TransportError(msg)
            failure.retryable = not isinstance(error, SSLError)
            if response is None and isinstance(reason, (ConnectionResetError, *CLOSED)):
                failure = _close_reason(failure, asked, tls, deadline)
            raise failure from error
        location = response.headers.get("Location")
        if response.status in (301, 302, 303, 307, 308) and location:
            try:
                following = urljoin(asked, location)
                host = urlsplit(following).hostname or ""
            except ValueError as error:
                raise RemoteProtocolError(
                    f"{asked}: a redirect to {location!r}, which is not an address ({error})"
                ) from error
            if form is not None:
                raise RemoteProtocolError(
                    f"{asked}: a redirect to {following}, which is not followed with a secret; check {address}"
                )
            if asked.startswith("https:") and not following.startswith("https:"):
                raise RemoteProtocolError(
                    f"{asked}: a redirect from HTTPS to {following}, which would send the token unencrypted; check "
                    f"{address}"
                )
            if "Authorization" in headers and host != urlsplit(url).hostname and not is_trusted(host):
                raise RemoteProtocolError(
                    f"{asked}: a redirect to {following}: no option names {host}, so credentials were not sent{remedy}"
                )
            asked = following
            continue
        if response.status == 204:
            return b"null"
        if response.status != 200:
            words = body[:_MAX_WORDS].decode("utf-8", "replace")
            shown = f" ({words[:200]})" if form is None else ""
            raise _ERRORS.get(response.status, BrokerError)(
                f"{asked}: HTTP status {response.status}{shown}", code=response.status, broker_message=words
            )
        if len(body) > MAX_BODY_BYTES:
            raise RemoteProtocolError(f"{asked}: an answer of more than {MAX_BODY_BYTES} bytes")
        return body
    raise RemoteProtocolError(f"{url}: redirected more than {MAX_REDIRECTS} times")
