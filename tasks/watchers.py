"""Who watches a pipeline: the MLflow mirror, the Prefect page and the alarm. Each may fail without harm."""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from components.errors import redacted
from components.plan import Stage
from components.recipe import dump
from components.types import Artifact
from tasks.alerts import Alarm
from tasks.journal import ROOT
from tasks.pipeline import Pipeline
from tasks.provenance import packages, revision
from tasks.spending import spending
from tasks.system import sampled, samples_of
from tasks.tracking import Tracking
from tasks.versioning import digest

version_of = functools.cache(digest)  # a product does not change, and many stages read the same
AWAY_SECONDS = 300.0
"""How long a Prefect server that did not answer is left alone: its client tries for more than a minute at every call, and a run has dozens."""
SHOWN_FILES = ("report.html", "certificate.json", "summary.json", "validation.json", "results.json")


@contextlib.contextmanager
def watched(pipeline: Pipeline, display: Any = None) -> Iterator[MlflowMirror]:
    """Attach the watchers, open the run, and close it with what became of it."""
    mirror = MlflowMirror(pipeline)
    pipeline.watchers[:] = [w for w in (display, mirror, PrefectPage(mirror.tracking, pipeline.recipe.paper), Alarm(pipeline)) if w is not None]
    pipeline.begin()
    mirror.begin()
    samples = samples_of(pipeline.run.path)
    mirror.tracking.follow(samples)
    try:
        with sampled(samples):
            yield mirror
    except BaseException as error:
        state = "failed" if isinstance(error, Exception) else "stopped"
        pipeline.end(state, error=f"{type(error).__name__}: {error}", failed_stage=mirror.failing)
        mirror.end("FAILED" if state == "failed" else "KILLED")
        raise
    spent = spending(pipeline)
    mirror.tracking.log({f"spent.{name}": value for name, value in spent.items()})
    pipeline.end("finished", spent=spent)
    if not mirror.end("FINISHED") and display is not None:
        display.console.print(f"MLflow is behind, nothing is lost: {mirror.tracking.problem}. `ratchet sync` sends the rest.")


class MlflowMirror:
    """One run a pipeline, a child a stage, a grandchild a round."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self.tracking = Tracking(pipeline.store.home)
        self.keys: dict[str, str] = {}
        self.open: list[str] = []  # keys that no end was told of
        self.read: set[tuple[str, str]] = set()  # what stands among a run's inputs already: product, run
        self.failing: str | None = None  # the stage that failed last, unless its second try made it

    def begin(self) -> None:
        recipe = yaml.safe_load(dump(self.pipeline.recipe, self.pipeline.profile))
        self.tracking.open_run(self.pipeline.run.path, self.pipeline.run.name, recipe,
                               {"recipe": self.pipeline.recipe.name, "paper": self.pipeline.recipe.paper,
                                "revision": revision(), "packages": json.dumps(packages())})
        self.tracking.log_artifacts([self.pipeline.run.path / "recipe.yaml"])

    def end(self, status: str) -> bool:
        for key in list(self.open):
            self._close(key, status)
        return self.tracking.close(status)

    def _open(self, name: str, **options: Any) -> str:
        key = self.tracking.open_stage(name, **options)
        self.open.append(key)
        return key

    def _close(self, key: str, status: str) -> None:
        self.tracking.close_stage(key, status)
        if key in self.open:  # a stage that failed once is closed again after its second try
            self.open.remove(key)

    def key(self, stage: Stage) -> str:
        name = f"online/round-{stage.round}" if stage.round else stage.name
        if name not in self.keys:
            if stage.round:
                if "online" not in self.keys:
                    self.keys["online"] = self._open("online")
                self.keys[name] = self._open(f"round-{stage.round}", parent="online", tags={"iteration": stage.round})
            else:
                self.keys[name] = self._open(stage.name, tags={"does": stage.does, "key": stage.key})
        for role, parent in stage.inputs.items():  # the stages of a round share a run: each adds what it reads
            self._input(role, parent, self.keys[name])
        return self.keys[name]

    def _input(self, role: str, parent: str, key: str) -> None:
        new = [run for run in (key, ROOT) if (parent, run) not in self.read]
        if new and self.pipeline.stages[parent].kind in ("data", "groups"):
            artifact = self.pipeline.artifact(parent)
            version = version_of(artifact.path)
            for run in new:
                self.tracking.log_input(parent, artifact.path, version, role, run)
        self.read |= {(parent, run) for run in new}

    def started(self, stage: Stage, metrics: Path) -> None:
        self.tracking.follow(metrics, self.key(stage))

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        pass  # the mirror follows the metrics file by itself

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        key, self.failing = self.key(stage), None
        if (artifact.path / "metrics.jsonl").exists():
            self.tracking.follow(artifact.path / "metrics.jsonl", key)
        if (samples := samples_of(self.pipeline.run.path, stage.name)).exists():
            self.tracking.follow(samples, key)
        numbers = {f"{stage.does}.{name}": value for name, value in numbers_of(artifact.meta).items()}
        if numbers:
            self.tracking.log(numbers, stage.round or 0, key)
        self.tracking.tag({f"{stage.does}.key": artifact.digest, f"{stage.does}.path": str(artifact.path),
                           "reused": str(reused)}, key)
        shown = [artifact.path / name for name in SHOWN_FILES if (artifact.path / name).exists()]
        shown += sorted((artifact.path / "plots").glob("*.png")) if (artifact.path / "plots").is_dir() else []
        self.tracking.log_artifacts(shown, key)
        if stage.does == "evaluate":
            self.tracking.log_artifacts(shown)
            self.tracking.log(numbers)
        if not stage.round or stage.name == [s.name for s in self.pipeline.stages.values() if s.round == stage.round][-1]:
            self._close(key, "FINISHED")

    def failed(self, stage: Stage, error: BaseException) -> None:
        self.failing = stage.name
        self.tracking.tag({"error": f"{type(error).__name__}: {error}"}, self.key(stage))
        self._close(self.key(stage), "FAILED" if isinstance(error, Exception) else "KILLED")


def numbers_of(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """The numbers of a nested mapping, by dotted name."""
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            found |= numbers_of(value, f"{prefix}{name}.")
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            found[f"{prefix}{name}"] = float(value)
    return found


def unless_away(method: Callable[..., None]) -> Callable[..., None]:
    """A method of a `PrefectPage` that does nothing while its server is known to be away."""

    @functools.wraps(method)
    def call(page: PrefectPage, *args: Any, **options: Any) -> None:
        from httpx import TransportError

        if time.monotonic() < page.away_until:
            return
        try:
            method(page, *args, **options)
        except TransportError:
            page.away_until = time.monotonic() + AWAY_SECONDS
            raise

    return call


class PrefectPage:
    """Artifacts on the page of the Prefect run: progress of long tasks, a table a stage, its pictures, the recipe's paper (`arXiv:…`),
    where the report is."""

    def __init__(self, tracking: Tracking | None = None, paper: str = "") -> None:
        self.tracking, self.paper = tracking, paper
        self.progress: Any = None
        self.last = 0.0
        self.away_until = 0.0

    def started(self, stage: Stage, metrics: Path) -> None:
        self.progress, self.last = None, time.monotonic()

    @unless_away
    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        if not line.get("of") or time.monotonic() - self.last < 10:
            return
        self.last = time.monotonic()
        share = 100.0 * line["step"] / line["of"]
        if self.progress is None:
            self.progress = create_progress_artifact(progress=share, key=f"progress-{_slug(stage.name)}", description=stage.title)
        else:
            update_progress_artifact(self.progress, progress=share)

    @unless_away
    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        from prefect.artifacts import create_image_artifact, create_table_artifact, update_progress_artifact

        self._paper()
        if self.progress is not None:
            update_progress_artifact(self.progress, progress=100.0)
            self.progress = None
        rows = [{"number": k, "value": f"{v:.6g}"} for k, v in numbers_of(artifact.meta).items()]
        rows = [{"number": "made", "value": "reused" if reused else f"in {seconds:.0f} s"},
                {"number": "key", "value": artifact.digest[:16]}, *rows[:60]]
        create_table_artifact(table=rows, key=f"result-{_slug(stage.name)}", description=f"{stage.title}: what it found")
        for plot in sorted((artifact.path / "plots").glob("*.png")):  # the bytes themselves: the server may not see our files
            create_image_artifact(image_url="data:image/png;base64," + base64.b64encode(plot.read_bytes()).decode(),
                                  key=f"plot-{_slug(stage.name)}-{_slug(plot.stem)}", description=f"{stage.title}: {plot.stem.replace('_', ' ')}")
        if (artifact.path / "report.html").exists():
            self._report(artifact.path / "report.html")

    def _paper(self) -> None:
        from prefect.artifacts import create_link_artifact

        if self.paper.startswith("arXiv:"):
            create_link_artifact(link=f"https://arxiv.org/abs/{self.paper.removeprefix('arXiv:')}", link_text=self.paper, key="paper",
                                 description="Where the recipe's method is from.")
            self.paper = ""  # once a run

    def _report(self, file: Path) -> None:
        """Where the report is: a browser follows no file:// from a server's page, and the file may be another machine's."""
        from prefect.artifacts import create_link_artifact, create_markdown_artifact

        where = f"`{file.resolve()}` on {platform.node()}"
        page = self.tracking.page(file.name, wait_seconds=5.0) if self.tracking else None
        if page:
            create_link_artifact(link=page, link_text="evaluation report", key="report", description=f"The file: {where}")
        else:
            create_markdown_artifact(markdown=f"Evaluation report: {where}", key="report")

    @unless_away
    def failed(self, stage: Stage, error: BaseException) -> None:
        from prefect.artifacts import create_markdown_artifact

        if isinstance(error, Exception):
            create_markdown_artifact(markdown=redacted(f"**{type(error).__name__}**\n\n{error}"), key=f"error-{_slug(stage.name)}")


def _slug(name: str) -> str:
    """A key that Prefect takes: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


