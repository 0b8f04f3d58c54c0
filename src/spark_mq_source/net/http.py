"""Read-only JSON over HTTP(S), for the brokers' admin interfaces."""

from __future__ import annotations

import json
from collections.abc import Mapping

import urllib3
from urllib3.exceptions import HTTPError

from spark_mq_source.core.errors import (
    AuthenticationError,
    BrokerError,
    RemoteProtocolError,
    TopicNotFoundError,
    TransportError,
)
from spark_mq_source.net.transport import TlsSettings

__all__ = ["fetch_json"]

MAX_BODY_BYTES = 256 << 20


def fetch_json(url: str, *, headers: Mapping[str, str], tls: TlsSettings | None, timeout_seconds: float) -> object:
    """GETs `url` and parses its JSON; failed connections and 502 to 504 are tried again, three times.

    Raises:
        TopicNotFoundError: status 404.
        AuthenticationError: status 401 or 403.
        BrokerError: any other status that is not 200.
        TransportError: no answer.
        RemoteProtocolError: an answer that is not JSON.
    """
    retries = urllib3.Retry(total=3, backoff_factor=0.2, status_forcelist=(502, 503, 504), raise_on_status=False)
    context = tls.context() if tls is not None and url.startswith("https:") else None
    timeout = urllib3.Timeout(total=timeout_seconds)
    with urllib3.PoolManager(retries=retries, timeout=timeout, ssl_context=context) as pool:
        try:
            response = pool.request("GET", url, headers=dict(headers))
        except HTTPError as error:
            msg = f"{url}: no answer ({type(error).__name__}: {error}); check the admin address"
            raise TransportError(msg) from error
        if response.status != 200:
            kinds: dict[int, type[BrokerError]] = {
                401: AuthenticationError,
                403: AuthenticationError,
                404: TopicNotFoundError,
            }
            reason = response.data[:200].decode("utf-8", "replace")
            raise kinds.get(response.status, BrokerError)(
                f"{url}: HTTP status {response.status} ({reason})", code=response.status, broker_message=reason
            )
        if len(response.data) > MAX_BODY_BYTES:
            msg = f"{url}: an answer of {len(response.data)} bytes, more than {MAX_BODY_BYTES}"
            raise RemoteProtocolError(msg)
        try:
            return json.loads(response.data)
        except ValueError as error:
            msg = f"{url}: the answer is not JSON; is this the admin address?"
            raise RemoteProtocolError(msg) from error
