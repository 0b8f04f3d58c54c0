"""Records what a Pulsar client and a broker say to each other, as vectors for the tests.

::

    python -m tests.recording_proxy --broker 127.0.0.1:6650 --port 16650 --name "what the client does" >> vectors.jsonl

Point the client at the proxy's port. The broker must answer lookups with an address that leads back here, or with
`proxy_through_service_url` (a standalone broker does). Every line holds one frame, tokens in CONNECT included: record
with credentials that are thrown away. Ctrl-C, or the end of standard input with `--until-eof`, ends it.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading

from tests.fix_net import RecordingProxy


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.recording_proxy", description=__doc__.splitlines()[0])
    parser.add_argument("--broker", default="127.0.0.1:6650", help="host:port of the broker")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: any free one)")
    parser.add_argument("--name", default="", help="the name that the lines get")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    options = parser.parse_args(arguments)
    host, _, port = options.broker.rpartition(":")
    with RecordingProxy(host, int(port), sys.stdout, options.name, listen_port=options.port) as proxy:
        sys.stderr.write(f"listening on {proxy.address}, forwarding to {options.broker}\n")
        sys.stderr.flush()
        if options.until_eof:
            sys.stdin.read()
            return
        stop = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: stop.set())
        stop.wait()


if __name__ == "__main__":
    main()
