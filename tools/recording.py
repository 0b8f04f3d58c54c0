"""Record `spark-mq` for the site: ``python -m tools.recording`` (``make recording``) writes docs/images/spark-mq.svg.

A Pulsar is started for it, with flights of the demo and two messages that are hard to print. The commands run on a
terminal, and the picture shows their output, after at most a second each. It plays once, and not at all if the
reader prefers reduced motion.
"""

from __future__ import annotations

import contextlib
import fcntl
import html
import itertools
import json
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from rich.ansi import AnsiDecoder
from rich.console import Console
from rich.text import Text

from brokers.pulsar import PulsarStandalone
from brokers.pulsar_admin import PulsarAdmin
from demo.data import FLIGHT_COLUMNS, read_flights
from spark_mq_source.core.ports import TaskAttempt
from spark_mq_source.pulsar.format import PulsarFormat

PICTURE: Final = Path(__file__).parent.parent / "docs" / "images" / "spark-mq.svg"
SHOWN_ADDRESS: Final = "localhost:6650"
"""The address of `make brokers`, shown instead of the recorded broker's."""
TOPIC: Final = "departures"
COLUMNS: Final = 96

_OPTIONS: Final = f"-o serviceUrl=pulsar://{SHOWN_ADDRESS} -t {TOPIC}"
COMMANDS: Final = (
    f"spark-mq doctor pulsar-native {_OPTIONS}",
    f"spark-mq offsets pulsar-native {_OPTIONS}",
    f"spark-mq peek pulsar-native {_OPTIONS}",
    f"spark-mq peek pulsar-native {_OPTIONS} -n 2 \\\n    -f 'partition %p, %h: %s (%S bytes)\\n'",
)

_PAUSE_S: Final = 0.7
"""The pause before a command is typed."""
_MAX_WAIT_S: Final = 1.0
"""The maximum wait of the reader for a command, however busy the machine was."""
_TEMPLATE: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, monospace; }}
{styles}
ANIMATION
</style>
<defs>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" class="{unique_id}-matrix">
{matrix}
</g>
</svg>
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """A command and its output.

    Attributes:
        command: as typed.
        output: with a terminal's escape sequences.
        seconds: from its start to its end.
    """

    command: str
    output: str
    seconds: float


def publish(service_url: str, admin: PulsarAdmin) -> None:
    """Create the topic, and publish the messages that are peeked at."""
    admin.create_topic(f"persistent://public/default/{TOPIC}", 2)
    names = [column.split()[0] for column in FLIGHT_COLUMNS.split(", ")]
    first: dict[str, str] = {}  # of each airline
    for one in itertools.islice(read_flights(), 10):
        first.setdefault(one.carrier, one.line)
    flights = [dict(zip(names, line.split(","), strict=True)) for line in first.values()]
    rows: list[tuple[str, bytes | None, list[tuple[str, str]]]] = [
        (
            flight["carrier"],
            json.dumps({name: flight[name] for name in ("flight", "origin", "dest")}).encode(),
            [("tail", flight["tailnum"])],
        )
        for flight in flights
    ]
    rows += [("B6", None, []), ("UA", b"\x08\xc1\x0c", [])]
    keys, values, properties = zip(*rows, strict=True)
    batch = pa.record_batch(
        {
            "key": pa.array(keys),
            "value": pa.array(values, pa.binary()),
            "properties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        }
    )
    format_ = PulsarFormat()
    options = format_.parse_write_options({"serviceurl": service_url, "topic": TOPIC}, batch.schema.names)
    format_.commit(options, [format_.write(options, iter([batch]), TaskAttempt("recording"))])


def recorded(address: str) -> Iterator[Shown]:
    """Run the commands on a broker at this address, one after the other.

    Raises:
        subprocess.CalledProcessError: one failed.
    """
    for command in COMMANDS:
        start = time.monotonic()
        _, *arguments = shlex.split(command.replace("\\\n", "").replace(SHOWN_ADDRESS, address))
        output = _run(arguments)
        yield Shown(command, output.replace(address, SHOWN_ADDRESS), time.monotonic() - start)


def _run(arguments: Sequence[str]) -> str:
    ours, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    program = subprocess.Popen(
        [sys.executable, "-m", "spark_mq_source.cli.main", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=terminal,
        stderr=terminal,
        env=environment | {"TERM": "xterm-256color"},
    )
    os.close(terminal)
    output = b""
    # Once the program has closed the terminal, reading it is an error (EIO).
    with contextlib.suppress(OSError):
        while part := os.read(ours, 65536):
            output += part
    os.close(ours)
    if program.wait():
        raise subprocess.CalledProcessError(program.returncode, program.args, output)
    return output.decode().replace("\r\n", "\n")


def drawn(session: Iterable[Shown]) -> str:
    """Return the picture, as SVG.

    Raises:
        ValueError: a line is wider than the picture.
    """
    lines: list[Text] = []
    delays: list[float] = []
    at = 0.0
    for one in session:
        # The first command is visible at once, so that the picture is never empty.
        at += _PAUSE_S if lines else 0.0
        first, *more = one.command.split("\n")
        typed = [Text.assemble(("$ ", "green"), (first, "bold")), *(Text(line, "bold") for line in more)]
        printed = list(AnsiDecoder().decode(one.output.removesuffix("\n")))
        lines += typed + printed
        delays += [at] * len(typed)
        at += min(one.seconds, _MAX_WAIT_S)
        delays += [at] * len(printed)
    lines.append(Text("$ ", "green"))
    delays.append(at)
    for line in lines:
        if line.cell_len > COLUMNS:
            raise ValueError(f"wider than {COLUMNS} columns: {line.plain}")
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        for line in lines:
            console.print(line)
        picture = console.export_svg(title="", code_format=_TEMPLATE, unique_id="t")
    without_ends = re.sub(r"<text [^>]*>\n</text>", "", picture)
    return without_ends.replace("ANIMATION", _animation(delays))


def _animation(delays: Sequence[float]) -> str:
    rules = [
        f'  text[clip-path="url(#t-line-{number})"] {{ animation-delay: {delay:.1f}s }}'
        for number, delay in enumerate(delays)
    ]
    return "\n".join(
        [
            "@keyframes appear { from { opacity: 0 } }",
            "@media (prefers-reduced-motion: no-preference) {",
            "  .t-matrix text { animation: appear 1ms backwards }",
            *rules,
            "}",
        ]
    )


def text_of(picture: str) -> str:
    """Return the text in a picture, a line for each of its lines, without the spaces between its parts."""
    lines: dict[str, str] = {}
    for place, text in re.findall(r'<text [^>]* y="([^"]+)"[^>]*>([^<]*)</text>', picture):
        lines[place] = lines.get(place, "") + html.unescape(text).replace("\xa0", " ")
    return "\n".join(lines.values())


def main() -> None:
    """Record and write the picture."""
    with tempfile.TemporaryDirectory() as folder:
        broker = PulsarStandalone(Path(folder) / "pulsar")
        broker.start()
        try:
            publish(broker.service_url, broker.admin)
            picture = drawn(recorded(broker.service_url.removeprefix("pulsar://")))
        finally:
            broker.remove()
    PICTURE.write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    main()
