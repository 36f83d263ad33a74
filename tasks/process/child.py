"""Start-up of stage processes: preloaded modules, log redirection, exit with the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time

PRELOAD = [
    "torch",
    "pandas",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "ratchet.components.stages.run",
]


def redirect_output(log: str) -> None:
    """Redirect stdout and stderr of this process to the end of `log`."""
    file = open(log, "a", buffering=1)  # noqa: SIM115  stays open as long as the process lives
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file


def exit_with_parent(parent: int) -> None:
    """Kill this process when the flow process `parent` dies. (The fork server is its actual parent and lives
    as long as the flow; Linux.)
    """
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
