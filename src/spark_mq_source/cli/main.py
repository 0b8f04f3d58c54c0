"""The commands of `spark-mq`.

Each takes a format and the options of `spark.read`, and prints a table, or with `--json` one line of JSON per row. Exit
status: 0 on success, 1 if the broker or the network failed, 2 for invalid arguments.
"""

from __future__ import annotations

import datetime
import itertools
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

from spark_mq_source.core.errors import MQSourceError, OptionError
from spark_mq_source.core.ports import Unsubscriber
from spark_mq_source.core.sql_types import arrow_schema_of

try:
    import typer
    from rich.console import Console
    from rich.table import Table
except ImportError:  # pragma: no cover - the tests install them
    sys.exit("spark-mq: typer and rich are not installed: pip install 'spark-mq-source[cli]'")

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.ports import InspectFormat, Inspector


app = typer.Typer(
    help="Inspect a message broker as spark-mq-source sees it, without Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "pulsar-native": ("spark_mq_source.pulsar.format", "PulsarFormat"),
    "tubemq": ("spark_mq_source.tubemq.format", "TubeMQFormat"),
    "nsq": ("spark_mq_source.nsq.format", "NsqFormat"),
}
"""Module and class of each format, imported at first use."""

FAILED: Final = 1
WRONG_ARGUMENTS: Final = 2

FormatName = Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of: {', '.join(FORMATS)}.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="NAME=VALUE", help="Option of the format, as in Spark; repeatable."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")]


def main() -> None:
    """The entry point."""
    app()


def _reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Prints errors as one sentence on standard error and sets the exit status, without a traceback."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever the command takes
        try:
            command(*args, **kwargs)
        except MQSourceError as error:
            print(f"spark-mq: {error}", file=sys.stderr)  # noqa: T201 - a command line prints
            raise typer.Exit(WRONG_ARGUMENTS if isinstance(error, OptionError) else FAILED) from error

    return run


@app.command()
@_reporting
def topics(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """List the topics of the options, with their numbers of partitions."""
    with _inspector(format_name, option) as inspector:
        _show(inspector.topics(), as_json=as_json)


@app.command()
@_reporting
def partitions(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """List the partitions and their brokers."""
    with _inspector(format_name, option) as inspector:
        _show(inspector.partitions(), as_json=as_json)


@app.command()
@_reporting
def offsets(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """Show the first and last offset of each partition."""
    with _inspector(format_name, option) as inspector:
        _show(inspector.offsets(), as_json=as_json)


@app.command()
@_reporting
def lag(
    format_name: FormatName,
    option: Options = None,
    *,
    checkpoint: Annotated[
        Path | None, typer.Option(help="Checkpoint folder of a streaming query whose lag to show.")
    ] = None,
    source: Annotated[int, typer.Option(help="Index of the query's source, from 0.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show the lag of a query, a subscription or a channel."""
    read = None if checkpoint is None else _offsets_of(checkpoint, source)
    with _inspector(format_name, option) as inspector:
        _show(inspector.lag(read), as_json=as_json)


@app.command()
@_reporting
def unsubscribe(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """Delete the subscription of a query that will not be started again."""
    with _inspector(format_name, option) as inspector:
        if not isinstance(inspector, Unsubscriber):
            raise OptionError(f"format {format_name} has no subscriptions to delete")
        _show(inspector.unsubscribe(), as_json=as_json)


@app.command()
@_reporting
def peek(
    format_name: FormatName,
    option: Options = None,
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Number of messages.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Read some messages from `startingOffsets` on, decoded as in Spark."""
    format_ = _load(format_name)
    options = format_.parse_look_options(_parsed(option))
    # Closed explicitly: received messages that are not shown go back to the broker.
    with closing(_batches(format_, options)) as batches:
        found = (row for batch in batches for row in batch.to_pylist())
        _show(itertools.islice(found, rows), as_json=as_json)


@app.command()
@_reporting
def doctor(format_name: FormatName, option: Options = None) -> None:
    """Check the steps of a read; show which one fails, and why."""
    console = Console(soft_wrap=True)
    with _inspector(format_name, option) as inspector:
        steps = itertools.chain(inspector.steps(), [("read a message", lambda: _read_one(format_name, option))])
        for name, step in steps:
            try:
                found = step()
            except MQSourceError as error:
                console.print(f"[red]failed[/]  {name}\n        see {error.help_url}", highlight=False)
                raise error.within(name) from error
            console.print(f"[green]ok[/]      {name}: ", end="", highlight=False)
            console.print(found, markup=False, highlight=False)


def _read_one(format_name: str, option: list[str] | None) -> str:
    format_ = _load(format_name)
    with closing(_batches(format_, format_.parse_look_options(_parsed(option)))) as batches:
        if any(batch.num_rows for batch in batches):
            return "the first message can be decoded"
    return "no message to read"


def _batches(format_: InspectFormat[Any, Any], options: object) -> Generator[pa.RecordBatch, None, None]:
    """The batches of a batch read of the default columns, task by task."""
    schema = arrow_schema_of({name: format_.columns.readable[name][0] for name in format_.columns.default})
    for task in format_.plan(options, ()):
        yield from format_.read(options, task, schema)


def _load(name: str) -> InspectFormat[Any, Any]:
    from importlib import import_module  # noqa: PLC0415 - imported at first use

    if name not in FORMATS:
        raise OptionError(f"unknown format {name}; expected one of {', '.join(FORMATS)}")
    module, kind = FORMATS[name]
    format_: InspectFormat[Any, Any] = getattr(import_module(module), kind)()
    return format_


@contextmanager
def _inspector(name: str, option: list[str] | None) -> Iterator[Inspector]:
    format_ = _load(name)
    with closing(format_.open_inspector(format_.parse_look_options(_parsed(option)))) as inspector:
        yield inspector


def _parsed(option: list[str] | None) -> dict[str, str]:
    """The options in the form that Spark passes.

    Raises:
        OptionError: not `NAME=VALUE`.
    """
    parsed = {}
    for given in option or ():
        name, equals, value = given.partition("=")
        if not equals:
            # The text is not shown: it may be a secret without its name.
            raise OptionError("an --option is not NAME=VALUE")
        # Spark's options are case-insensitive.
        parsed[name.strip().lower()] = value
    return parsed


def _offsets_of(checkpoint: Path, source: int) -> dict[str, object]:
    """The end offsets of a streaming query's last committed batch, from its checkpoint.

    Spark writes one file per batch into `offsets`: a line with the version, one with the batch's metadata, and one per
    source (`OffsetSeqLog`, Spark 4.0 to 4.3).

    Raises:
        OptionError: not a query's checkpoint, no such source, or no committed batch.
    """
    committed = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdecimal()]
    if not committed:
        raise OptionError(f"{checkpoint}: no committed batch of a streaming query found")
    lines = (checkpoint / "offsets" / str(max(committed))).read_text(encoding="utf-8").splitlines()[2:]
    if source >= len(lines):
        raise OptionError(f"{checkpoint}: the query has {len(lines)} sources, so source {source} does not exist")
    found: dict[str, object] = json.loads(lines[source])
    return found


def _show(rows: Iterable[Mapping[str, object]], *, as_json: bool) -> None:
    """Prints rows of equal shape; with JSON, no output if there are none."""
    if as_json:
        for row in rows:
            print(json.dumps(row, default=_plain, ensure_ascii=False))  # noqa: T201 - a command line prints
        return
    table = Table()
    for number, row in enumerate(rows):
        if number == 0:
            for name in row:
                table.add_column(name, overflow="fold")
        table.add_row(*(_cell(value) for value in row.values()))
    console = Console()
    if table.columns:
        console.print(table)
    else:
        console.print("nothing")


def _cell(value: object) -> str:
    from rich.markup import escape  # noqa: PLC0415 - only tables need it

    if value is None:
        return ""
    simple = _plain(value) if isinstance(value, (bytes, datetime.datetime)) else value
    return escape(simple if isinstance(simple, str) else json.dumps(simple, default=_plain, ensure_ascii=False))


def _plain(value: object) -> object:
    """Values without a JSON form: bytes as UTF-8 text, or else in hexadecimal; times as ISO 8601; others by `str`."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return value.hex()
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    return str(value)


if __name__ == "__main__":
    main()
