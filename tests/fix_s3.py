"""A local S3 server: moto's, which keeps objects in memory and obeys `If-None-Match`."""

from __future__ import annotations

import logging
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

BUCKET = "wal-bucket"


@dataclass(frozen=True)
class S3Server:
    """A running server with one empty bucket.

    Attributes:
        url: of the bucket, for obstore.
        environment: the variables with which clients find it.
    """

    url: str
    environment: dict[str, str]


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """Yield a server for one test, set in this process's environment."""
    pytest.importorskip("obstore")
    moto_server = pytest.importorskip("moto.server")
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    # moto's dispatcher finds a service's name in a signature with four slashes, which Pulsar sends at times.
    services = {name: moto_server.create_backend_app(name) for name in ("s3", "moto_api")}

    def application(environ: dict[str, Any], respond: Any) -> Any:
        return services["moto_api" if environ["PATH_INFO"].startswith("/moto-api") else "s3"](environ, respond)

    # One request after the other: moto checks for the object and creates it in two steps.
    server = make_server("127.0.0.1", 0, application, threaded=False)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), name="s3 server", daemon=True)
    thread.start()
    endpoint = f"http://127.0.0.1:{server.port}"
    environment = {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    # Its objects belong to the process, not to the server.
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/reset", method="POST")).close()  # noqa: S310
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")).close()  # noqa: S310
    try:
        yield S3Server(f"s3://{BUCKET}", environment)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
