"""Who watches a pipeline: the MLflow mirror, the Prefect page and the alarm. Each may fail without harm."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import redacted
from ratchet.components.plan import Stage
from ratchet.components.recipe import dump
from ratchet.components.types import Artifact
from ratchet.tasks.alerts import Alarm
from ratchet.tasks.journal import ROOT
from ratchet.tasks.outcome import markdown, outcome, tracked
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.prefect_page import PrefectPage
from ratchet.tasks.provenance import packages, revision
from ratchet.tasks.spending import spending
from ratchet.tasks.system import sampled, samples_of
from ratchet.tasks.tracking import Tracking
from ratchet.tasks.versioning import digest

log = logging.getLogger("ratchet.watchers")
version_of = functools.cache(digest)  # a product does not change, and many stages read the same
SHOWN_FILES = ("report.html", "certificate.json", "summary.json", "validation.json", "results.json")


@contextlib.contextmanager
def watched(pipeline: Pipeline, display: Any = None) -> Iterator[MlflowMirror]:
    """Attach the watchers, open the run, and close it with what became of it."""
    mirror = MlflowMirror(pipeline)
    page = PrefectPage(mirror.tracking, pipeline.recipe.paper)
    pipeline.watchers[:] = [w for w in (display, mirror, page, Alarm(pipeline)) if w is not None]
    pipeline.begin()
    mirror.begin()
    _told(page.begin, pipeline.run.name)
    samples = samples_of(pipeline.run.path)
    mirror.tracking.follow(samples)
    try:
        with sampled(samples):
            yield mirror
    except BaseException as error:
        state = "failed" if isinstance(error, Exception) else "stopped"
        pipeline.end(state, error=f"{type(error).__name__}: {error}", failed_stage=mirror.failing)
        mirror.describe()
        if state == "failed":
            _told(page.summary, pipeline)
        mirror.end("FAILED" if state == "failed" else "KILLED")
        raise
    spent = spending(pipeline)
    mirror.tracking.log({f"spent/{name}": value for name, value in spent.items()})
    pipeline.end("finished", spent=spent)
    mirror.describe()
    _told(page.summary, pipeline)
    if not mirror.end("FINISHED") and display is not None:
        display.console.print(f"MLflow is behind, nothing is lost: {mirror.tracking.problem}. `ratchet sync` sends the rest.")


def _told(method: Callable[..., None], *args: Any) -> None:
    """Call a method of a page, whose server may be away: the work goes on."""
    try:
        method(*args)
    except Exception as error:
        log.warning("%s", redacted(f"the Prefect page was not told: {type(error).__name__}: {error}"))


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
                                "revision": revision(), "packages": json.dumps(packages()),
                                "mlflow.note.content": f"**{self.pipeline.run.name}**: {self.pipeline.recipe.about}"})
        self.tracking.log_artifacts([self.pipeline.run.path / "recipe.yaml"])

    def describe(self) -> None:
        """The description at the top of the run's page: what it is, its stages and its verdict."""
        recipe, found = self.pipeline.recipe, outcome(self.pipeline.run.path)
        report = self.tracking.link("report.html") if found["report"] else None
        self.tracking.tag({"mlflow.note.content": markdown(found, recipe.about, report)})

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
        numbers = tracked(stage.does, artifact.meta)
        if numbers:
            self.tracking.log(numbers, stage.round or 0, key)
        self.tracking.tag({f"{stage.does}.key": artifact.digest, f"{stage.does}.path": str(artifact.path),
                           "reused": str(reused)}, key)
        shown = [artifact.path / name for name in SHOWN_FILES if (artifact.path / name).exists()]
        shown += sorted((artifact.path / "plots").glob("*.png")) if (artifact.path / "plots").is_dir() else []
        self.tracking.log_artifacts(shown, key)
        if stage.does == "evaluate":
            self.tracking.log_artifacts(shown)
            self.tracking.log({name: value for name, value in numbers.items() if "/" not in name})
        if not stage.round or stage.name == [s.name for s in self.pipeline.stages.values() if s.round == stage.round][-1]:
            self._close(key, "FINISHED")

    def failed(self, stage: Stage, error: BaseException) -> None:
        self.failing = stage.name
        self.tracking.tag({"error": f"{type(error).__name__}: {error}"}, self.key(stage))
        self._close(self.key(stage), "FAILED" if isinstance(error, Exception) else "KILLED")
