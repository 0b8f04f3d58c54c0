"""The commands of `spark-mq`.

Each takes a format and the options of `spark.read`, or a profile with both, and prints a table, or with `--json` one
line of JSON per row. `peek` and `tail` print one line per message. Exit status: 0 on success (as in kcat, also if
Ctrl-C ends `tail`), 1 if the broker or the network failed, 2 for invalid arguments.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable
from contextlib import closing
from contextvars import ContextVar
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final

try:
    import typer
    from rich.console import Console
except ImportError:  # pragma: no cover - the tests install them
    sys.exit("spark-mq: typer and rich are not installed: pip install 'spark-mq-source[cli]'")

from spark_mq_source.cli.checkpoints import migrated_checkpoint, read_offsets
from spark_mq_source.cli.completion import complete_format, complete_option, complete_profile, complete_topic
from spark_mq_source.cli.formats import FORMATS
from spark_mq_source.cli.lines import TOKENS_HELP, Line, default_line
from spark_mq_source.cli.profiles import load_profiles, profiles_path
from spark_mq_source.cli.reading import Row, peeked, tailed
from spark_mq_source.cli.sources import Source
from spark_mq_source.cli.tables import show
from spark_mq_source.cli.text import as_json as row_as_json
from spark_mq_source.core.connection import client_version
from spark_mq_source.core.errors import MQSourceError, OptionError
from spark_mq_source.core.ports import Unsubscriber
from spark_mq_source.core.sql_types import ddl_of_schema

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)

FAILED: Final = 1
WRONG_ARGUMENTS: Final = 2

FormatName = Annotated[
    str | None,
    typer.Argument(
        metavar="FORMAT",
        help=f"One of: {', '.join(FORMATS)}. Not needed with a profile.",
        autocompletion=complete_format,
    ),
]
TopicName = Annotated[
    str | None,
    typer.Option("--topic", "-t", help="The topic; short for `-o topic=TOPIC`.", autocompletion=complete_topic),
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
Template = Annotated[
    str | None,
    typer.Option("--format", "-f", metavar="TEXT", help="Print this for each message, with the tokens of `peek`."),
]
AsHex = Annotated[bool, typer.Option("--hex", help="Print bytes in hexadecimal instead of as UTF-8.")]
RowsAsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per message.")]

_profile: ContextVar[str | None] = ContextVar("profile", default=None)


def main() -> None:
    """Run the command line."""
    # Characters that the locale's encoding lacks are escaped instead of raising an error.
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="spark-mq")


def _command(**settings: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:  # noqa: ANN401 - typer's own
    """Make a function a command, which prints errors as one sentence and sets the exit status, without a traceback."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(*args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - whatever the command takes
            try:
                command(*args, **kwargs)
            except MQSourceError as error:
                print(f"spark-mq: {error}", file=sys.stderr)  # noqa: T201 - a command line prints
                raise typer.Exit(WRONG_ARGUMENTS if isinstance(error, OptionError) else FAILED) from error

        return app.command(**settings)(run)

    return decorate


def _print_version(value: bool) -> None:
    if value:
        print(client_version(" "))  # noqa: T201 - a command line prints
        raise typer.Exit


@app.callback()
def select(
    profile: Annotated[
        str | None,
        typer.Option(
            "--profile",
            metavar="NAME",
            envvar="SPARK_MQ_PROFILE",
            help="Take the format and options from this profile; see `spark-mq profiles`.",
            autocompletion=complete_profile,
        ),
    ] = None,
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Inspect a message broker as spark-mq-source sees it, without Spark."""
    del version
    _profile.set(profile)


@_command()
def topics(
    format_name: FormatName = None,
    topic: TopicName = None,
    option: Options = None,
    *,
    namespace: Annotated[
        str | None,
        typer.Option("--namespace", "-n", help="Namespace of Pulsar whose topics to list; public/default unless set."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List all topics of the broker, or those of the options, with their numbers of partitions."""
    with closing(_source(format_name, topic, option).open_lister(namespace)) as inspector:
        show(inspector.topics(), json=as_json)


@_command()
def partitions(
    format_name: FormatName = None, topic: TopicName = None, option: Options = None, *, as_json: AsJson = False
) -> None:
    """List the partitions and their brokers."""
    with closing(_source(format_name, topic, option).open_inspector()) as inspector:
        show(inspector.partitions(), json=as_json)


@_command()
def offsets(
    format_name: FormatName = None, topic: TopicName = None, option: Options = None, *, as_json: AsJson = False
) -> None:
    """Show the first and last offset of each partition, and how much is between them."""
    with closing(_source(format_name, topic, option).open_inspector()) as inspector:
        show(inspector.offsets(), json=as_json)


@_command()
def lag(
    format_name: FormatName = None,
    topic: TopicName = None,
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
    read = None if checkpoint is None else read_offsets(checkpoint, source)
    named = [] if subscription is None else [f"subscription={subscription}"]
    with closing(_source(format_name, topic, [*(option or ()), *named]).open_inspector()) as inspector:
        show(inspector.lag(read), json=as_json)


@_command()
def unsubscribe(
    format_name: FormatName = None, topic: TopicName = None, option: Options = None, *, as_json: AsJson = False
) -> None:
    """Delete the subscription of a query that will not be started again."""
    source = _source(format_name, topic, option)
    with closing(source.open_inspector()) as inspector:
        if not isinstance(inspector, Unsubscriber):
            raise OptionError(f"format {source.name} has no subscriptions to delete")
        show(inspector.unsubscribe(), json=as_json)


@_command(epilog=TOKENS_HELP)
def peek(
    format_name: FormatName = None,
    topic: TopicName = None,
    option: Options = None,
    *,
    rows: Annotated[int, typer.Option("--rows", "-n", min=1, help="Number of messages.")] = 10,
    template: Template = None,
    as_hex: AsHex = False,
    as_json: RowsAsJson = False,
) -> None:
    """Print some messages from `startingOffsets` on, one line each: position, time, key and value."""
    source = _source(format_name, topic, option)
    printer = _Printer(source, template, as_hex=as_hex, as_json=as_json)
    # Closed explicitly, so that received messages that are not shown return to the broker.
    with closing(peeked(source, printer.names, rows)) as found:
        printer.print(itertools.islice(found, rows))


@_command()
def tail(
    format_name: FormatName = None,
    topic: TopicName = None,
    option: Options = None,
    *,
    last: Annotated[
        int | None,
        typer.Option("--last", "-n", min=0, help="Number of messages of each partition; 10 unless set."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-F", help="Continue with new messages as they arrive, until Ctrl-C.")
    ] = False,
    template: Template = None,
    as_hex: AsHex = False,
    as_json: RowsAsJson = False,
) -> None:
    """Print the last messages of each partition, as `peek` prints them; `--follow`: also new ones as they arrive."""
    source = _source(format_name, topic, option)
    printer = _Printer(source, template, as_hex=as_hex, as_json=as_json)
    try:
        printer.print(tailed(source, printer.names, last, follow=follow))
    except KeyboardInterrupt:
        if not follow:
            raise


@_command()
def schema(format_name: FormatName = None, topic: TopicName = None, option: Options = None) -> None:
    """Print the columns that a read gives, as `.schema()` takes them: with valueFormat=auto by the topic's schema."""
    source = _source(format_name, topic, option)
    columns, _ = source.format.columns_by_default(source.options)
    print(ddl_of_schema(columns))  # noqa: T201 - a command line prints


@_command()
def doctor(format_name: FormatName = None, topic: TopicName = None, option: Options = None) -> None:
    """Check the steps of a read; show which one fails, and why."""
    console = Console(soft_wrap=True)
    source = _source(format_name, topic, option)
    with closing(source.open_inspector()) as inspector:
        steps = itertools.chain(inspector.steps(), [("read a message", lambda: _read_one(source))])
        for name, step in steps:
            try:
                found = step()
            except MQSourceError as error:
                console.print(f"[red]failed[/]  {name}\n        see {error.help_url}", highlight=False)
                raise error.within(name) from error
            console.print(f"[green]ok[/]      {name}: ", end="", highlight=False)
            console.print(found, markup=False, highlight=False)


@_command(name="migrate-checkpoint")
def migrate_checkpoint(
    old: Annotated[Path, typer.Argument(metavar="OLD", help="Checkpoint folder of the stopped query.")],
    new: Annotated[Path, typer.Argument(metavar="NEW", help="Checkpoint folder to make.")],
    *,
    as_json: AsJson = False,
) -> None:
    """Convert the checkpoint of a query with pulsar-spark, so that pulsar-native continues behind its last batch."""
    migrated = migrated_checkpoint(old, new)
    show(migrated.rows(), json=as_json)
    if migrated.planned > migrated.committed:
        print(  # noqa: T201 - a command line prints
            f"batch {migrated.planned} was not committed: the query repeats it with the same messages", file=sys.stderr
        )


@_command()
def profiles(*, as_json: AsJson = False) -> None:
    """List the profiles; secrets are shown as references only."""
    found = load_profiles()
    if not found and not as_json:
        print(f"there are no profiles in {profiles_path()}", file=sys.stderr)  # noqa: T201 - a command line prints
        return
    rows = ({"profile": one.name, "format": one.format_name, "options": one.options} for one in found.values())
    show(rows, json=as_json)


def _read_one(source: Source) -> str:
    with closing(peeked(source, source.format.columns.default, 1)) as found:
        return "no message to read" if next(found, None) is None else "the first message can be decoded"


class _Printer:
    """Printer of messages in the form that the options of `peek` and `tail` select."""

    def __init__(self, source: Source, template: str | None, *, as_hex: bool, as_json: bool) -> None:
        if as_json and template is not None:
            raise OptionError("--json and --format exclude each other")
        columns, known = source.format.columns, FORMATS[source.name]
        if template is None:
            template = default_line(known, with_topic="topic" not in source.options)
        console = Console()
        in_color = console.color_system is not None and not console.no_color
        line = Line(template, known, list(columns.readable), as_hex=as_hex, in_color=in_color)
        self.names = list(dict.fromkeys([*columns.default, *line.columns]))
        self._is_json = as_json
        self._text_of = (lambda row: f"{row_as_json(row, as_hex=as_hex)}\n") if as_json else line.of

    def print(self, rows: Iterable[Row]) -> None:
        printed = False
        for row in rows:
            print(self._text_of(row), end="", flush=True)  # noqa: T201 - a command line prints
            printed = True
        if not printed and not self._is_json:
            print("no message to read", file=sys.stderr)  # noqa: T201 - a command line prints


def _source(format_name: str | None, topic: str | None, option: list[str] | None) -> Source:
    return Source.of(_profile.get(), format_name, topic, option)


if __name__ == "__main__":
    main()
