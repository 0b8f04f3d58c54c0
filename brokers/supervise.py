"""A program that runs another one, and kills it with all its child processes when the owner process ends.

    python -I brokers/supervise.py PROGRAM ARGUMENT...

When standard input closes, because the owner ended or was killed, the program's process group is killed. The first line
of standard output is the program's process id, which is also its group's id; the program's own output goes to standard
error. The exit code is the program's. A broker started this way cannot outlive a killed test run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading


def main() -> None:
    """Start the program, watch standard input, and pass on the exit code.

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
    end_group()  # remaining child processes
    # os._exit: the watching thread is blocked in a read that never ends.
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
