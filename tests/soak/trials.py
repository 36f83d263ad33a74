"""Run a small pipeline again and again, strike it at a random moment, resume it, and compare it with an
undisturbed run.

After each strike: a run that failed by itself says why in one sentence; nothing of it lives on; the resumed
run names what it found damaged and ends with the same weights, bit for bit; every product is what its
manifest says; no step of any metric is missing, neither in the files nor, after `ratchet sync`, in MLflow.
One that does not is a complaint, and the trial is not survived.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ratchet.components.errors import StageError, StoreError
from ratchet.components.storage.store import Store, read_manifest
from ratchet.components.types import Artifact
from tests.soak.faults import FAULTS, MARK, Fault, Trial, prepared, wait_for_none

Command = Callable[[Path], Sequence[str]]
# times the undisturbed run's duration until a run counts as hanging, on a machine that may be busy
PATIENCE = 20.0
SENTENCE = re.compile(r"^error: \S.*$", re.MULTILINE)
DAMAGE = re.compile(
    r"(?:the checkpoint at )?/\S+ is damaged: .*"
)  # what a run says of bytes that it makes again


@dataclass(frozen=True)
class Truth:
    """What a finished home holds: digests of weights by stage and file, steps of metrics by stage, points in
    MLflow.
    """

    weights: Mapping[str, str]
    steps: frozenset[tuple[str, int, str]]
    points: frozenset[tuple[str, str, int]]


@dataclass
class Tally:
    """Per kind of fault: number of trials, survived trials, complaints of the others, and error messages
    seen.
    """

    tried: int = 0
    survived: int = 0
    complaints: list[str] = field(default_factory=list)
    sentences: set[str] = field(default_factory=set)


@dataclass
class Soak:
    """`run` and `sync` make the command for a home; `base` is a home whose products the trials need not make
    again.
    """

    folder: Path
    run: Command
    sync: Command | None
    base: Path
    seed: int = 0
    servers: Any = None
    env: Mapping[str, str] = field(default_factory=dict)
    truth: Truth | None = None
    seconds: float = 0.0

    def undisturbed(self) -> Truth:
        """The run every trial is compared with; its duration is what random moments are drawn from."""
        trial = self.trial("undisturbed", random.Random(self.seed))
        begun = time.monotonic()
        code, output = self.go(trial, self.run, limit=3600.0)
        self.seconds = time.monotonic() - begun
        if code or wait_for_none(trial):
            raise StageError(f"the undisturbed run failed, there is nothing to compare with: {output[-600:]}")
        self.truth = self.settle(trial)
        return self.truth

    def trials(self, names: Sequence[str], count: int) -> Iterator[tuple[str, list[str], Tally]]:
        """`count` trials of each fault in turn; yields the fault, the trial's complaints and the fault's
        tally so far.
        """
        if self.truth is None:
            self.undisturbed()
        tallies = {name: Tally() for name in names}
        for number in range(count):
            for name in names:
                if FAULTS[name].servers and self.servers is None:
                    continue
                tally = tallies[name]
                for home, latest in ((f"{name}-{number}", 0.95), (f"{name}-{number}-again", 0.0)):
                    trial = self.trial(home, random.Random(f"{self.seed} {name} {number}"))
                    with prepared(FAULTS[name], trial):
                        complaints = self.one(trial, FAULTS[name], tally, latest)
                    if not complaints:
                        shutil.rmtree(trial.home)
                    if complaints or trial.notes.get("struck"):
                        # else it was over before its moment came: again, and struck as soon as it can be
                        break
                if trial.notes.get("struck"):
                    tally.tried += 1
                    tally.survived += not complaints
                    tally.complaints += [f"trial {number}, {trial.notes['struck']}: {c}" for c in complaints]
                yield name, complaints, tally

    def one(self, trial: Trial, fault: Fault, tally: Tally, latest: float) -> list[str]:
        """Strike before `latest` of the run is over, mend, resume, compare: what there is to complain of."""
        complaints: list[str] = []
        limit = PATIENCE * self.seconds + 60
        with self.started(trial, self.run) as log:
            assert trial.process is not None
            moment = time.monotonic() + trial.random.uniform(min(0.05, latest), latest) * self.seconds
            while trial.process.poll() is None and not trial.notes.get("struck"):
                if time.monotonic() >= moment:
                    trial.notes["struck"] = fault.strike(trial)
                time.sleep(0.02)
            with contextlib.suppress(subprocess.TimeoutExpired):
                trial.process.wait(limit)
            if trial.process.poll() is None:
                complaints.append(f"the run hung for {limit:.0f} s")
        complaints += [f"process {one} was left behind" for one in wait_for_none(trial)]
        complaints += _unexplained(
            trial.process.returncode, log, fault.kills and bool(trial.notes.get("struck")), tally
        )
        fault.mend(trial)
        code, output = self.go(trial, self.run, limit=limit)
        complaints += [f"process {one} was left behind by the resumed run" for one in wait_for_none(trial)]
        if code:
            return [*complaints, f"the run could not be resumed: {output[-400:]}"]
        tally.sentences.update(found := DAMAGE.findall(output))
        if "damaged" in trial.notes and not found:
            complaints.append(f"nothing was said of the damage to {trial.notes['damaged']}")
        assert self.truth is not None
        try:
            return complaints + _differences(self.truth, self.settle(trial))
        except (
            StoreError,
            StageError,
        ) as error:  # a product is not what its manifest says, a step stands twice
            return [*complaints, str(error)]

    # --- one run
    # ----------------------------------------------------------------------------------------------------

    def trial(self, name: str, chance: random.Random) -> Trial:
        """A fresh home with the base's artifacts."""
        home = self.folder / name
        shutil.rmtree(home, ignore_errors=True)
        shutil.copytree(self.base, home, symlinks=True)
        return Trial(home.resolve(), f"{os.getpid()}-{name}", chance, servers=self.servers)

    @contextlib.contextmanager
    def started(self, trial: Trial, command: Command) -> Iterator[Path]:
        """The command as a process of its own session, its output in a file beside the home; killed at the
        end.
        """
        log = self.folder / f"{trial.home.name}.log"
        served = self.servers.env() if self.servers else {}
        with log.open("wb") as file:
            trial.process = subprocess.Popen(
                command(trial.home),
                stdout=file,
                stderr=file,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **self.env, **served, MARK: trial.mark},
            )
            try:
                yield log
            finally:
                trial.process.kill()  # nothing, where it has ended
                trial.process.wait()

    def go(self, trial: Trial, command: Command, *, limit: float) -> tuple[int, str]:
        """Run to the end: exit code and output."""
        with self.started(trial, command) as log:
            assert trial.process is not None
            with contextlib.suppress(subprocess.TimeoutExpired):
                trial.process.wait(limit)
        return trial.process.returncode, log.read_text(errors="replace")

    def settle(self, trial: Trial) -> Truth:
        """Ship what MLflow does not have yet, then look."""
        if self.sync:
            code, output = self.go(trial, self.sync, limit=PATIENCE * self.seconds + 120)
            if code:
                raise StageError(f"`ratchet sync` failed: {output[-400:]}")
        database = self.servers.database if self.servers else trial.home / "mlflow.db"
        return Truth(*_look(trial.home), points=_points(database, trial.home) if self.sync else frozenset())


def _unexplained(code: int, log: Path, killed: bool, tally: Tally) -> list[str]:
    """A run that ended badly by itself says why, in one line and without a traceback."""
    if not code or killed:
        return []
    text = log.read_text(errors="replace")
    sentences = SENTENCE.findall(text)
    tally.sentences.update(sentences)
    if len(sentences) == 1 and "Traceback (most recent call last)" not in text:
        return []
    return [f"it ended with {code} and {len(sentences)} sentences why: {text[-600:]}"]


def _look(home: Path) -> tuple[dict[str, str], frozenset[tuple[str, int, str]]]:
    """Digests of the weights, and the steps of the metrics, of the products that the run links to; each is
    verified.
    """
    store, weights, steps = Store(home), {}, set()
    for link in sorted((home / "runs").glob("*/stages/*")):
        manifest = read_manifest(link.resolve())
        if manifest is None:
            raise StoreError(f"{link} leads to no finished product")
        store.verify(Artifact(manifest["kind"], link.resolve(), manifest["key"]))
        if manifest["kind"] == "weights":
            weights |= {
                f"{link.name}/{file}": e["sha256"]
                for file, e in manifest["files"].items()
                if file.endswith(".safetensors")
            }
        if (metrics := link.resolve() / "metrics.jsonl").exists():
            try:
                lines = [
                    (int(line["step"]), sorted(line["metrics"]))
                    for line in map(json.loads, metrics.read_text().splitlines())
                ]
            except (ValueError, KeyError, TypeError) as error:
                raise StoreError(
                    f"{metrics}: a line is not a step and its metrics ({type(error).__name__}: {error})"
                ) from None
            if [step for step, _ in lines] != sorted({step for step, _ in lines}):
                raise StoreError(f"{metrics}: a step stands twice or out of order")
            steps |= {(link.name, step, key) for step, keys in lines for key in keys}
    return weights, frozenset(steps)


def _points(database: Path, home: Path) -> frozenset[tuple[str, str, int]]:
    """(run, metric, step) of all points MLflow has of this home, read from its own tables. A step of the
    system's metrics is a second of the run, which no other run has.
    """
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=30)) as base:
        rows = base.execute(
            "select r.name, m.key, m.step from metrics m join runs r using (run_uuid) join tags t using "
            "(run_uuid) "
            "where t.key = 'ratchet.key' and t.value like ? and m.key not like 'system/%'",
            (f"{home}/%",),
        ).fetchall()
    return frozenset(rows)


def _differences(truth: Truth, found: Truth) -> list[str]:
    other = sorted(
        k for k in truth.weights.keys() | found.weights.keys() if truth.weights.get(k) != found.weights.get(k)
    )
    lost, unshipped = truth.steps - found.steps, truth.points - found.points
    return (
        ([f"weights differ: {', '.join(other)}"] if other else [])
        + ([f"{len(lost)} metric values are lost, the first {min(lost)}"] if lost else [])
        + ([f"{len(unshipped)} points are not in MLflow, the first {min(unshipped)}"] if unshipped else [])
    )
