"""Runs an embedded NSQ broker in the foreground: `python -m spark_mq_source.testing`.

Example::

    python -m spark_mq_source.testing --tcp-port 4150 --http-port 4151 --lookupd-http-port 4161
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from spark_mq_source.testing.broker import NsqBroker
from spark_mq_source.testing.settings import NsqSettings

PORTS = {"tcp_port": 4150, "http_port": 4151, "https_port": 4152, "lookupd_http_port": 4161}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run until SIGINT or SIGTERM.

    Raises:
        SystemExit: a port is in use, or a setting is out of range.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options = _parser().parse_args(arguments)
    try:
        with NsqBroker(**{name: value for name, value in vars(options).items() if value is not None}) as broker:
            sys.stdout.write(
                f"nsq   {broker.tcp_address}   http {broker.http_address}   lookupd {broker.lookupd_address}\n"
            )
            sys.stdout.flush()
            threading.Event().wait()
    except KeyboardInterrupt:
        pass
    except (OSError, ValueError) as error:
        sys.exit(f"nsq   {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m spark_mq_source.testing",
        description="An in-memory NSQ broker that behaves as nsqd 1.3.0.",
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    for name, port in PORTS.items():
        parser.add_argument(_flag(name), type=int, default=port, help="0 selects a free port (default: %(default)s)")
    for setting in fields(NsqSettings):
        if setting.name == "authorize":  # a Python function
            continue
        default: Any = setting.default
        if isinstance(default, bool):
            parser.add_argument(_flag(setting.name), action=argparse.BooleanOptionalAction, default=None)
        else:
            kind = int if isinstance(default, int) or setting.name == "node_id" else str
            parser.add_argument(_flag(setting.name), type=kind, help=f"(default: {default or 'none'})")
    return parser


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


if __name__ == "__main__":
    main()
