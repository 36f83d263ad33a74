"""MLflow as a mirror: a run's files are the truth, MLflow is a copy that may come late.

Everything said to `Tracking` is one line appended to `<run>/tracking/journal.jsonl`; no call here touches a network or
imports mlflow. A side thread ships the journal and the metrics files it names. A server that is dead, frozen or away
therefore stops nothing and blocks nothing; what was not shipped goes out at the next opportunity or by `sync(run_dir)`.

Shipping twice changes nothing. What was shipped is kept per tracking server in `<run>/tracking/shipped-<server>.json`:
MLflow's run ids, what is done, and a cursor for each metrics file. A point is known by (run, key, step): steps that a
resumed stage writes again are dropped (the first value stays). One parent run a pipeline, a child a stage, a
grandchild a round; times are those of the work, not of the shipping.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from ratchet.components.errors import redacted
from ratchet.components.store import disk_errors
from ratchet.tasks.journal import ROOT, flatten, read_json, texts
from ratchet.tasks.mirror import Shipper, shipped_file
from ratchet.tasks.server import TRAINING, tracking_uri

log = logging.getLogger("ratchet.tracking")


class Tracking:
    """The only thing a flow talks to. One object a pipeline process; every method but `close` returns at once.

    `home` holds the default `mlflow.db` and `mlartifacts/`. `live=False` starts no thread: `close` ships.
    """

    def __init__(self, home: Path, *, experiment: str = "ratchet", every_seconds: float = 2.0, live: bool = True) -> None:
        self.home, self.experiment, self.every_seconds, self.live = Path(home), experiment, every_seconds, live
        self.run_dir: Path | None = None
        self.problem: str | None = None  # why the last attempt to ship failed
        self._failures = 0
        self._stop, self._wake, self._thread = threading.Event(), threading.Event(), None

    def open_run(self, run_dir: Path, name: str, params: Mapping[str, Any], tags: Mapping[str, Any] | None = None) -> None:
        """Begin the pipeline's run, or continue the one a killed process left in `run_dir`."""
        self.run_dir = Path(run_dir).resolve()
        (self.run_dir / "tracking").mkdir(parents=True, exist_ok=True)
        self._say("open", ROOT, name=name, params=flatten(params), tags=texts(tags), experiment=self.experiment)
        if self.live:
            self._thread = threading.Thread(target=self._serve, name="mlflow-mirror", daemon=True)
            self._thread.start()

    def open_stage(self, name: str, *, parent: str = ROOT, tags: Mapping[str, Any] | None = None) -> str:
        """A child run; returns its key (`sft`, `rlhf/round-2`), the `stage` of the other calls and a `parent`."""
        key = f"{parent}/{name}" if parent else name
        self._say("open", key, name=name, parent=parent, params={}, tags=texts(tags))
        return key

    def follow(self, metrics_file: Path, stage: str = ROOT) -> None:
        """Mirror a JSON-lines file `{"step", "time", "metrics"}` that may still grow, move (follow it again) or be
        missing. Values that are not numbers are left out."""
        self._say("follow", stage, path=str(Path(metrics_file).resolve()))

    def log(self, metrics: Mapping[str, float], step: int = 0, stage: str = ROOT) -> None:
        """Numbers that stand in no metrics file, such as the final evaluation's."""
        self._say("metrics", stage, metrics=dict(metrics), step=step)

    def log_input(self, name: str, path: Path, digest: str, context: str, stage: str = ROOT) -> None:
        """The data set a run read, by DVC's digest; `context` such as `training`. The data is never loaded."""
        self._say("input", stage, name=name, path=str(path), digest=digest, context=context)

    def log_artifacts(self, files: Iterable[Path], stage: str = ROOT) -> None:
        """Files to copy to the run; one that changes later is copied again."""
        for path in files:
            self._say("artifact", stage, path=str(Path(path).resolve()))

    def tag(self, tags: Mapping[str, Any], stage: str = ROOT) -> None:
        self._say("tags", stage, tags=texts(tags))

    def close_stage(self, stage: str, status: str = "FINISHED") -> None:
        """`status`: FINISHED, FAILED or KILLED."""
        self._say("close", stage, status=status)

    def close(self, status: str = "FINISHED", wait_seconds: float = 30.0) -> bool:
        """End the run and wait a little for the mirror. False: not all is shipped (`problem` says why)."""
        self._say("close", ROOT, status=status)
        self._stop.set()
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="mlflow-mirror", daemon=True)
            self._thread.start()
        self._thread.join(wait_seconds)
        if self._thread.is_alive():
            self.problem = self.problem or redacted(f"{tracking_uri(self.home)} has not answered for {wait_seconds:g} s")
        if self.problem:
            log.warning("MLflow is behind, nothing is lost: %s. `ratchet sync %s` ships the rest", self.problem, self.run_dir)
        return self.problem is None

    def run_id(self, stage: str = ROOT, wait_seconds: float = 0.0) -> str | None:
        """MLflow's id of a run once it was shipped, else None: after `wait_seconds`, or three failures a second apart."""
        end, enough = time.monotonic() + wait_seconds, self._failures + 3
        for poll in itertools.count():
            runs = read_json(shipped_file(self.run_dir, self.home)).get("runs", {})
            if "id" in runs.get(stage, {}) or self._failures >= enough or time.monotonic() >= end:
                break
            if poll % 10 == 0:
                self._wake.set()
            time.sleep(0.1)
        return runs.get(stage, {}).get("id")

    def page(self, artifact: str, wait_seconds: float = 0.0) -> str | None:
        """The address of an artifact of the pipeline's run among MLflow's pages; None where no server shows them (`ratchet ui` is
        elsewhere each time) or it has not heard of the run after `wait_seconds`."""
        server = urlsplit(tracking_uri(self.home))
        inside = self.link(artifact, wait_seconds) if server.scheme in ("http", "https") else None
        address = f"{server.scheme}://{server.netloc.rpartition('@')[2]}{server.path.rstrip('/')}"  # without a password
        return inside and f"{address}/{inside}"

    def link(self, artifact: str, wait_seconds: float = 0.0) -> str | None:
        """The address of an artifact of the pipeline's run from one MLflow page to another."""
        run = self.run_id(wait_seconds=wait_seconds)
        experiment = read_json(shipped_file(self.run_dir, self.home)).get("experiment")
        return f"#/experiments/{experiment}/runs/{run}/artifacts/{quote(artifact)}?{TRAINING}" if run and experiment else None

    def _say(self, event: str, key: str, **what: Any) -> None:
        if self.run_dir is None:
            raise RuntimeError("Tracking: call open_run() first")
        line = redacted(json.dumps({"event": event, "key": key, "time": time.time(), **what}))
        with disk_errors("writing the journal"), open(self.run_dir / "tracking" / "journal.jsonl", "ab+") as file:
            if file.tell() and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                file.write(b"\n")  # a kill or a full disk tore the last line: keep it from taking this one along
            file.write(line.encode() + b"\n")

    def _serve(self) -> None:
        """The side thread: ship, sleep, and after a failure sleep longer. Ends after one last try."""
        assert self.run_dir is not None
        shipper, pause = None, self.every_seconds
        with contextlib.ExitStack() as stack:
            while True:
                last = self._stop.is_set()
                try:
                    shipper = shipper or stack.enter_context(contextlib.closing(Shipper(self.run_dir, self.home)))
                    shipper.ship()
                    self.problem, pause = None, self.every_seconds
                except Exception as error:  # whatever MLflow does, the flow goes on
                    self.problem = redacted(f"{type(error).__name__}: {str(error).splitlines()[0][:300] if str(error) else ''}")
                    self._failures, pause = self._failures + 1, min(60.0, pause * 2)
                if last:
                    return
                self._wake.wait(pause)
                self._wake.clear()
