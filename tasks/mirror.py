"""The side of the mirror that talks to MLflow: shipping a run's journal to it.

What was shipped is kept per tracking server in `<run>/tracking/shipped-<server>.json`: MLflow's run ids, what is done,
and a cursor for each metrics file. One process ships a run at a time (a file lock, which dies with the process).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError, ServiceError
from ratchet.tasks.journal import ROOT, TAG_LIMIT, Wanted, allowed, cut, lines, read_journal, read_json
from ratchet.tasks.server import bounded, client, experiment_id, reached, tracking_uri

log = logging.getLogger("ratchet.tracking")
KEY = "ratchet.key"  # the tag by which a run created just before a crash is found again
PARAM_LIMIT, BATCH, DIGEST_LIMIT = 6000, 1000, 36  # MLflow's own


def sync(run_dir: Path, home: Path) -> dict[str, int]:
    """Ship what is not yet shipped; returns counts `{"runs", "points", "missing"}` (missing: files that are gone).

    Raises `RecipeError` when nothing was ever tracked there, `ServiceError` when the server cannot be reached or
    another process is shipping this run.
    """
    journal = Path(run_dir) / "tracking" / "journal.jsonl"
    if not journal.exists():
        raise RecipeError(f"{run_dir} is not a tracked run: {journal} does not exist; expected a directory under runs/")
    with contextlib.closing(Shipper(Path(run_dir).resolve(), Path(home))) as shipper, reached(f"sending {run_dir} to {tracking_uri(home)}"):
        return shipper.ship()


class Shipper:
    """Makes MLflow agree with a run's journal, as often as asked; each call does only what is new."""

    def __init__(self, run_dir: Path, home: Path) -> None:
        self.run_dir, self.home, self.state_file = run_dir, home, shipped_file(run_dir, home)
        self.mlflow: Any = None
        self.seen: dict[str, set[tuple[str, int]]] = {}  # run id -> points MLflow has
        self.counts = {"runs": 0, "points": 0, "missing": 0}
        self.lock = open(run_dir / "tracking" / "lock", "w")  # noqa: SIM115 - held for as long as we ship
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise ServiceError(f"{run_dir} is being shipped by another process; wait until it ends") from None
        self.state: dict[str, Any] = read_json(self.state_file) or {"runs": {}, "cursors": {}}

    def close(self) -> None:
        self.lock.close()

    def ship(self) -> dict[str, int]:
        """One pass over the journal. Raises what MLflow raises when it cannot be reached; call again later."""
        wanted, experiment = read_journal(self.run_dir)
        with bounded():
            if self.mlflow is None:
                mlflow = client(self.home)
                self.experiment = experiment_id(mlflow, self.home, experiment)
                self._forget_lost_runs(mlflow)
                self.mlflow = mlflow
            self.counts["missing"] = 0
            self.state["experiment"] = self.experiment
            for key, run in wanted.items():
                done = self.state["runs"].setdefault(key, {})
                self._open(key, run, done)
                self._texts(run, done)
                self._inputs(run, done)
                for path in run.files:
                    self._points(done["id"], self._new_lines(path, done["id"]), f"{done['id']} {path}")
                fresh = run.points[done.get("logged", 0):]
                self._points(done["id"], fresh)
                done["logged"] = len(run.points)
                self._artifacts(run, done)
                if run.status != "RUNNING" and done.get("status") != run.status:
                    self.mlflow.set_terminated(done["id"], run.status, end_time=int(run.end * 1000))
                    done["status"] = run.status
                self._save()
        return dict(self.counts)

    def _forget_lost_runs(self, mlflow: Any) -> None:
        """When the server no longer has our run (its database was removed), ship everything anew."""
        from mlflow.exceptions import MlflowException

        root = self.state["runs"].get(ROOT, {}).get("id")
        try:
            if root and mlflow.get_run(root).info.lifecycle_stage == "active":
                return
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        if root:
            log.warning("MLflow no longer has run %s; shipping all of %s anew", root, self.run_dir)
        self.state = {"runs": {}, "cursors": {}}

    def _open(self, key: str, run: Wanted, done: dict[str, Any]) -> None:
        if "id" not in done:
            mark = f"{self.run_dir}#{key}"
            found = self.mlflow.search_runs([self.experiment], f"tags.`{KEY}` = '{mark.replace(chr(39), '')}'", max_results=1)
            if found:
                done["id"] = found[0].info.run_id
            else:
                tags = {KEY: mark.replace("'", ""), "mlflow.source.name": "ratchet"}
                if run.parent is not None:
                    tags["mlflow.parentRunId"] = self.state["runs"][run.parent]["id"]
                made = self.mlflow.create_run(self.experiment, int(run.start * 1000), tags, run.name)
                done["id"] = made.info.run_id
                self.seen[done["id"]] = set()
            self.counts["runs"] += 1
            self._save()
        elif run.status == "RUNNING" and done.get("status", "RUNNING") != "RUNNING":
            self.mlflow.update_run(done["id"], status="RUNNING")
            done["status"] = "RUNNING"

    def _texts(self, run: Wanted, done: dict[str, Any]) -> None:
        from mlflow.entities import Param, RunTag

        if not done.get("params"):
            params = [Param(k, cut(v, PARAM_LIMIT)) for k, v in run.params.items()]
            for i in range(0, len(params), 100):
                self._send(self.mlflow.log_batch, done["id"], params=params[i:i + 100])
            done["params"] = True
        if new := {k: v for k, v in run.tags.items() if done.get("tags", {}).get(k) != v}:
            tags = [RunTag(allowed(k), cut(v, TAG_LIMIT)) for k, v in new.items()]
            for i in range(0, len(tags), 100):
                self._send(self.mlflow.log_batch, done["id"], tags=tags[i:i + 100])
            done["tags"] = dict(run.tags)

    def _inputs(self, run: Wanted, done: dict[str, Any]) -> None:
        new = [i for i in run.inputs if [i["name"], i["digest"], i["context"]] not in done.get("inputs", [])]
        if not new:
            return
        from mlflow.data.http_dataset_source import HTTPDatasetSource
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import DatasetInput, InputTag

        for one in new:
            data = MetaDataset(HTTPDatasetSource(f"file:{one['path']}"), name=one["name"], digest=one["digest"][:DIGEST_LIMIT])
            entry = DatasetInput(data._to_mlflow_entity(), [InputTag("mlflow.data.context", one["context"])])
            self._send(self.mlflow.log_inputs, done["id"], [entry])
            done.setdefault("inputs", []).append([one["name"], one["digest"], one["context"]])

    def _artifacts(self, run: Wanted, done: dict[str, Any]) -> None:
        shipped = done.setdefault("artifacts", {})
        for path in run.artifacts:
            if not Path(path).is_file():
                self.counts["missing"] += path not in shipped
                continue
            now = [os.stat(path).st_size, os.stat(path).st_mtime_ns]
            if shipped.get(path) == now:
                continue
            self._send(self.mlflow.log_artifact, done["id"], path)
            shipped[path] = now

    def _new_lines(self, path: str, run_id: str) -> tuple[list[dict[str, Any]], list[Any]] | list[dict[str, Any]]:
        """The complete lines behind the cursor, and the next cursor: (offset, the bytes just before it). A file whose
        bytes there are others was cut or rewritten by a resumed stage and is read from its start."""
        offset, before = self.state["cursors"].get(f"{run_id} {path}", (0, ""))
        try:
            data = Path(path).read_bytes()
        except OSError:  # not there yet, or moved: the flow follows it again under its new name
            return []
        if offset > len(data) or data[:offset][-200:].hex() != before:
            offset = 0
        end = data.rfind(b"\n") + 1
        return (lines(data[offset:end]), [end, data[:end][-200:].hex()]) if end > offset else []

    def _points(self, run_id: str, found: Any, cursor: str | None = None) -> None:
        events, end = found if isinstance(found, tuple) else (found, None)
        if events:
            from mlflow.entities import Metric

            seen = self._seen(run_id)
            new: dict[tuple[str, int], Metric] = {}
            for event in events:
                for key, value in event.get("metrics", {}).items():
                    at = (allowed(key), int(event.get("step", 0)))
                    if not isinstance(value, (int, float)) or at in seen or at in new:
                        continue
                    value = float(value)
                    new[at] = Metric(at[0], value, int(event["time"] * 1000), at[1])
            batch = list(new.items())
            for i in range(0, len(batch), BATCH):
                part = batch[i:i + BATCH]
                self._send(self.mlflow.log_batch, run_id, metrics=[m for _, m in part])
                seen.update(at for at, _ in part)
                self.counts["points"] += len(part)
        if cursor and end is not None:
            self.state["cursors"][cursor] = end

    def _seen(self, run_id: str) -> set[tuple[str, int]]:
        """The points MLflow already has. Asked once a process for a run it did not create itself."""
        if run_id not in self.seen:
            keys = self.mlflow.get_run(run_id).data.metrics
            self.seen[run_id] = {(k, m.step) for k in keys for m in self.mlflow.get_metric_history(run_id, k)}
        return self.seen[run_id]

    def _send(self, call: Any, *args: Any, **kwargs: Any) -> None:
        """Call MLflow; what it refuses for good is reported and passed over, so that it cannot block the rest."""
        from mlflow.exceptions import MlflowException

        try:
            call(*args, **kwargs)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise
            log.warning("MLflow refused a part of %s: %s", self.run_dir, str(error).splitlines()[0])
            self.state.setdefault("refused", []).append(str(error)[:500])

    def _save(self) -> None:
        new = self.state_file.with_suffix(".new")
        new.write_text(json.dumps(self.state))
        new.replace(self.state_file)


def shipped_file(run_dir: Path, home: Path) -> Path:
    server = hashlib.sha256(tracking_uri(home).encode()).hexdigest()[:8]
    return run_dir / "tracking" / f"shipped-{server}.json"
