"""Completion of names in a real bash, and by the calls of zsh and fish."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_mq_source.cli.formats import FORMATS
from spark_mq_source.cli.main import app
from spark_mq_source.formats import load_format

TIMEOUT_S = 60
BY_NAME = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
"""Environment in which `--show-completion` takes the name of a shell instead of detecting the calling shell."""


def test_the_names_of_options_are_those_of_a_batch_read():
    names = load_format("pulsar-native").option_names()
    assert {"serviceUrl", "topic", "startingOffsets"} <= set(names)
    assert not {"hashingScheme", "maxRowsPerTrigger", "service.url"} & set(names)


def test_bash_completes_typed_names(tmp_path: Path):
    """An interactive bash receives keys as from a keyboard; a function with the program's name prints the line."""
    program = tmp_path / "spark-mq"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m spark_mq_source.cli.main "$@"\n')
    program.chmod(0o755)
    environment = {**os.environ, **BY_NAME, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    script = subprocess.run(
        [program, "--show-completion", "bash"], env=environment, stdout=subprocess.PIPE, timeout=TIMEOUT_S, check=True
    )
    (tmp_path / "completion").write_bytes(script.stdout)
    start = tmp_path / "start"
    start.write_text(f"source {tmp_path}/completion\nspark-mq() {{ printf '<%s>' \"$@\"; echo '<end>'; }}\n")
    keyboard, terminal = pty.openpty()
    bash = subprocess.Popen(
        ["bash", "--noprofile", "--rcfile", start, "-i"],
        env=environment,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    os.close(terminal)
    try:
        os.write(keyboard, b"spark-mq pe\tpul\t-o topic=x -o serviceU\tpulsar://h -o startingO\tearliest\n")
        screen = read_until(keyboard, "<end>")
    finally:
        bash.kill()
        bash.wait()
        os.close(keyboard)
    # No space follows an option's name, so that its value can follow.
    line = "<peek><pulsar-native><-o><topic=x><-o><serviceUrl=pulsar://h><-o><startingOffsets=earliest><end>"
    assert line in screen.splitlines()


def read_until(terminal: int, end: str) -> str:
    screen = b""
    while end.encode() not in screen:
        ready, _, _ = select.select([terminal], [], [], TIMEOUT_S)
        assert ready, screen
        screen += os.read(terminal, 65536)
    return screen.decode()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_script(shell: str, monkeypatch: pytest.MonkeyPatch):
    for name, value in BY_NAME.items():
        monkeypatch.setenv(name, value)
    script = CliRunner().invoke(app, ["--show-completion", shell], prog_name="spark-mq")
    assert f"_SPARK_MQ_COMPLETE=complete_{shell}" in script.stdout


@pytest.mark.parametrize("shell", ["zsh", "fish"])
@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("spark-mq lag ", list(FORMATS)),
        ("spark-mq lag t", ["tubemq"]),
        ("spark-mq lag tubemq -o mas", ["masters="]),
        ("spark-mq lag nsq -o topic=x --option nsqdT", ["nsqdTcpAddresses="]),
        ("spark-mq lag -o startingO", ["startingOffsets="]),
        ("spark-mq lag nsq -o masters", []),
        ("spark-mq lag nsq -o topic=", []),
    ],
)
def test_other_shells_receive_the_names(shell: str, typed: str, names: list[str]):
    """The environment variables are those with which typer's scripts for these shells call the program."""
    asked = {"_SPARK_MQ_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": typed}
    fish = {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    found = CliRunner(env=asked | fish).invoke(app, [], prog_name="spark-mq").stdout
    if shell == "zsh":
        # Another candidate keeps zsh from adding a space.
        names = [each for name in names for each in ([name, f"{name}VALUE"] if name.endswith("=") else [name])]
        assert re.findall(r'"([^"]+)"', found) == names
    else:
        assert found.split() == names
