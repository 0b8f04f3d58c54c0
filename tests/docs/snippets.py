"""Snippets of a page, which are run, and their expected output.

``python`` blocks run as they are, one after the other, in one namespace that is empty at the beginning of the page; of
a ``diff`` the new side runs. In a ``console`` block each command behind a ``$`` runs. A ``text`` block right after a
``python`` block is the expected output of that block, and the other lines of a ``console`` block that of the command
above them. ``...`` matches anything; in a block with the title ``For example`` every number matches every other one.
A block whose title is a path with a folder is a file, which does not run, and blocks of other languages do not either.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import dedent

from typer.testing import CliRunner

from spark_mq_source.cli.main import app

NOT_RUN = {"bash", "text", "toml", "yaml"}
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>[\w-]+)?(?P<title>[^\n]*)\n(?P<text>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE
)


@dataclass(frozen=True)
class Snippet:
    """A program or a command line of a page.

    Attributes:
        line: its first line.
        language: `python` or `console`.
        text: the program, or the command line.
        output: the expected output; None if the page shows none.
        example: whether the numbers in it may differ.
    """

    line: int
    language: str
    text: str
    output: str | None = None
    example: bool = False


def snippets(page: str) -> Sequence[Snippet]:
    """Return all snippets of a page that are run, in order.

    Raises:
        ValueError: a block of a language that is neither run nor in `NOT_RUN`.
    """
    found: list[Snippet] = []
    end = -1
    for match in _FENCE.finditer(page):
        language, text, example = match["language"], dedent(match["text"]), "For example" in match["title"]
        if "/" in match["title"]:
            continue
        line = page.count("\n", 0, match.start()) + 1
        follows = not page[end : match.start()].strip() if end >= 0 else False
        if language == "python":
            found.append(Snippet(line, language, text))
        elif language == "diff":
            new = "".join(part[1:] for part in text.splitlines(keepends=True) if part[0] in "+ ")
            found.append(Snippet(line, "python", new))
        elif language == "console":
            found += _commands(line, text, example)
        elif language == "text" and follows and found and found[-1].language == "python" and found[-1].output is None:
            found[-1] = Snippet(found[-1].line, "python", found[-1].text, text, example)
        elif language not in NOT_RUN:
            raise ValueError(f"line {line}: what is to be done with a block of {language}?")
        end = match.end()
    return found


def _commands(line: int, text: str, example: bool) -> Iterator[Snippet]:
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, output = re.match(r"((?:[^\n]*\\\n)*[^\n]*\n)(.*)", part, re.DOTALL).groups()  # type: ignore[union-attr]
        yield Snippet(line, "console", command, output or None, example)


def run(found: Sequence[Snippet], page: str, replacements: Mapping[str, str]) -> Mapping[str, object]:
    """Run the snippets of a page; return their namespace.

    Args:
        found: the snippets.
        page: its name.
        replacements: texts of the page and those to run instead, such as addresses of brokers; replaced the other way
            round in the output.

    Raises:
        AssertionError: the output differs from the page.
    """
    namespace: dict[str, object] = {"__name__": "__main__"}
    for one in found:
        text = one.text
        for shown, real in replacements.items():
            text = text.replace(shown, real)
        if one.language == "python":
            program = compile("\n" * one.line + text, page, "exec")
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(program, namespace)  # noqa: S102 - this is what is under test
            printed = output.getvalue()
        else:
            printed = _run_command(text, fails=one.output is not None and "\nspark-mq: " in one.output)
        for shown, real in replacements.items():
            printed = printed.replace(real, shown)
        print(f"-- {page}:{one.line}\n{text}\n-- prints\n{printed}")  # noqa: T201 - for `pytest -rP`
        if one.output is not None:
            options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            pair = [re.sub(r"\d[\d,.]*", "0", each) if one.example else each for each in (one.output, printed)]
            same = doctest.OutputChecker().check_output(*pair, options)
            assert same, f"{page}:{one.line} shows\n{one.output}\nand prints\n{printed}"
    return namespace


def _run_command(text: str, *, fails: bool) -> str:
    program, *arguments = shlex.split(text.replace("\\\n", ""))
    assert program == "spark-mq", f"only spark-mq is run, not {program}"
    # In this process, because imports take longest. `tests/behaviours/cli` runs it as a program.
    done = CliRunner(env={"COLUMNS": "80", "NO_COLOR": "1"}).invoke(app, arguments, prog_name="spark-mq")
    assert (done.exit_code != 0) == fails, done.output
    return done.output
