"""Training checkpoints for bit-exact resume, and the per-step metrics log (`metrics.jsonl`)."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.storage.state import load_state, save_state
from ratchet.components.storage.store import disk_errors, write_atomic
from ratchet.components.training import ranks

if TYPE_CHECKING:
    from ratchet.components.protocols import Learner, Memory


class Log:
    """Appends one JSON line per step, on rank 0. On resume, lines after the checkpoint's step are removed;
    they will be written again. `last`: the metrics of the last line.
    """

    def __init__(self, path: Path, *, after: int) -> None:
        self.path = path
        self.last: dict[str, float] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        if ranks.first() and path.exists():
            kept = [text for text in path.read_text().splitlines() if _step(text) <= after]
            write_atomic(path, "".join(text + "\n" for text in kept))  # atomic: a kill here loses no step
            self.last = json.loads(kept[-1])["metrics"] if kept else {}

    def __call__(self, values: Mapping[str, float], step: int, of: int | None = None) -> None:
        self.last = {k: v for k, v in values.items() if isinstance(v, (int, float))}
        line = {"step": step, "of": of, "time": time.time(), "metrics": self.last}
        if ranks.first():
            with disk_errors(f"writing {self.path}"), self.path.open("a") as file:
                file.write(json.dumps(line) + "\n")


def _step(text: str) -> int:
    try:
        return json.loads(text)["step"]
    except (json.JSONDecodeError, KeyError, TypeError):
        return 1 << 62  # an incomplete line counts as after any step


def latest(progress: Path) -> Path | None:
    """The newest complete checkpoint of an unfinished fit."""
    return max(progress.glob("checkpoint-*"), key=_number, default=None)


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("checkpoint-"))


def save_checkpoint(
    progress: Path,
    state: Mapping[str, Any],
    learners: Mapping[str, Learner],
    remembered: Mapping[str, Memory],
) -> None:
    """Save learners and stateful pieces, then delete the previous checkpoint."""
    saved = {
        "state": dict(state),
        "learners": {role: learner.state() for role, learner in learners.items()},
        "memories": {name: memory.state() for name, memory in remembered.items()},
    }
    if not ranks.first():
        return
    save_state(progress / f"checkpoint-{state['step']}", saved)
    for older in sorted(progress.glob("checkpoint-*"), key=_number)[:-1]:
        shutil.rmtree(older)


def load_checkpoint(
    checkpoint: Path, learners: Mapping[str, Learner], remembered: Mapping[str, Memory]
) -> dict[str, Any]:
    """Restore learners and stateful pieces; returns the `state` saved with them."""
    saved = load_state(checkpoint)
    for role, learner in learners.items():
        learner.restore(saved["learners"][role])
    for name, memory in remembered.items():
        memory.restore(saved["memories"][name])
    return saved["state"]
