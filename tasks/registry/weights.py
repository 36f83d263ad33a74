"""Lookup of model directories by name: a directory, a run's checkpoints, or a registered version."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from pathlib import Path

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.storage.store import read_manifest
from ratchet.tasks.registry.lineage import find
from ratchet.tasks.registry.registry import Version, models
from ratchet.tasks.registry.registry_sources import download

ROLES = {
    "base": "base",
    "initial": "SFT",
    "policy": "final",
}  # input of the evaluation -> title in the report
TRAINED = ("sft", "optimise", "improve")  # stages that train a policy


def weights_of(name: str, home: Path) -> dict[str, Path]:
    """Title -> model directory. A run has base, SFT and final model; a model directory, a stage's directory
    and a registered `name`, `name:version` or `name@alias` have one. `RecipeError` for an unknown name or a
    directory without a model; `StoreError` if the files of a version are missing.
    """
    for run in (home / "runs" / name, Path(name)):
        if (run / "run.json").is_file():
            return _of_run(run)
    path = Path(name)
    if path.is_dir():
        return {path.name or str(path.resolve().name): _model(path)}
    known = models(home=home)
    if name.partition("@")[0].partition(":")[0] not in known:
        runs = [p.parent.name for p in (home / "runs").glob("*/run.json")]
        raise RecipeError(
            f"{name!r} is neither a model directory, nor a run under {home / 'runs'}, nor a registered model"
            f"{nearest(name, [*runs, *known])}"
        )
    version = find(name, home)
    return {f"{version.name}:{version.version}": _of_version(version, home)}


def _model(path: Path) -> Path:
    """The directory if it contains a language model."""
    if (path / "config.json").is_file():
        kinds = json.loads((path / "config.json").read_text()).get("architectures") or []
        if (path / "reward_head.st").is_file() or any("Classification" in kind for kind in kinds):
            raise RecipeError(f"{path} is a reward model ({', '.join(kinds)}): expected a language model")
        return path
    kind = (read_manifest(path) or {}).get("kind")
    raise RecipeError(
        f"{path} contains no model (config.json expected)" + (f": its stage made {kind}" if kind else "")
    )


def _of_run(run: Path) -> dict[str, Path]:
    """Models of a run's evaluation, by the report's titles; before it: base, SFT, newest checkpoint."""
    stages = run / "stages"
    evaluated = (read_manifest(stages / "evaluate") or {}).get("made_with", {}).get("inputs", {})
    if evaluated:
        found = {title: stages / evaluated[role] for role, title in ROLES.items() if role in evaluated}
    else:
        made = sorted(
            (manifest["made"], link)
            for link in stages.glob("[!.]*")
            if (manifest := read_manifest(link)) and manifest.get("made_with", {}).get("does") in TRAINED
        )
        found = {
            "base": stages / "model_policy",
            "SFT": stages / "sft",
            **{link.name: link for _, link in made[-1:]},
        }
    found = {title: path.resolve() for title, path in found.items() if (path / "config.json").is_file()}
    for title in ("SFT", "final"):  # without SFT, this title duplicates the base or the final model
        if list(found.values()).count(found.get(title)) > 1:
            del found[title]
    if not found:
        raise RecipeError(f"run {run.name} has no model yet; `ratchet show {run.name}` lists its stages")
    return {title: _model(path) for title, path in found.items()}


def _of_version(version: Version, home: Path) -> Path:
    """Files of a registered version: in the store, in a local registry, or downloaded."""
    if (Path(version.path) / "config.json").is_file():
        return _model(Path(version.path))
    folder = tempfile.mkdtemp(prefix="ratchet-model-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return _model(download(version, home, Path(folder)))
