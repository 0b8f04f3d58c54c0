"""The commands of `spark-mq`.

Each takes a format and the options of `spark.read`, and prints a table, or with `--json` one line of JSON per row.
`peek` prints a line per message. Exit status: 0 on success, 1 if the broker or the network failed, 2 for invalid
arguments.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

try:
    import typer
    from rich.console import Console
except ImportError:  # pragma: no cover - the tests install them
    sys.exit("spark-mq: typer and rich are not installed: pip install 'spark-mq-source[cli]'")

from spark_mq_source.cli.completion import complete_format, complete_option
from spark_mq_source.cli.formats import FORMATS, load_format
from spark_mq_source.cli.lines import TOKENS_HELP, Line, default_line
from spark_mq_source.cli.tables import show
from spark_mq_source.cli.text import as_json as row_as_json
from spark_mq_source.core.errors import MQSourceError, OptionError
from spark_mq_source.core.ports import Unsubscriber
from spark_mq_source.core.sql_types import arrow_schema_of, ddl_of_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_mq_source.core.ports import InspectFormat, Inspector


app = typer.Typer(
    help="Inspect a message broker as spark-mq-source sees it, without Spark.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

FAILED: Final = 1
WRONG_ARGUMENTS: Final = 2

FormatName = Annotated[
    str,
    typer.Argument(metavar="FORMAT", help=f"One of: {', '.join(FORMATS)}.", autocompletion=complete_format),
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="Option of the format, as in Spark; repeatable.",
        autocompletion=complete_option,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line instead of a table.")]


def main() -> None:
    """Run the command line."""
    # What the encoding of the locale lacks is escaped, not an error.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="spark-mq")


def _reporting(command: Callable[..., None]) -> Callable[..., None]:
    """Print errors as one sentence on standard error and set the exit status, without a traceback."""

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
        show(inspector.topics(), json=as_json)


@app.command()
@_reporting
def partitions(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """List the partitions and their brokers."""
    with _inspector(format_name, option) as inspector:
        show(inspector.partitions(), json=as_json)


@app.command()
@_reporting
def offsets(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """Show the first and last offset of each partition."""
    with _inspector(format_name, option) as inspector:
        show(inspector.offsets(), json=as_json)


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
    subscription: Annotated[
        str | None, typer.Option(help="Subscription whose backlog to show, as the option `subscription`.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the lag of a query, a subscription or a channel."""
    if checkpoint is not None and subscription is not None:
        raise OptionError("--checkpoint and --subscription exclude each other")
    read = None if checkpoint is None else _offsets_of(checkpoint, source)
    named = [] if subscription is None else [f"subscription={subscription}"]
    with _inspector(format_name, [*(option or ()), *named]) as inspector:
        show(inspector.lag(read), json=as_json)


@app.command()
@_reporting
def unsubscribe(format_name: FormatName, option: Options = None, *, as_json: AsJson = False) -> None:
    """Delete the subscription of a query that will not be started again."""
    with _inspector(format_name, option) as inspector:
        if not isinstance(inspector, Unsubscriber):
            raise OptionError(f"format {format_name} has no subscriptions to delete")
        show(inspector.unsubscribe(), json=as_json)


@app.command(epilog=TOKENS_HELP)
@_reporting
def peek(
    format_name: FormatName,
    option: Options = None,
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Number of messages.")] = 10,
    template: Annotated[
        str | None,
        typer.Option("--format", "-f", metavar="TEXT", help="Print this for each message, with the tokens below."),
    ] = None,
    as_hex: Annotated[bool, typer.Option("--hex", help="Print bytes in hexadecimal instead of as UTF-8.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per message.")] = False,
) -> None:
    """Print some messages from `startingOffsets` on, one line each: position, time, key and value."""
    format_, known, options = load_format(format_name), FORMATS[format_name], _parsed(option)
    if as_json and template is not None:
        raise OptionError("--json and --format exclude each other")
    if template is None:
        template = default_line(known, with_topic="topic" not in options)
    console = Console()
    in_color = console.color_system is not None and not console.no_color
    line = Line(template, known, list(format_.columns.readable), as_hex=as_hex, in_color=in_color)
    names = dict.fromkeys([*format_.columns.default, *line.columns])
    printed = False
    # Closed explicitly: received messages that are not shown go back to the broker.
    with closing(_batches(format_, options, names, rows)) as batches:
        found = (row for batch in batches for row in batch.to_pylist())
        for row in itertools.islice(found, rows):
            text = f"{row_as_json(row, as_hex=as_hex)}\n" if as_json else line.of(row)
            print(text, end="")  # noqa: T201 - a command line prints
            printed = True
    if not printed and not as_json:
        print("no message to read", file=sys.stderr)  # noqa: T201 - a command line prints


@app.command()
@_reporting
def schema(format_name: FormatName, option: Options = None) -> None:
    """Print the columns that a read gives, as `.schema()` takes them: with valueFormat=auto by the topic's schema."""
    columns, _ = load_format(format_name).columns_by_default(_parsed(option))
    print(ddl_of_schema(columns))  # noqa: T201 - a command line prints


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
    format_ = load_format(format_name)
    with closing(_batches(format_, _parsed(option), format_.columns.default, 1)) as batches:
        if any(batch.num_rows for batch in batches):
            return "the first message can be decoded"
    return "no message to read"


def _batches(
    format_: InspectFormat[Any, Any], given: dict[str, str], names: Iterable[str], rows: int
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the batches of a batch read of these columns, task by task; the value is one column even with `flatten`.

    A batch has no more than `rows` rows unless the options set another limit, so it waits only for the rows to show.
    """
    given = {"maxbatchrows": str(rows)} | {name: text for name, text in given.items() if name != "flatten"}
    options = format_.parse_look_options(given)
    columns, typed = format_.columns_by_default(given)
    known = format_.columns.readable
    schema = arrow_schema_of({name: known[name][0] for name in names})
    for at, name in enumerate(schema.names):
        if name in columns.names:
            schema = schema.set(at, columns.field(name))
    options = format_.fit_read(options, schema, typed)
    for task in format_.plan(options, ()):
        yield from format_.read(options, task, schema)


@contextmanager
def _inspector(name: str, option: list[str] | None) -> Iterator[Inspector]:
    format_ = load_format(name)
    with closing(format_.open_inspector(format_.parse_look_options(_parsed(option)))) as inspector:
        yield inspector


def _parsed(option: list[str] | None) -> dict[str, str]:
    """Return the options in the form that Spark passes.

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
    """Return the end offsets of a streaming query's last committed batch, from its checkpoint.

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


if __name__ == "__main__":
    main()
