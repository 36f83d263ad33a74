"""Run a program nobody has read, such as one a model wrote, where it can harm nothing. No root, no container.

The program gets a new Python process: empty environment, no inherited file or memory, in a session of its own. That
process locks itself in before the program starts (`components/environments/confinement.py`): it may compute, read Python's own
library, and nothing else. It cannot open a socket, read or write another file, start a process or a thread, signal
anybody or outlive its caller; memory and CPU time have hard limits, and the wall clock is kept from outside.

It fails closed: where the kernel lacks Landlock (Linux 5.13) or seccomp, nothing runs and `SandboxError` says why.
A program and the tests appended to it share the process, as in HumanEval's own harness: ending the process early,
printing and raising do not pass, but a program that searches the interpreter's frames could forge its verdict.
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
    """Whether a program came to its end without an exception; if not, why, in the program's own words."""

    passed: bool
    reason: str = ""


def execute(program: str, *, cpu_seconds: int = 5, wall_seconds: float = 30.0, memory_mib: int = 512) -> Verdict:
    """Run Python source confined. Every way not to come to the end is a failed verdict; a machine that cannot confine is a
    `SandboxError`. The CPU limit decides alike on a busy machine and an idle one; the wall clock only catches sleepers.
    """
    token = secrets.token_hex(16)
    request = {"program": program, "token": token, "parent": os.getpid(), "cpu_seconds": cpu_seconds, "memory_bytes": memory_mib << 20}
    read, write = os.pipe()
    try:
        with subprocess.Popen([sys.executable, "-I", "-S", "-B", confinement.__file__, str(write)], env={}, cwd="/",
                              stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, pass_fds=(write,),
                              start_new_session=True) as child:
            os.close(write)
            write = -1
            slow = False
            try:
                child.communicate(json.dumps(request).encode(), timeout=wall_seconds)
            except subprocess.TimeoutExpired:
                slow = True
            finally:
                child.kill()
        said = os.read(read, 65536).decode(errors="replace").splitlines()  # the writer is dead: what the pipe holds is all
    finally:
        os.close(read)
        if write >= 0:
            os.close(write)
    if not said or said[0] != "confined":
        why = said[0].removeprefix("refused ") if said else f"its process ended with {child.returncode} before it was locked in"
        raise SandboxError(f"model-written code cannot be run safely on this machine ({why}); it needs Linux 5.13 or later with "
                           "Landlock and seccomp, which some container runtimes take away")
    if slow:
        return Verdict(False, f"it did not end within {wall_seconds:g} s")
    if len(said) == 2 and said[1] == f"passed {token}":
        return Verdict(True)
    if child.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return Verdict(False, f"it used more than {cpu_seconds} s of CPU time")
    if len(said) == 2 and said[1].startswith("failed "):
        return Verdict(False, said[1].removeprefix("failed "))
    return Verdict(False, f"it ended its process ({child.returncode}) before it came to its end")
