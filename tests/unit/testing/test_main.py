from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from brokers.nsq import wait_until_answering
from brokers.processes import ManagedProcess, free_ports
from spark_mq_source.testing import NsqBroker, NsqSettings
from spark_mq_source.testing.__main__ import main

COMMAND = [sys.executable, "-m", "spark_mq_source.testing"]


def test_the_command_runs_until_it_is_stopped(tmp_path: Path):
    tcp, web, lookup = free_ports(3)
    flags = ["--tcp-port", str(tcp), "--http-port", str(web), "--lookupd-http-port", str(lookup), "--no-snappy"]
    process = ManagedProcess([*COMMAND, *flags], log=tmp_path / "log", folder=tmp_path)
    try:
        wait_until_answering(f"127.0.0.1:{web}", tmp_path / "log", lambda: process.alive)
        wait_until_answering(f"127.0.0.1:{lookup}", tmp_path / "log", lambda: process.alive)
    finally:
        process.stop()
    text = (tmp_path / "log").read_text()
    assert text == f"nsq   127.0.0.1:{tcp}   http 127.0.0.1:{web}   lookupd 127.0.0.1:{lookup}\n"


def test_the_error_of_an_occupied_port_is_one_line():
    with NsqBroker() as taken:
        done = subprocess.run(
            [*COMMAND, "--tcp-port", str(taken.tcp_port)], capture_output=True, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr.startswith("nsq   ")
    assert len(done.stderr.splitlines()) == 1


def test_the_error_of_an_invalid_argument_is_one_line():
    with pytest.raises(SystemExit, match="max_deflate_level must be 1 to 9, not 10"):
        main(["--max-deflate-level", "10"])


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"node_id": 1024}, "node_id"),
        ({"tls_required": True}, "no tls_cert"),
        ({"tls_client_auth_policy": "require"}, "tls_client_auth_policy"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, object], complaint: str):
    with pytest.raises(ValueError, match=complaint):
        NsqSettings(**settings)


def test_invalid_arguments_are_refused():
    with NsqBroker() as broker:
        with pytest.raises(ValueError, match="INVALID_TOPIC"):
            broker.publish("b@d", b"x")
        with pytest.raises(ValueError, match="BAD_MESSAGE"):
            broker.publish("t", b"")
        broker.create_channel("t", "c")
        broker.publish("t", b"later", defer_ms=60_000)
        broker.pause("t", "c")
        stats = broker.stats("t", "c")["topics"][0]["channels"][0]
        assert (stats["deferred_count"], stats["paused"], broker.depth("t", "c"), broker.depth("none")) == (
            1,
            True,
            0,
            0,
        )
    with pytest.raises(RuntimeError, match="not running"):
        broker.publish("t", b"x")
