"""Clients of NSQ by others, behind one interface: each is a program that publishes or consumes."""

from __future__ import annotations

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from brokers.cache import artifact_with_dependencies, cache_folder, exclusive
from tests.fix_brokers import NsqUnderTest

TESTS = Path(__file__).resolve().parents[2]
PROGRAM_TIMEOUT_S = 150
JAVA_CLIENT = "com.github.brainlag:nsq-client:1.0.0.RC4"
NSQJS = "nsqjs@0.13.0"


@dataclass(frozen=True)
class ForeignClient:
    """A client as a program that takes the arguments described in NsqClient.java.

    Attributes:
        command: starts it.
        environment: further variables that it needs.
    """

    command: Sequence[str | Path]
    environment: Mapping[str, str] = field(default_factory=dict)

    def publish(self, broker: NsqUnderTest, topic: str, messages: Sequence[bytes], compression: str = "none") -> None:
        """Publish messages and wait until every one is acknowledged."""
        lines = b"".join(base64.b64encode(message) + b"\n" for message in messages)
        self._run("publish", broker, compression, topic, lines=lines)

    def consume(
        self, broker: NsqUnderTest, topic: str, channel: str, count: int, compression: str = "none"
    ) -> list[bytes]:
        """Return the next messages of a channel, each finished."""
        lines = self._run("consume", broker, compression, topic, channel, str(count))
        return [base64.b64decode(line) for line in lines.splitlines()]

    def _run(self, mode: str, broker: NsqUnderTest, compression: str, *rest: str, lines: bytes = b"") -> bytes:
        host, port = broker.tcp_address.split(":")
        done = subprocess.run(
            [*self.command, mode, host, port, compression, *rest],
            input=lines,
            capture_output=True,
            timeout=PROGRAM_TIMEOUT_S,
            env={**os.environ, **self.environment},
            check=False,
        )
        assert done.returncode == 0, f"{mode} failed (exit {done.returncode}):\n{done.stderr.decode()[-3000:]}"
        return done.stdout


def pynsq() -> ForeignClient:
    """Return the official Python client."""
    return ForeignClient([sys.executable, TESTS / "behaviours" / "nsq" / "pynsq_client.py"])


def java() -> ForeignClient:
    """Return a client for the JVM, from Maven coordinates."""
    jars = artifact_with_dependencies(JAVA_CLIENT, say=f"Fetching {JAVA_CLIENT} (7 MB, once) ...")
    options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    return ForeignClient(["java", *options, "-cp", f"{jars}/*", TESTS / "java" / "NsqClient.java"])


def nsqjs() -> ForeignClient:
    """Return the client for Node; skip if Node is missing or its registry does not answer."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("nsqjs needs Node and npm, which are not on PATH")
    folder = cache_folder() / NSQJS.replace("@", "-")
    with exclusive(folder.name):
        if not (folder / "node_modules" / "nsqjs").is_dir():
            # Without its optional parts: they are compiled, and only snappy needs them.
            done = subprocess.run(
                [npm, "install", "--omit=optional", "--no-audit", "--no-fund", "--prefix", folder, NSQJS],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                pytest.skip(f"npm could not install {NSQJS}: {done.stderr[-500:]}")
    return ForeignClient([node, TESTS / "js" / "nsq_client.js"], {"NODE_PATH": str(folder / "node_modules")})
