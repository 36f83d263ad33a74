"""Directory of a run: its recipe, links into the store, state, and whether it is alive."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Any

from ratchet.components.errors import redacted
from ratchet.components.storage.store import disk_errors, write_atomic


class RunDirectory:
    """Directory of a run: resolved recipe, links to its stages in the store, and `run.json`."""

    def __init__(self, home: Path, run: str) -> None:
        self.path = home.resolve() / "runs" / run
        self.name = run
        self._alive: IO[str] | None = None

    def hold(self) -> None:
        """Mark the run as alive with a shared lock, released when this object or the process ends. Several
        processes may hold it.
        """
        if self._alive is None:
            with disk_errors(f"opening {self.path}"):
                self.path.mkdir(parents=True, exist_ok=True)
                self._alive = (self.path / "alive").open("w")
            fcntl.flock(self._alive, fcntl.LOCK_SH)

    def alive(self) -> bool:
        """Whether any process, including this one, holds the run's lock."""
        try:
            with (self.path / "alive").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def open(self, recipe: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomic(self.path / "recipe.yaml", recipe)

    def link(self, stage: str, target: Path) -> None:
        link = self.path / "stages" / stage
        link.parent.mkdir(parents=True, exist_ok=True)
        temporary = link.with_name(f".{stage}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(os.path.relpath(target, link.parent))
        os.replace(temporary, link)

    def record(self, **state: Any) -> None:
        """Merge `state` into `run.json`."""
        file = self.path / "run.json"
        current = json.loads(file.read_text()) if file.exists() else {"run": self.name}
        write_atomic(file, redacted(json.dumps({**current, **state}, indent=1)))

    def stages(self) -> dict[str, Path]:
        folder = self.path / "stages"
        return (
            {p.name: p.resolve() for p in sorted(folder.iterdir()) if p.is_symlink()}
            if folder.is_dir()
            else {}
        )
