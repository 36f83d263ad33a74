"""A stage runs in a process of its own: errors come back whole, a death is told, nothing is left behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from components.errors import SourceError, StageError
from components.run import as_request
from tasks.launch import launch


def test_an_error_crosses_the_process_border(tmp_path: Path) -> None:
    request = as_request("fetch_data", {"source": f"path:{tmp_path}/none.jsonl", "sha256": None}, {}, tmp_path / "work")
    with pytest.raises(SourceError, match=r"none\.jsonl"):
        launch(request, tmp_path / "log")
    assert "Traceback" in (tmp_path / "log").read_text()


def test_a_stage_returns_its_meta(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text("{}\n")
    (tmp_path / "work" / "progress").mkdir(parents=True)
    request = as_request("fetch_data", {"source": f"path:{tmp_path}/data.jsonl", "sha256": None}, {}, tmp_path / "work")
    assert launch(request, tmp_path / "log")["source"].endswith("data.jsonl")
    assert (tmp_path / "work" / "product" / "source.jsonl").read_text() == "{}\n"


def test_a_killed_stage_is_a_retryable_error_that_names_the_signal(tmp_path: Path) -> None:
    (tmp_path / "work" / "product").mkdir(parents=True)
    request = as_request("make_tiny", {"source": "generate:tiny?steps=100000"}, {}, tmp_path / "work")

    def kill() -> None:
        while not multiprocessing.active_children():
            time.sleep(0.05)
        time.sleep(1.0)
        os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(StageError, match="killed by SIGKILL; the machine probably ran out of memory") as caught:
        launch(request, tmp_path / "log")
    killer.join()
    assert caught.value.retryable and not multiprocessing.active_children()


def test_an_interrupt_takes_the_child_down(tmp_path: Path) -> None:
    (tmp_path / "work" / "product").mkdir(parents=True)
    request = as_request("make_tiny", {"source": "generate:tiny?steps=100000"}, {}, tmp_path / "work")
    ticks = []

    def tick() -> None:
        ticks.append(1)
        if len(ticks) > 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        launch(request, tmp_path / "log", tick=tick)
    assert not multiprocessing.active_children()
