"""What every process that computes a stage begins with: the modules it finds loaded, its log, and its end with its parent's."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PRELOAD = ["torch", "pandas", "transformers.modeling_utils", "transformers.models.auto.modeling_auto",
           "transformers.models.auto.tokenization_auto", "ratchet.components.stages.run"]


def write_to(log: str) -> None:
    """All output of this process goes to the end of `log` from here on."""
    file = open(log, "a", buffering=1)  # noqa: SIM115  open as long as the process
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file


def die_with(parent: int) -> None:
    """The fork server is this process's parent, and lives as long as the flow: die with either (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    import threading

    def watch() -> None:
        while True:
            time.sleep(0.5)
            try:
                os.kill(parent, 0)
            except ProcessLookupError:
                os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
