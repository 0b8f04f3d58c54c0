"""Build the compiled modules with sanitizers and assertions, and fuzz them: ``python -m tests.fuzz --minutes 10``.

A process that dies, hangs or finds a difference between the implementations saves its group of inputs in
``build/fuzz/findings``; the command that runs it again is printed. Inputs that reach new code are kept in
``build/fuzz/corpus``.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

from tests.fuzz.build import build
from tests.native import ROOT


def main() -> None:
    """Replace this process with a worker: the sanitizers must be loaded before Python."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().getrandbits(31))
    parser.add_argument(
        "--target", action="append", default=[], help="of `targets.TARGETS`, or directed_*; default: all"
    )
    parser.add_argument("--reproduce", type=Path, help="a file that an earlier run left, or directed_NAME-SEED")
    arguments = parser.parse_args()
    made = build()
    print(f"fuzzing with --seed {arguments.seed} for {arguments.minutes:g} minutes", flush=True)
    command = [sys.executable, "-m", "tests.fuzz.worker", str(made.modules), *arguments.target]
    command += ["--seed", str(arguments.seed), "--seconds", str(60 * arguments.minutes)]
    if arguments.reproduce is not None:
        command += ["--reproduce", str(arguments.reproduce.absolute())]
    os.chdir(ROOT)
    os.execve(command[0], command, made.environment())


if __name__ == "__main__":
    main()
