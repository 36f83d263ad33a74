"""Sandbox for untrusted (model-written) Python programs. Needs no root and no container.

The program runs in a new Python process with an empty environment, no inherited files and its own session.
The process confines itself before the program starts (`components/environments/confinement.py`): it may
compute and read Python's library. It cannot open sockets, access other files, start processes or threads,
send signals or outlive its caller. Memory and CPU time have hard limits; wall time is limited from outside.

It fails closed: without Landlock (Linux 5.13) or seccomp nothing runs, and `SandboxError` says why. A program
and its tests share the process, as in HumanEval's harness: exiting early, printing or raising does not pass,
but a program that inspects the interpreter's frames could forge its verdict.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from dataclasses import dataclass

from ratchet.components.environments import confinement
from ratchet.components.errors import SandboxError


@dataclass(frozen=True)
class Verdict:
    """Whether a program completed without an exception, and the reason if not."""

    passed: bool
    reason: str = ""


def execute(
    program: str, *, cpu_seconds: int = 5, wall_seconds: float = 30.0, memory_mib: int = 512
) -> Verdict:
    """Run Python source in the sandbox. Any early end is a failed verdict; a machine without sandbox support
    is a `SandboxError`. The CPU limit is independent of machine load; the wall-clock limit catches programs
    that sleep.
    """
    token = secrets.token_hex(16)
    request = {
        "program": program,
        "token": token,
        "parent": os.getpid(),
        "cpu_seconds": cpu_seconds,
        "memory_bytes": memory_mib << 20,
    }
    read, write = os.pipe()
    try:
        with subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", confinement.__file__, str(write)],
            env={},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(write,),
            start_new_session=True,
        ) as child:
            os.close(write)
            write = -1
            slow = False
            try:
                child.communicate(json.dumps(request).encode(), timeout=wall_seconds)
            except subprocess.TimeoutExpired:
                slow = True
            finally:
                child.kill()
        lines = (
            os.read(read, 65536).decode(errors="replace").splitlines()
        )  # the writer has ended, so the pipe is complete
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    if not lines or lines[0] != "confined":
        why = (
            lines[0].removeprefix("refused ")
            if lines
            else f"its process ended with exit code {child.returncode} before it was confined"
        )
        raise SandboxError(
            f"model-written code cannot be run safely on this machine ({why}); the sandbox needs Linux "
            "5.13 or later with "
            "Landlock and seccomp, which some container runtimes disable"
        )
    if slow:
        return Verdict(False, f"timeout: no result within {wall_seconds:g} s")
    if len(lines) == 2 and lines[1] == f"passed {token}":
        return Verdict(True)
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(False, f"CPU time limit of {cpu_seconds} s exceeded")
    if len(lines) == 2 and lines[1].startswith("failed "):
        return Verdict(False, lines[1].removeprefix("failed "))
    return Verdict(False, f"exited early with exit code {child.returncode}")
