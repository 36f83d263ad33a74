"""One run of a recipe: plan, store, run directory, and `make`, which executes or reuses a stage."""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from ratchet.components.data.pins import pinned
from ratchet.components.errors import ContractError, DamageError, redacted
from ratchet.components.evaluation.certificate import require
from ratchet.components.recipes.plan import Stage, plan
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.recipe import dump, load, reread
from ratchet.components.recipes.reward_models import not_required, optimised_models
from ratchet.components.recipes.schema import Recipe
from ratchet.components.stages.fetch import REGISTERED, REGISTRY
from ratchet.components.stages.run import as_request
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store, Workspace, digest
from ratchet.components.types import Artifact
from ratchet.tasks.machine.calibration import with_kv_cache_size
from ratchet.tasks.machine.provenance import machine, packages, revision
from ratchet.tasks.process.launch import launch
from ratchet.tasks.process.ranks import require_packages
from ratchet.tasks.registry.registry_sources import bring, resolved, version_of

log = logging.getLogger("ratchet.pipeline")


class Watcher(Protocol):
    """Observer of a run, such as the terminal; inherited methods do nothing. Errors do not fail the run."""

    def started(self, stage: Stage, metrics: Path) -> None:
        return

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        return

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        return

    def failed(self, stage: Stage, error: BaseException) -> None:
        return


@dataclass(frozen=True)
class Status:
    """What a run would do with one stage."""

    stage: Stage
    state: str  # "done" | "resume" | "run"
    artifact: Artifact | None


@dataclass
class Pipeline:
    recipe: Recipe
    profile: Profile
    stages: dict[str, Stage]
    store: Store
    run: RunDirectory
    watchers: list[Watcher] = field(default_factory=list)
    verified: set[str] = field(default_factory=set)  # keys of artifacts verified by this object
    damaged: set[str] = field(default_factory=set)  # keys of artifacts found damaged
    devices: tuple[str, ...] = ()  # CUDA_VISIBLE_DEVICES of stages; empty: those visible to this process
    # kind of stage -> function that runs it remotely
    remote: dict[str, Callable[[Pipeline, Stage], Artifact]] = field(default_factory=dict)
    # requests the further machines of a stage while it runs (`tasks/remote/remote_machines.py`)
    machines: Callable[[str, Stage, Path], AbstractContextManager[Callable[[], None]]] | None = None
    failing: str | None = None  # the stage that failed, unless a retry succeeded
    # registered versions that the recipe's aliases resolve to in this run
    registry: dict[str, Any] = field(default_factory=dict)
    given: str = ""  # the recipe as the caller named it: a name or a file

    @classmethod
    def open(
        cls,
        recipe: str | Path,
        *,
        home: Path,
        overrides: Sequence[str] = (),
        profile: str | None = None,
        limit: int | None = None,
    ) -> Pipeline:
        """Load, pin and plan a recipe without starting anything. `limit`: components/recipes/smoke.py."""
        loaded, chosen = load(recipe, overrides=overrides, profile=profile, limit=limit)
        loaded, registry = resolved(pinned(loaded, home), chosen, home)
        stages = plan(loaded, chosen)
        run = RunDirectory(home, f"{loaded.name}-{digest([s.key for s in stages.values()])[:8]}")
        return cls(loaded, chosen, stages, Store(home), run, registry=registry, given=str(recipe))

    @classmethod
    def again(cls, resolved: str, *, home: Path, run: str) -> Pipeline:
        """Plan a recipe written by `dump` with this checkout's code, independent of its recipes."""
        recipe, profile = reread(resolved)
        return cls(recipe, profile, plan(recipe, profile), Store(home), RunDirectory(home, run))

    def status(self) -> list[Status]:
        """State of each stage: done, to resume, or to run."""
        found = []
        for stage in self.stages.values():
            try:
                artifact = self.store.get(stage.name, stage.key)
            except DamageError:
                artifact = None
            begun = self.store.root / ".work" / f"{stage.name}-{stage.key[:16]}" / "progress"
            state = "done" if artifact else "resume" if begun.is_dir() and any(begun.iterdir()) else "run"
            found.append(Status(stage, state, artifact))
        return found

    def artifact(self, name: str) -> Artifact:
        stage = self.stages[name]
        artifact = self.store.get(name, stage.key)
        if artifact is None:
            raise ContractError(
                f"stage {name!r} has no output yet in run {self.run.name}; run the recipe first"
            )
        return artifact

    def make(self, name: str) -> Artifact:
        """Return the output of a stage: from the store if it is intact there, else by running the stage."""
        stage = self.stages[name]
        if stage.does in ("sft", "prepare_offline", "improve", "rollout"):
            self._require_certificates(name)
        artifact = self.take(stage)
        if artifact is not None:
            self._notify("finished", stage, artifact, reused=True, seconds=0.0)
            return artifact
        inputs = {k: self.artifact(v) for k, v in stage.inputs.items()}
        started = time.monotonic()
        try:
            remote = stage.does in self.remote
            artifact, ours = (self._run_remotely(stage), True) if remote else self._run_here(stage, inputs)
        except BaseException as error:
            self.failing = name
            self._notify("failed", stage, error)
            raise
        self.failing = None
        seconds = time.monotonic() - started if ours else 0.0
        self._notify("finished", stage, artifact, reused=not ours, seconds=seconds)
        return artifact

    def _require_certificates(self, before: str) -> None:
        """`ContractError` for a reward model without a passed certificate, as soon as it is known and before
        a policy is trained or sampled with it.
        """
        optimised = optimised_models(self.recipe)
        for name in list(self.stages)[: list(self.stages).index(before)]:
            stage = self.stages[name]
            artifact = self.store.get(name, stage.key) if stage.certifies in optimised else None
            if artifact is not None:
                require(artifact.meta.get("certificate"), f"the reward model {stage.certifies!r}")

    def _run_here(self, stage: Stage, inputs: Mapping[str, Artifact]) -> tuple[Artifact, bool]:
        """The artifact, and whether this process made it, not another run whose lock it awaited."""
        started = time.monotonic()
        with self.store.working(stage.name, stage.key) as work:
            if (artifact := self.take(stage)) is not None:
                return artifact, False
            self._notify("started", stage, work.metrics)
            try:
                meta = self._launch(stage, inputs, work)
            except DamageError as error:  # the progress of an earlier attempt is damaged
                log.warning(
                    "%s; its progress is kept aside, and %s restarts from the beginning", error, stage.name
                )
                work.restart()
                meta = self._launch(stage, inputs, work)
            meta["seconds"] = round(time.monotonic() - started, 1)
            made_with = {
                "does": stage.does,
                "options": stage.options,
                "inputs": dict(stage.inputs),
                "revision": revision(),
                "packages": packages(),
                "machine": machine(),
            }
            parents = [a.digest for a in inputs.values()]
            with self.store.steady():
                artifact = self.store.publish(
                    work, stage.name, stage.key, stage.kind, parents, meta, made_with
                )
                self.verified.add(artifact.digest)
                self.run.link(stage.name, artifact.path)
        return artifact, True

    def _launch(self, stage: Stage, inputs: Mapping[str, Artifact], work: Workspace) -> dict[str, Any]:
        source = str(stage.options.get("source", ""))
        if stage.does == "fetch_model" and source.startswith(REGISTRY):  # stage processes have no registry
            version = version_of(source, stage.name, self.store.home)
            bring(version, work.progress / REGISTERED, self.store.home, stage.options["sha256"])
        ticks = [_follow((work.metrics, work.steps), stage, self._notify)]
        with contextlib.ExitStack() as stack:
            if self.machines is not None:
                ticks.append(stack.enter_context(self.machines(self.run.name, stage, work.root)))
            return launch(
                as_request(stage.does, with_kv_cache_size(self, stage), inputs, work.root),
                self.run.path / "logs" / f"{stage.name}.log",
                inline=self.profile.launch == "inline",
                tick=lambda: [tick() for tick in ticks],
                devices=self.devices,
            )

    def _run_remotely(self, stage: Stage) -> Artifact:
        self._notify("started", stage, self.store.path(stage.name, stage.key) / "metrics.jsonl")
        self.remote[stage.does](self, stage)
        artifact = self.take(stage)
        assert artifact is not None, "just downloaded, and garbage collection keeps outputs of living runs"
        return artifact

    def take(self, stage: Stage) -> Artifact | None:
        """The stage's artifact if it is in the store, linked to this run so that `ratchet gc` keeps it. A
        damaged artifact counts as missing and is logged once.
        """
        self.run.hold()
        with self.store.steady():
            try:
                artifact = self.store.get(stage.name, stage.key)
                if artifact is not None and artifact.digest not in self.verified:
                    self.store.verify(artifact)
            except DamageError as error:
                if stage.key not in self.damaged:
                    log.warning("%s", error)
                    self.damaged.add(stage.key)
                return None
            if artifact is not None:
                self.verified.add(artifact.digest)
                self.run.link(stage.name, artifact.path)
            return artifact

    def begin(self) -> None:
        optional = not_required(self.recipe)
        require_packages(self.profile)
        self.run.hold()
        self.run.open(dump(self.recipe, self.profile))
        self.run.record(
            recipe=self.recipe.name,
            state="running",
            error=None,
            failed_stage=None,
            revision=revision(),
            packages=packages(),
            stages={n: s.key for n, s in self.stages.items()},
            not_required=[n for n, s in self.stages.items() if s.certifies in optional],
            started=time.time(),
            **({"registry": self.registry} if self.registry else {}),
        )

    def end(self, state: str, **more: Any) -> None:
        self.run.record(state=state, ended=time.time(), **more)

    def _notify(self, event: str, stage: Stage, *args: Any, **kwargs: Any) -> None:
        for watcher in self.watchers:
            try:
                getattr(watcher, event)(stage, *args, **kwargs)
            except Exception as error:  # errors of watchers must not stop the run
                text = f"(a watcher failed at {stage.name}: {type(error).__name__}: {error})"
                print(redacted(text), file=sys.stderr)


def _follow(files: Sequence[Path], stage: Stage, notify: Callable[..., None]) -> Callable[[], None]:
    """A function that reports the last line of the most recently changed file, at most once per second."""
    seen: tuple[int, Path] | None = None
    looked = float("-inf")

    def tick() -> None:
        nonlocal seen, looked
        if time.monotonic() - looked < 1.0:
            return
        looked = time.monotonic()
        with contextlib.suppress(FileNotFoundError, ValueError):  # no file yet, or removed by a new attempt
            newest = max((file.stat().st_mtime_ns, file) for file in files if file.exists())
            written = [] if newest == seen else newest[1].read_text().splitlines()
            seen = newest
            for text in reversed(written):
                with contextlib.suppress(json.JSONDecodeError):  # the last line may be incomplete
                    return notify("progressed", stage, json.loads(text))

    return tick
