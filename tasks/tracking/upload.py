"""Upload of a run to MLflow, used by the background thread and by `ratchet sync`.

The run's files are authoritative and MLflow is a copy. No state is kept between processes: MLflow is queried
for what it has, so uploads are idempotent and a new server receives everything. Points are identified by
(run, key, step); the first value is kept if a resumed stage repeats a step.
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

from ratchet.components.errors import BusyError, redacted
from ratchet.tasks.data.versioning import dvc_md5
from ratchet.tasks.tracking.mlflow_runs import ROOT, MlflowRun, mlflow_runs
from ratchet.tasks.tracking.server import (
    TRAINING,
    allowed,
    client,
    cut,
    experiment_id,
    lines,
    reached,
    tracking_uri,
)

log = logging.getLogger("ratchet.tracking")
KEY = "ratchet.key"  # tag: identity of a run
COMPLETE = "ratchet.complete"  # tag: end time up to which a finished run is fully uploaded
LIMITS = {"params": 100, "tags": 100, "metrics": 1000, "parameter": 6000, "tag": 8000, "digest": 36}
"""MLflow's limits: entries of a batch, then characters."""
version_of = functools.cache(dvc_md5)  # artifacts are immutable and shared by stages


def sync(run_dir: Path, home: Path) -> int:
    """Upload everything that MLflow lacks; returns the number of points. `RecipeError` if it is not a run
    directory, `ServiceError` if the server is unreachable, `BusyError` if another process is uploading.
    """
    with (
        contextlib.closing(Uploader(Path(run_dir).resolve(), Path(home))) as uploader,
        reached(f"sending {run_dir} to {tracking_uri(home)}"),
    ):
        return 0 if uploader.complete() else uploader.upload()


@dataclass
class Sent:
    """Known state of one MLflow run."""

    id: str
    status: str
    params: set[str]
    tags: dict[str, str]
    inputs: set[str]
    points: set[tuple[str, int]]
    sizes: dict[str, int]  # of artifacts uploaded by an earlier process
    files: dict[Path, tuple[int, int]] = field(default_factory=dict)  # size and mtime when they were read


class Uploader:
    """Incremental uploader of a run, protected by a file lock against concurrent uploads."""

    def __init__(self, run_dir: Path, home: Path) -> None:
        self.run_dir, self.home, self.sent, self.experiment = run_dir, home, dict[str, Sent](), ""
        mlflow_runs(run_dir)
        (run_dir / "tracking").mkdir(exist_ok=True)
        self.lock = open(run_dir / "tracking" / "lock", "w")  # noqa: SIM115  held while uploading
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.lock.close()
            raise BusyError(f"{run_dir} is being uploaded by another process; wait until it ends") from None

    def close(self) -> None:
        self.lock.close()

    def link(self, artifact: str) -> str | None:
        """Relative link to an artifact of the run in the MLflow UI."""
        run = self.sent.get(ROOT)
        return run and f"#/experiments/{self.experiment}/runs/{run.id}/artifacts/{quote(artifact)}?{TRAINING}"

    def upload(self) -> int:
        """Upload new data and return the number of points. Raises MLflow's errors if it is unreachable."""
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
            self.sent, self.experiment = {}, ""  # the server may have been replaced
            raise
        return count

    def complete(self) -> bool:
        """Whether MLflow has all data of a finished run, by a single query."""
        mlflow, root = client(self.home), mlflow_runs(self.run_dir)[ROOT]
        self.experiment = experiment_id(mlflow, self.home)
        found = self._search(mlflow, ROOT)
        return root.status != "RUNNING" and bool(found) and found[0].data.tags.get(COMPLETE) == str(root.end)

    def _search(self, mlflow: Any, key: str) -> Any:
        return mlflow.search_runs([self.experiment], f"tags.`{KEY}` = '{self._mark(key)}'", max_results=1)

    def _mark(self, key: str) -> str:
        return f"{self.run_dir}#{key}".replace("'", "")

    def _found(self, mlflow: Any, key: str, run: MlflowRun) -> Sent:
        """The MLflow run (created if missing) and its known state."""
        if found := self._search(mlflow, key):
            made = mlflow.get_run(found[0].info.run_id)
        else:
            tags = {KEY: self._mark(key), "mlflow.source.name": "ratchet"}
            if run.parent is not None:
                tags["mlflow.parentRunId"] = self.sent[run.parent].id
            made = mlflow.create_run(self.experiment, int(run.start * 1000), tags, run.name)
        id, data = made.info.run_id, made.data
        return Sent(
            id,
            made.info.status,
            set(data.params),
            dict(data.tags),
            {i.dataset.name for i in (made.inputs.dataset_inputs if made.inputs else [])},
            {(name, point.step) for name in data.metrics for point in mlflow.get_metric_history(id, name)},
            {file.path: file.file_size for file in mlflow.list_artifacts(id)} if found else {},
        )

    def _update(self, mlflow: Any, sent: Sent, run: MlflowRun) -> int:
        from mlflow.data.http_dataset_source import HTTPDatasetSource
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import DatasetInput, InputTag, Param, RunTag

        if run.status == "RUNNING" != sent.status:
            mlflow.update_run(sent.id, status="RUNNING")
        params = {k: redacted(cut(v, LIMITS["parameter"])) for k, v in run.params.items()}
        new = [Param(k, v) for k, v in params.items() if k not in sent.params]
        self._batches(mlflow, sent, "params", new)
        tags = {allowed(k): redacted(cut(v, LIMITS["tag"])) for k, v in run.tags.items()}
        self._batches(mlflow, sent, "tags", [RunTag(k, v) for k, v in tags.items() if sent.tags.get(k) != v])
        for (name, role), path in run.inputs.items():
            if name not in sent.inputs:
                source, version = HTTPDatasetSource(f"file:{path}"), version_of(path)[: LIMITS["digest"]]
                data = MetaDataset(source, name=name, digest=version)._to_mlflow_entity()
                shown = DatasetInput(data, [InputTag("mlflow.data.context", role)])
                self._send(mlflow.log_inputs, sent.id, [shown])
        sent.params |= run.params.keys()
        sent.tags |= tags
        sent.inputs |= {name for name, _ in run.inputs}
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
        """Upload the numeric metrics of `events`."""
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
            self._send(mlflow.log_batch, sent.id, **{kind: entries[i : i + LIMITS[kind]]})

    def _send(self, call: Any, *args: Any, **kwargs: Any) -> None:
        """Call MLflow; permanently rejected data is logged and skipped."""
        from mlflow.exceptions import MlflowException

        try:
            call(*args, **kwargs)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise
            log.warning("MLflow rejected a part of %s: %s", self.run_dir, str(error).splitlines()[0])


def _stamp(path: Path) -> tuple[int, int] | None:
    """Size and mtime of a file, or None if it does not exist."""
    with contextlib.suppress(OSError):
        state = os.stat(path)
        return state.st_size, state.st_mtime_ns
