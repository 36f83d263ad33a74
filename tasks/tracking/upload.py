"""Upload a run to MLflow: the thread of a run that goes on, and `ratchet sync`.

The run's files are the truth and MLflow is a copy that may come late. Nothing is remembered between processes: what MLflow already has
is asked of MLflow, so uploading twice changes nothing, and a server that was replaced gets everything. A point is known by
(run, key, step): the first value stays when a resumed stage repeats a step.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ratchet.components.errors import ServiceError, redacted
from ratchet.tasks.data.versioning import digest
from ratchet.tasks.tracking.mlflow_runs import ROOT, MlflowRun, mlflow_runs
from ratchet.tasks.tracking.mlflow_text import allowed, cut, lines
from ratchet.tasks.tracking.server import TRAINING, client, experiment_id, reached, tracking_uri

log = logging.getLogger("ratchet.tracking")
KEY, COMPLETE = "ratchet.key", "ratchet.complete"  # tags: by which a run is found again; that all of a run that ended at this time is there
LIMITS = {"params": 100, "tags": 100, "metrics": 1000, "parameter": 6000, "tag": 8000, "digest": 36}  # MLflow's own
version_of = functools.cache(digest)  # a product does not change, and many stages read the same


def sync(run_dir: Path, home: Path) -> int:
    """Upload what MLflow does not have yet; returns how many points that were. Raises `RecipeError` for what is no run's directory,
    `ServiceError` when the server cannot be reached or another process is uploading this run."""
    with contextlib.closing(Uploader(Path(run_dir).resolve(), Path(home))) as uploader, reached(f"sending {run_dir} to {tracking_uri(home)}"):
        return 0 if uploader.complete() else uploader.upload()


@dataclass
class Sent:
    """What MLflow has of one run."""

    id: str
    status: str
    params: set[str]
    tags: dict[str, str]
    inputs: set[str]
    points: set[tuple[str, int]]
    sizes: dict[str, int]  # of artifacts that an earlier process uploaded
    files: dict[Path, tuple[int, int]] = field(default_factory=dict)  # size and time of the files as they were read


class Uploader:
    """Brings MLflow up to date with a run, as often as asked. One process uploads a run at a time (a lock on a file)."""

    def __init__(self, run_dir: Path, home: Path) -> None:
        self.run_dir, self.home, self.sent, self.experiment = run_dir, home, dict[str, Sent](), ""
        mlflow_runs(run_dir)
        (run_dir / "tracking").mkdir(exist_ok=True)
        self.lock = open(run_dir / "tracking" / "lock", "w")  # noqa: SIM115 - held for as long as we upload
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise ServiceError(f"{run_dir} is being uploaded by another process; wait until it ends") from None

    def close(self) -> None:
        self.lock.close()

    def link(self, artifact: str) -> str | None:
        """The address of an artifact of the pipeline's run from one MLflow page to another."""
        run = self.sent.get(ROOT)
        return run and f"#/experiments/{self.experiment}/runs/{run.id}/artifacts/{quote(artifact)}?{TRAINING}"

    def upload(self) -> int:
        """Send what is new; how many points. Raises what MLflow raises when it cannot be reached; call again later."""
        mlflow, count = client(self.home), 0
        try:
            self.experiment = self.experiment or experiment_id(mlflow, self.home)
            runs = mlflow_runs(self.run_dir, self.link("report.html"))
            for key, run in runs.items():
                if key not in self.sent:
                    self.sent[key] = self._found(mlflow, key, run)
                count += self._update(mlflow, self.sent[key], run)
            if runs[ROOT].status != "RUNNING":
                mlflow.set_tag(self.sent[ROOT].id, COMPLETE, str(runs[ROOT].end))
        except BaseException:
            self.sent, self.experiment = {}, ""  # the server may be another when it is back
            raise
        return count

    def complete(self) -> bool:
        """Whether MLflow has all of a run that has ended: one question instead of hundreds."""
        mlflow, root = client(self.home), mlflow_runs(self.run_dir)[ROOT]
        self.experiment = experiment_id(mlflow, self.home)
        found = self._search(mlflow, ROOT)
        return root.status != "RUNNING" and bool(found) and found[0].data.tags.get(COMPLETE) == str(root.end)

    def _search(self, mlflow: Any, key: str) -> Any:
        return mlflow.search_runs([self.experiment], f"tags.`{KEY}` = '{self._mark(key)}'", max_results=1)

    def _mark(self, key: str) -> str:
        return f"{self.run_dir}#{key}".replace("'", "")

    def _found(self, mlflow: Any, key: str, run: MlflowRun) -> Sent:
        """The run in MLflow, created when it is missing, and what it has."""
        if found := self._search(mlflow, key):
            made = mlflow.get_run(found[0].info.run_id)
        else:
            parent = {"mlflow.parentRunId": self.sent[run.parent].id} if run.parent is not None else {}
            made = mlflow.create_run(self.experiment, int(run.start * 1000), {KEY: self._mark(key), "mlflow.source.name": "ratchet", **parent}, run.name)
        id, data = made.info.run_id, made.data
        return Sent(id, made.info.status, set(data.params), dict(data.tags), {i.dataset.name for i in (made.inputs.dataset_inputs if made.inputs else [])},
                    {(name, point.step) for name in data.metrics for point in mlflow.get_metric_history(id, name)},
                    {file.path: file.file_size for file in mlflow.list_artifacts(id)} if found else {})

    def _update(self, mlflow: Any, sent: Sent, run: MlflowRun) -> int:
        from mlflow.data.http_dataset_source import HTTPDatasetSource
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import DatasetInput, InputTag, Param, RunTag

        if run.status == "RUNNING" != sent.status:
            mlflow.update_run(sent.id, status="RUNNING")
        self._batches(mlflow, sent, "params", [Param(k, redacted(cut(v, LIMITS["parameter"]))) for k, v in run.params.items() if k not in sent.params])
        tags = {allowed(k): redacted(cut(v, LIMITS["tag"])) for k, v in run.tags.items()}
        self._batches(mlflow, sent, "tags", [RunTag(k, v) for k, v in tags.items() if sent.tags.get(k) != v])
        for (name, role), path in run.inputs.items():
            if name not in sent.inputs:
                data = MetaDataset(HTTPDatasetSource(f"file:{path}"), name=name, digest=version_of(path)[:LIMITS["digest"]])
                self._send(mlflow.log_inputs, sent.id, [DatasetInput(data._to_mlflow_entity(), [InputTag("mlflow.data.context", role)])])
        sent.params, sent.tags, sent.inputs = sent.params | run.params.keys(), sent.tags | tags, sent.inputs | {name for name, _ in run.inputs}
        count = self._points(mlflow, sent, run.points)
        for path in run.files:
            if (now := _stamp(path)) and sent.files.get(path) != now:
                count += self._points(mlflow, sent, lines(path.read_bytes()))
                sent.files[path] = now
        for path in run.artifacts:
            if (now := _stamp(path)) and sent.files.get(path) != now:
                if sent.sizes.pop(path.name, None) != now[0]:
                    self._send(mlflow.log_artifact, sent.id, str(path))
                sent.files[path] = now
        if run.status not in ("RUNNING", sent.status):
            mlflow.set_terminated(sent.id, run.status, end_time=int(run.end * 1000))
        sent.status = run.status
        return count

    def _points(self, mlflow: Any, sent: Sent, events: Sequence[Mapping[str, Any]]) -> int:
        """Upload the numbers of `events`; other values are left out."""
        from mlflow.entities import Metric

        new: dict[tuple[str, int], Metric] = {}
        for event in events:
            for name, value in event.get("metrics", {}).items():
                at = (allowed(name), int(event.get("step", 0)))
                if isinstance(value, (int, float)) and at not in sent.points:
                    new.setdefault(at, Metric(at[0], float(value), int(event["time"] * 1000), at[1]))
        self._batches(mlflow, sent, "metrics", list(new.values()))
        sent.points |= new.keys()
        return len(new)

    def _batches(self, mlflow: Any, sent: Sent, kind: str, entries: list[Any]) -> None:
        for i in range(0, len(entries), LIMITS[kind]):
            self._send(mlflow.log_batch, sent.id, **{kind: entries[i:i + LIMITS[kind]]})

    def _send(self, call: Any, *args: Any, **kwargs: Any) -> None:
        """Call MLflow; what it refuses for good is reported and passed over, so that it cannot block the rest."""
        from mlflow.exceptions import MlflowException

        try:
            call(*args, **kwargs)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise
            log.warning("MLflow refused a part of %s: %s", self.run_dir, str(error).splitlines()[0])


def _stamp(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None when it is not there (yet, or any more)."""
    with contextlib.suppress(OSError):
        state = os.stat(path)
        return state.st_size, state.st_mtime_ns
