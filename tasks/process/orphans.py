"""Nothing of a run outlives it, however it ends. Run as a script, this file is the one that waits for the end.

A stage's process watches its flow by itself (`tasks/process/launch.py`). The server that Prefect starts for a run without one does
not, the stages' fork server does not while it loads, and a run that is killed with SIGKILL can end nothing. So a small process holds one end of a pipe and takes down
whatever carries the run's mark in its environment once the kernel closes the other.
"""

import os
import secrets
import signal
import subprocess
import sys
import time

MARK = "RATCHET_RUN"


def leave_nothing_behind() -> None:
    """From now on, what this process starts ends with it (Linux). Its children get `RATCHET_RUN` in their environment."""
    if not os.path.isdir("/proc/self"):
        return
    mark = secrets.token_hex(8)
    read, _write = os.pipe()  # the other end is never closed and never inherited: the kernel closes it when this process ends
    subprocess.Popen([sys.executable, "-I", "-S", "-B", __file__, mark], stdin=read, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                     cwd="/", start_new_session=True, env={k: v for k, v in os.environ.items() if k != MARK})
    os.close(read)
    os.environ[MARK] = mark


def marked(mark: str, name: str = MARK) -> list[int]:
    """Living processes that have `name=mark` in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"{name}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:  # another user's, or gone
            continue
    return found


def main(mark: str) -> None:
    sys.stdin.read()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for pid in marked(mark):
            try:
                os.kill(pid, sign)
            except OSError:
                continue
        end = time.monotonic() + 5
        while marked(mark) and time.monotonic() < end:
            time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
