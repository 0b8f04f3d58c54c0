"""Runs one program, and ends it with everything it started as soon as whoever asked for it is gone.

    python -I brokers/supervise.py PROGRAM ARGUMENT...

Standard input is the leash: when it closes (the owner ended, however rudely) the program's process group is killed.
The first line of standard output is the program's process id, which is its group's id; the program itself writes to
standard error. Ends with the program's exit code. A broker started this way cannot outlive a killed test run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Starts the program, watches the leash, passes the exit code on.

    Raises:
        SystemExit: always, with the program's exit code.
    """
    child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    print(child.pid, flush=True)

    def end_group() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)

    def watch_leash() -> None:
        sys.stdin.buffer.read()
        end_group()

    threading.Thread(target=watch_leash, daemon=True).start()
    code = child.wait()
    end_group()  # what the program left behind
    # os._exit: the watching thread is blocked in a read that nothing will end.
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
