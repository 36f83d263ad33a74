"""Start-up of stage processes: preloaded modules, log redirection, exit with the parent; their errors."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ratchet.components.errors import RatchetError, RecipeError, StageError, redacted
from ratchet.tasks.process.piece_errors import piece_error

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

PRELOAD = [
    "torch",
    "pandas",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "ratchet.components.stages.run",
]


def set_up_process(parent: int, log: str) -> None:
    """Exit with the flow process `parent`, which alone handles Ctrl-C, and append the output to `log`."""
    exit_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    file = open(log, "a", buffering=1)  # noqa: SIM115  stays open as long as the process lives
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file


@contextlib.contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started inside never see Ctrl-C, which the command alone handles."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent(parent: int) -> None:
    """Kill this process when the flow process dies; its actual parent is the fork server."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)

    def watch() -> None:
        while True:
            time.sleep(0.5)
            try:
                os.kill(parent, 0)
            except ProcessLookupError:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def send_error(connection: Connection, where: str, error: BaseException, advice: str, log: str) -> None:
    """Send ("error", a `RatchetError`) and print the traceback to the log, in this order: the disk of the log
    may be full. `where`: stage and process; `advice`: how the stage needs less memory.
    """
    if isinstance(error, MemoryError):
        error = StageError(f"{where} ran out of memory; {advice}", died=True)
    elif (why := piece_error(error)) is not None:
        error = RecipeError(f"{where}: {why}")
    elif not isinstance(error, RatchetError):
        error = StageError(f"{where} failed: {type(error).__name__}: {error} (log: {log})")
    with contextlib.suppress(OSError):  # the stage is gone
        connection.send(("error", error))
    with contextlib.suppress(OSError):
        print(redacted(traceback.format_exc()), flush=True)


def killed_by(number: int) -> str:
    """How a process ended that was killed by a signal, for messages."""
    name = signal.Signals(number).name
    return f"was killed by {name}{'; the machine probably ran out of memory' if name == 'SIGKILL' else ''}"
