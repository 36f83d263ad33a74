"""Garbage collection of the store: removes outputs that no registered version and no living or recent run
needs.

Kept, with all their ancestors:
    champion or candidate   versions with an alias or a former champion, and all of the runs that made them
    registered              other registered versions, or of each model the `best` by a metric
    alive                   outputs linked or planned by runs of living processes, and by runs that wait for
                            people's labels
    recent                  the same of the last runs and of the runs of the last days, in which people's
                            labels count as activity; killed runs can be continued until then
Only entries written by the store are removed: outputs whose manifest matches their name, work of stages that
are not locked, and leftovers. Runs keep recipe, lineage, logs and metrics.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.components.errors import RecipeError, StoreError, nearest
from ratchet.components.labels.labels import LABELS
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store, disk_errors, read_manifest
from ratchet.tasks.labels.waiting import queue_of
from ratchet.tasks.registry.versions import Version, events, history, models
from ratchet.tasks.tracking.server import allowed

TRASH = ".trash-"  # followed by the time in nanoseconds and a number


@dataclass(frozen=True)
class Policy:
    """Retention policy. `keep_last`: number of runs; `best`: versions per model by `metric`, all if None."""

    keep_days: float = 14.0
    keep_last: int = 5
    best: int | None = None
    metric: str = ""


@dataclass(frozen=True)
class Entry:
    """An entry of the store. `size`: bytes freed by removing it (hard-linked files free nothing)."""

    path: Path
    size: int
    what: str
    made: str = ""


@dataclass(frozen=True)
class Survey:
    """Entries to remove, and numbers and bytes of entries to keep by their strongest reason."""

    go: list[Entry] = field(default_factory=list)
    stay: Counter[str] = field(default_factory=Counter)
    stay_bytes: Counter[str] = field(default_factory=Counter)

    @property
    def freed(self) -> int:
        return sum(entry.size for entry in self.go)


def survey(home: Path, policy: Policy) -> Survey:
    """Examine the store without changes. `ServiceError` if the registry is unreachable, `StoreError` if it is
    not the one that runs here used, `RecipeError` for an unknown metric.
    """
    store, found = Store(home), Survey()
    kept = needed(store, policy)
    for entry in sorted(store.root.iterdir()) if store.root.is_dir() else []:
        if entry.is_symlink() or not entry.is_dir():
            continue
        manifest = read_manifest(entry) or {}
        if re.fullmatch(r"\.trash-[\d-]+|\.replaced-.+-[0-9a-f]{16}-\d+", entry.name):
            found.go.append(Entry(entry, size(entry), "leftover"))
        elif entry.name == ".work":
            for work in sorted(entry.iterdir()):
                if work.is_dir() and work.name not in kept:
                    with _free(work) as free:
                        if free:
                            found.go.append(Entry(work, size(work), "unfinished work"))
        elif entry.name != f"{manifest.get('stage')}-{str(manifest.get('key'))[:16]}":
            continue
        elif reason := kept.get(entry.name):
            found.stay[reason] += 1
            found.stay_bytes[reason] += size(entry)
        else:
            found.go.append(Entry(entry, size(entry), manifest["kind"], manifest["made"]))
    return found


def sweep(home: Path, policy: Policy) -> Survey:
    """Remove what `survey` finds. Other runs may be active: outputs are removed atomically under the store's
    lock, a stage's work only while it is not locked.
    """
    store, trash = Store(home), list[Path]()
    with disk_errors("removing from the store"):
        with store.steady(sweeping=True):
            found, gone = survey(home, policy), list[Entry]()
            prefix = f"{TRASH}{time.time_ns()}"  # process ids repeat in containers
            for entry in found.go:
                work = entry.path.parent.name == ".work"
                with _free(entry.path) if work else contextlib.nullcontext(True) as free:
                    if free:  # renamed, not moved to a new directory, which a full disk does not have
                        trash.append(entry.path.replace(store.root / f"{prefix}-{len(gone)}"))
                        gone.append(entry)
        for path in trash:
            shutil.rmtree(path, ignore_errors=True)  # another gc may remove it as a leftover
    return Survey(gone, found.stay, found.stay_bytes)


def needed(store: Store, policy: Policy) -> dict[str, str]:
    """Directory name -> reason to keep. Runs are examined before the registry, since one that ends in between
    has registered its models.
    """
    kept: dict[str, str] = {}
    runs = {path: _products(path) for path in (store.home / "runs").glob("*") if path.is_dir()}
    by_age = sorted(runs, key=_active, reverse=True)
    alive = [
        path
        for path in runs
        if RunDirectory(store.home, path.name).alive() or _state(path).get("state") == "waiting"
    ]
    since = time.time() - policy.keep_days * 86400
    recent = [path for i, path in enumerate(by_age) if i < policy.keep_last or _active(path) > since]
    versions = [v for name in models(home=store.home) for v in history(name, home=store.home) if v.path]
    # also by name, since a home may be renamed, or have another path in a container
    here = [v for v in versions if (p := Path(v.path)).parent == store.root or (store.root / p.name).is_dir()]
    if not here and any(_state(path).get("versions") for path in runs):
        raise StoreError(
            f"runs under {store.home / 'runs'} have registered models, but this registry has none of them; "
            "set MLFLOW_TRACKING_URI to the one they used"
        )
    named = [v for v in here if v.aliases or any(e["alias"] == "champion" for e in events(v))]
    makers = {v.tags.get("lineage.run") for v in named}
    made = [name for path, names in runs.items() if path.name in makers for name in names]
    registered = _best(here, policy) if policy.best is not None else here
    reasons = {
        "champion or candidate": [*(Path(v.path).name for v in named), *made],
        "registered": [Path(v.path).name for v in registered],
        "alive": [n for path in alive for n in runs[path]],
        "recent": [n for path in recent for n in runs[path]],
    }
    for reason, names in reasons.items():
        for name in names:
            _keep(store.root, name, reason, kept)
    return kept


def _best(versions: list[Version], policy: Policy) -> list[Version]:
    """The best versions of each model; all versions of a model without this metric. A metric that no version
    has is an error, so that a typo cannot empty the store.
    """
    tag = f"metric.{allowed(policy.metric)}"
    if versions and not any(tag in v.tags for v in versions):
        known = {t.removeprefix("metric.") for v in versions for t in v.tags if t.startswith("metric.")}
        raise RecipeError(
            f"no registered version has the metric {policy.metric!r}{nearest(policy.metric, known)}"
        )
    found = []
    for name in dict.fromkeys(v.name for v in versions):
        ours = [v for v in versions if v.name == name]
        ranked = sorted((v for v in ours if tag in v.tags), key=lambda v: -float(v.tags[tag]))
        found += ranked[: policy.best] if ranked else ours
    return found


def _keep(root: Path, name: str, reason: str, kept: dict[str, str]) -> None:
    """Add an output and its ancestors to `kept`, except known ones."""
    names = [name]
    while names:
        if (name := names.pop()) not in kept:
            kept[name] = reason
            parents = (read_manifest(root / name) or {"parents": []})["parents"]
            names += [path.name for key in parents for path in root.glob(f"*-{key[:16]}")]


def _products(run: Path) -> set[str]:
    """Directory names of the outputs that a run plans or links."""
    links = {os.path.basename(os.readlink(p)) for p in (run / "stages").glob("[!.]*") if p.is_symlink()}
    return links | {f"{stage}-{key[:16]}" for stage, key in _state(run).get("stages", {}).items()}


def _state(run: Path) -> dict:
    file = run / "run.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _active(run: Path) -> float:
    """Time of a run's last activity, in seconds since 1970."""
    queues = (queue_of(run.parent.parent, *stage) for stage in _state(run).get("stages", {}).items())
    files = (run, run / "run.json", run / "stages", run / "alive", *(queue / LABELS for queue in queues))
    return max(p.stat().st_mtime for p in files if p.exists())


@contextlib.contextmanager
def _free(work: Path) -> Iterator[bool]:
    """Try to lock a stage's work, without waiting."""
    with work.with_name(f"{work.name}.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


def size(path: Path) -> int:
    files = [p.lstat() for p in path.rglob("*") if not p.is_dir() or p.is_symlink()]
    return sum(f.st_size for f in files if f.st_nlink == 1)
