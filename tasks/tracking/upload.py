"""Upload of a run to MLflow, in the background while it runs and by `ratchet sync`.

The run's files are authoritative and MLflow is a copy. No state is kept between processes: MLflow is queried
for what it has, so uploads are idempotent and a new server receives everything. Points are identified by
(run, key, step); the first value is kept if a resumed stage repeats a step.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from filelock import FileLock, Timeout

from ratchet.components.errors import BusyError, redacted
from ratchet.tasks.data.versioning import dvc_md5
from ratchet.tasks.tracking.mlflow_runs import ROOT, MlflowRun, mlflow_runs
from ratchet.tasks.tracking.server import (
    TRAINING,
    allowed,
    client,
    cut,
    experiment_id,
    service,
    tracking_uri,
)

log = logging.getLogger("ratchet.tracking")
KEY = "ratchet.key"  # tag: identity of a run
COMPLETE = "ratchet.complete"  # tag: end time up to which a finished run is fully uploaded
LIMITS = {"parameter": 6000, "tag": 8000, "digest": 36}  # MLflow's, in characters
data_digest = functools.cache(dvc_md5)  # artifacts are immutable and shared by stages


def sync(run_dir: Path, home: Path) -> int:
    """Upload everything that MLflow lacks; returns the number of points. `RecipeError` if it is not a run
    directory, `ServiceError` if the server is unreachable, `BusyError` if another process is uploading.
    """
    with service(f"sending {run_dir} to MLflow", home), uploading(run_dir.resolve(), home) as uploader:
        return uploader.upload()


@contextlib.contextmanager
def uploading(run_dir: Path, home: Path) -> Iterator[Uploader]:
    """The only uploader of a run, until the end of the context."""
    try:
        lock = FileLock(run_dir / "tracking" / "lock").acquire(timeout=0)
    except Timeout:
        raise BusyError(f"{run_dir} is being uploaded by another process; wait until it ends") from None
    with lock:
        yield Uploader(run_dir, home)


class BackgroundUploader:
    """Thread that uploads `run_dir` every `every_seconds` between `start` and `close`. Only `close` and
    methods with `wait_seconds` block. An unreachable server does not stop the run; the rest is uploaded later
    or by `ratchet sync`.
    """

    def __init__(self, run_dir: Path, home: Path, *, every_seconds: float = 5.0) -> None:
        self.run_dir, self.home, self.every_seconds = run_dir.resolve(), home, every_seconds
        self.id: str | None = None  # of the MLflow run, once everything was uploaded
        self.last_error: str | None = None  # why the last upload failed
        self.uploader: Uploader | None = None
        self._failures, self._stop, self._wake = 0, threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._upload_loop, name="mlflow-upload", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, wait_seconds: float = 30.0) -> bool:
        """Wait briefly for a final upload. Logs a warning and returns False if not everything is uploaded."""
        self._stop.set()
        self._wake.set()
        self._thread.join(wait_seconds)
        if self._thread.is_alive():
            silent = f"{tracking_uri(self.home)} has not answered for {wait_seconds:g} s"
            self.last_error = self.last_error or redacted(silent)
        if self.last_error:
            rest = f"`ratchet sync` uploads the rest of {self.run_dir}"
            log.warning("MLflow is not up to date: %s. Nothing is lost; %s", self.last_error, rest)
        return self.last_error is None

    def run_id(self, wait_seconds: float = 0.0) -> str | None:
        """MLflow's id of the run once uploaded; None after `wait_seconds` or three failures."""
        end, enough = time.monotonic() + wait_seconds, self._failures + 3
        while not self.id and self._failures < enough and (left := end - time.monotonic()) > 0:
            self._wake.set()
            time.sleep(min(1.0, left))
        return self.id

    def artifact_url(self, artifact: str, wait_seconds: float = 0.0) -> str | None:
        """URL of an artifact in the MLflow UI; None without an HTTP server (the address of `ratchet ui`
        changes) or if the run is not uploaded after `wait_seconds`.
        """
        server = urlsplit(tracking_uri(self.home))
        if server.scheme not in ("http", "https") or not self.run_id(wait_seconds):
            return None
        # without a password
        address = f"{server.scheme}://{server.netloc.rpartition('@')[2]}{server.path.rstrip('/')}"
        inside = self.uploader and self.uploader.link(artifact)
        return inside and f"{address}/{inside}"

    def _upload_loop(self) -> None:
        """Upload periodically, with backoff after failures; one last attempt on stop."""
        pause = self.every_seconds
        with contextlib.ExitStack() as stack:
            while True:
                last = self._stop.is_set()
                try:
                    if self.uploader is None:
                        self.uploader = stack.enter_context(uploading(self.run_dir, self.home))
                    self.uploader.upload()
                    if root := self.uploader.sent.get(ROOT):
                        self.id = root.id
                    self.last_error, pause = None, self.every_seconds
                except Exception as error:  # MLflow errors must not stop the run
                    text = (str(error).splitlines() or [""])[0][:300]
                    self.last_error = redacted(f"{type(error).__name__}: {text}")
                    self._failures, pause = self._failures + 1, min(60.0, pause * 2)
                if last:
                    return
                self._wake.wait(pause)
                self._wake.clear()


@dataclass
class Sent:
    """What one MLflow run has: its points, and its content and the sizes of its files at the last upload."""

    id: str
    points: set[tuple[str, int]]
    run: MlflowRun | None = None
    sizes: dict[Path, int] = field(default_factory=dict)


class Uploader:
    """Incremental uploader of a run."""

    def __init__(self, run_dir: Path, home: Path) -> None:
        self.run_dir, self.home, self.mlflow = run_dir, home, client(home)
        self.sent, self.experiment = dict[str, Sent](), ""

    def link(self, artifact: str) -> str | None:
        """Relative link to an artifact of the run in the MLflow UI."""
        run = self.sent.get(ROOT)
        return run and f"#/experiments/{self.experiment}/runs/{run.id}/artifacts/{quote(artifact)}?{TRAINING}"

    def upload(self) -> int:
        """Upload new data and return the number of points. Raises MLflow's errors if it is unreachable."""
        runs, count = mlflow_runs(self.run_dir, self.link("report.html")), 0
        ended, end = runs[ROOT].status != "RUNNING", str(runs[ROOT].end)
        try:
            self.experiment = self.experiment or experiment_id(self.mlflow, self.home)
            if ended and self._search(ROOT, f" and tags.`{COMPLETE}` = '{end}'"):
                return 0
            for key, run in runs.items():
                if key not in self.sent:
                    self.sent[key] = self._found(key, run)
                count += self._update(self.sent[key], run)
            if ended:
                self.mlflow.set_tag(self.sent[ROOT].id, COMPLETE, end)
        except BaseException:
            self.sent, self.experiment = {}, ""  # the server may have been replaced
            raise
        return count

    def _search(self, key: str, condition: str = "") -> Any:
        named = f"tags.`{KEY}` = '{self._mark(key)}'"
        return self.mlflow.search_runs([self.experiment], named + condition, max_results=1)

    def _mark(self, key: str) -> str:
        return f"{self.run_dir}#{key}".replace("'", "")

    def _found(self, key: str, run: MlflowRun) -> Sent:
        """The MLflow run, created if missing."""
        if found := self._search(key):
            id, history = found[0].info.run_id, self.mlflow.get_metric_history
            return Sent(id, {(name, m.step) for name in found[0].data.metrics for m in history(id, name)})
        tags = {KEY: self._mark(key), "mlflow.source.name": "ratchet"}
        if run.parent is not None:
            tags["mlflow.parentRunId"] = self.sent[run.parent].id
        made = self.mlflow.create_run(self.experiment, int(run.start * 1000), tags, run.name)
        return Sent(made.info.run_id, set())

    def _update(self, sent: Sent, run: MlflowRun) -> int:
        """Upload what the MLflow run lacks; it is queried only if more than its files has changed."""
        events = [event for path in run.files for event in _appended(path, sent.sizes)]
        if run == sent.run:
            return self._points(sent, events)
        from mlflow.data.http_dataset_source import HTTPDatasetSource
        from mlflow.data.meta_dataset import MetaDataset
        from mlflow.entities import DatasetInput, InputTag, Param, RunTag

        there = self.mlflow.get_run(sent.id)
        if run.status == "RUNNING" != there.info.status:
            self.mlflow.update_run(sent.id, status="RUNNING")
        params = {k: redacted(cut(v, LIMITS["parameter"])) for k, v in run.params.items()}
        new = [Param(k, v) for k, v in params.items() if k not in there.data.params]
        self._send(self.mlflow.log_batch, sent.id, params=new)
        tags = {allowed(k): redacted(cut(v, LIMITS["tag"])) for k, v in run.tags.items()}
        changed = [RunTag(k, v) for k, v in tags.items() if there.data.tags.get(k) != v]
        self._send(self.mlflow.log_batch, sent.id, tags=changed)
        inputs = {one.dataset.name for one in (there.inputs.dataset_inputs if there.inputs else ())}
        for name, (role, path) in run.inputs.items():
            if name not in inputs:
                source, version = HTTPDatasetSource(f"file:{path}"), data_digest(path)[: LIMITS["digest"]]
                data = MetaDataset(source, name=name, digest=version)._to_mlflow_entity()
                shown = DatasetInput(data, [InputTag("mlflow.data.context", role)])
                self._send(self.mlflow.log_inputs, sent.id, [shown])
        files = self.mlflow.list_artifacts(sent.id) if run.artifacts else ()
        sizes = {file.path: file.file_size for file in files}
        for path in run.artifacts:
            if sizes.get(path.name) != path.stat().st_size:
                self._send(self.mlflow.log_artifact, sent.id, str(path))
        count = self._points(sent, [*run.points, *events])
        if run.status not in ("RUNNING", there.info.status):
            self.mlflow.set_terminated(sent.id, run.status, end_time=int(run.end * 1000))
        sent.run = run
        return count

    def _points(self, sent: Sent, events: Sequence[Mapping[str, Any]]) -> int:
        """Upload the numeric metrics of `events`."""
        from mlflow.entities import Metric

        new: dict[tuple[str, int], Metric] = {}
        for event in events:
            for name, value in event.get("metrics", {}).items():
                at = (allowed(name), int(event.get("step", 0)))
                if isinstance(value, (int, float)) and at not in sent.points:
                    new.setdefault(at, Metric(at[0], float(value), int(event["time"] * 1000), at[1]))
        self._send(self.mlflow.log_batch, sent.id, metrics=list(new.values()))
        sent.points |= new.keys()
        return len(new)

    def _send(self, call: Any, *args: Any, **kwargs: Any) -> None:
        """Call MLflow; permanently rejected data is logged and skipped."""
        from mlflow.exceptions import MlflowException

        try:
            call(*args, **kwargs)
        except MlflowException as error:
            if error.error_code not in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
                raise
            log.warning("MLflow rejected a part of %s: %s", self.run_dir, str(error).splitlines()[0])


def _appended(file: Path, sizes: dict[Path, int]) -> list[dict[str, Any]]:
    """The lines of a file of metrics, if its size is not that in `sizes`, which is updated."""
    with contextlib.suppress(FileNotFoundError):  # not begun, or moved since its stage has ended
        if sizes.get(file) != (size := file.stat().st_size):
            sizes[file] = size
            return lines(file.read_bytes())
    return []


def lines(data: bytes) -> list[dict[str, Any]]:
    """Parse JSON lines, skipping incomplete ones."""
    found = []
    for line in data.splitlines():
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found
