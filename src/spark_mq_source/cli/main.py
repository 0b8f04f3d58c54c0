"""The commands of `spark-mq`.

Each takes a format and the options that `spark.read` takes, and prints a table, or with `--json` a line of JSON a row.
Exit status: 0 where it worked, 1 where the broker (or the network) did not do what was asked, 2 for wrong arguments.
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
    help="Look at a message broker as spark-mq-source sees it, without Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

FORMATS: Final[Mapping[str, tuple[str, str]]] = {
    "pulsar-native": ("spark_mq_source.pulsar.format", "PulsarFormat"),
    "tubemq": ("spark_mq_source.tubemq.format", "TubeMQFormat"),
    "nsq": ("spark_mq_source.nsq.format", "NsqFormat"),
}
"""Where each format is; one is loaded when it is asked for."""

FAILED: Final = 1
WRONG_ARGUMENTS: Final = 2

FormatName = Annotated[str, typer.Argument(metavar="FORMAT", help=f"One of: {', '.join(FORMATS)}.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="NAME=VALUE", help="An option of the format, as Spark takes it; repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print a JSON object a line instead of a table.")]


def main() -> None:
    """The entry point."""
    app()


def _reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Ends with one sentence on standard error, and the exit status that fits, instead of a traceback."""

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
    """List the topics that the options name, with their partitions."""
    with _inspector(format_name, option) as inspector:
        _show(inspector.topics(), as_json=as_json)


@app.command()
@_reporting
def partitions(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """List the partitions and the broker that serves each."""
    with _inspector(format_name, option) as inspector:
        _show(inspector.partitions(), as_json=as_json)


@app.command()
@_reporting
def offsets(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """Show where each partition begins and ends now."""
    with _inspector(format_name, option) as inspector:
        _show(inspector.offsets(), as_json=as_json)


@app.command()
@_reporting
def lag(
    format_name: FormatName,
    option: Options = None,
    *,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The checkpoint folder of a streaming query: how far behind it is.")
    ] = None,
    source: Annotated[int, typer.Option(help="Which of the query's sources, from 0.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Show how much waits to be read, by a query or by a consumer group."""
    read = None if checkpoint is None else _offsets_of(checkpoint, source)
    with _inspector(format_name, option) as inspector:
        _show(inspector.lag(read), as_json=as_json)


@app.command()
@_reporting
def unsubscribe(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """Delete the subscription that the options name, of a query that will not be started again."""
    with _inspector(format_name, option) as inspector:
        if not isinstance(inspector, Unsubscriber):
            raise OptionError(f"format {format_name}: its brokers have no subscriptions that could be deleted")
        _show(inspector.unsubscribe(), as_json=as_json)


@app.command()
@_reporting
def peek(
    format_name: FormatName,
    option: Options = None,
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="How many messages.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Read some messages, from where `startingOffsets` says, as Spark would."""
    format_ = _load(format_name)
    options = format_.parse_look_options(_parsed(option))
    # Closed, not left to the garbage collector: what was received and is not shown goes back to the broker.
    with closing(_batches(format_, options)) as batches:
        found = (row for batch in batches for row in batch.to_pylist())
        _show(itertools.islice(found, rows), as_json=as_json)


@app.command()
@_reporting
def doctor(format_name: FormatName, option: Options = None) -> None:
    """Try, step by step, what a read needs; say which step fails, and why."""
    console = Console(soft_wrap=True)
    with _inspector(format_name, option) as inspector:
        steps = itertools.chain(inspector.steps(), [("read a message", lambda: _read_one(format_name, option))])
        for name, step in steps:
            try:
                found = step()
            except MQSourceError as error:
                console.print(f"[red]failed[/]  {name}", highlight=False)
                raise error.within(name) from error
            console.print(f"[green]ok[/]      {name}: ", end="", highlight=False)
            console.print(found, markup=False, highlight=False)


def _read_one(format_name: str, option: list[str] | None) -> str:
    format_ = _load(format_name)
    with closing(_batches(format_, format_.parse_look_options(_parsed(option)))) as batches:
        if any(batch.num_rows for batch in batches):
            return "the first one there is can be decoded"
    return "there is none to be read"


def _batches(format_: InspectFormat[Any, Any], options: object) -> Generator[pa.RecordBatch, None, None]:
    """What a batch read of the default columns gives, one task after the other."""
    schema = arrow_schema_of({name: format_.columns.readable[name][0] for name in format_.columns.default})
    for task in format_.plan(options, ()):
        yield from format_.read(options, task, schema)


def _load(name: str) -> InspectFormat[Any, Any]:
    from importlib import import_module  # noqa: PLC0415 - a format is loaded when it is wanted

    if name not in FORMATS:
        raise OptionError(f"there is no format {name}; there are {', '.join(FORMATS)}")
    module, kind = FORMATS[name]
    format_: InspectFormat[Any, Any] = getattr(import_module(module), kind)()
    return format_


@contextmanager
def _inspector(name: str, option: list[str] | None) -> Iterator[Inspector]:
    format_ = _load(name)
    with closing(format_.open_inspector(format_.parse_look_options(_parsed(option)))) as inspector:
        yield inspector


def _parsed(option: list[str] | None) -> dict[str, str]:
    """The options as Spark hands them over.

    Raises:
        OptionError: not `NAME=VALUE`.
    """
    parsed = {}
    for given in option or ():
        name, equals, value = given.partition("=")
        if not equals:
            # The text is not shown: it may be a secret whose name was forgotten.
            raise OptionError("an --option is not NAME=VALUE")
        # Spark's options have no upper and lower case.
        parsed[name.strip().lower()] = value
    return parsed


def _offsets_of(checkpoint: Path, source: int) -> dict[str, object]:
    """What a streaming query has read, as its checkpoint says: the end of the last batch that is committed.

    Spark writes a file a batch into `offsets`: a line with its version, one with the batch's metadata, and one a
    source (`OffsetSeqLog`, Spark 4.0 to 4.3).

    Raises:
        OptionError: it is not the checkpoint of a query, or the query has no such source, or has committed no batch.
    """
    committed = [int(path.name) for path in (checkpoint / "commits").glob("[0-9]*") if path.name.isdecimal()]
    if not committed:
        raise OptionError(f"{checkpoint}: no batch of a streaming query is committed there")
    lines = (checkpoint / "offsets" / str(max(committed))).read_text(encoding="utf-8").splitlines()[2:]
    if source >= len(lines):
        raise OptionError(f"{checkpoint}: the query has {len(lines)} sources, so there is no number {source}")
    found: dict[str, object] = json.loads(lines[source])
    return found


def _show(rows: Iterable[Mapping[str, object]], *, as_json: bool) -> None:
    """Prints rows of one kind; nothing at all where there are none and JSON was asked for."""
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
    """What JSON has no form for: bytes as text where they are UTF-8, else in hexadecimal digits; times as ISO 8601."""
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
