"""Shutdown of data-parallel ranks. Ranks started by the launcher: `tests/tasks/process/test_ranks.py`."""

from __future__ import annotations

import subprocess
import sys

ENDING = """
import atexit, sys
from torch import distributed

atexit.register(lambda: print("initialised" if distributed.is_initialized() else "destroyed"))  # the last to be called
from ratchet.components.training import ranks

ranks.join()
ranks.join()
"""  # noqa: E501


def test_successful_rank_destroys_the_process_group() -> None:
    """Otherwise gloo's thread may still hold the last exchange at interpreter exit and abort a successful
    rank: 36 of 60 pairs of ranks whose last operation was an exchange.
    """
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "destroyed\n"), ended.stderr


def test_failing_rank_does_not_wait_to_destroy_the_process_group() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", f"{ENDING}raise ValueError"], capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout) == (1, "initialised\n"), ended.stderr
