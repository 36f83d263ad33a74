"""Orphan reaper: terminates all processes of a run when the run ends in any way, SIGKILL included.

Stage processes watch their flow themselves (`tasks/process/launch.py`), but the local Prefect server and the
loading fork server do not. A small helper process (this file as a script) holds one end of a pipe and
terminates every process with the run's mark in its environment when the kernel closes the other end.
"""

import os
import secrets
import signal
import subprocess
import sys
import time

MARK = "RATCHET_RUN"


def reap_children_on_exit() -> None:
    """Processes started from now on are terminated when this one ends (Linux); `MARK` marks them."""
    if not os.path.isdir("/proc/self"):
        return
    mark = secrets.token_hex(8)
    read, _write = os.pipe()  # never closed or inherited: the kernel closes it when this process ends
    subprocess.Popen(
        [sys.executable, "-I", "-S", "-B", __file__, mark],
        stdin=read,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,
        env={k: v for k, v in os.environ.items() if k != MARK},
    )
    os.close(read)
    os.environ[MARK] = mark


def marked(mark: str, name: str = MARK) -> list[int]:
    """Living processes with `name=mark` in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if f"{name}={mark}".encode() in file.read().split(b"\0"):
                    found.append(int(pid))
        except OSError:  # another user's process, or already gone
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
