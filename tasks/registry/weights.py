"""Lookup of models and outputs of stages by the names that commands take."""

from __future__ import annotations

import atexit
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.storage.store import read_manifest
from ratchet.tasks.registry.registry_sources import bring
from ratchet.tasks.registry.versions import Version, find_version, models
from ratchet.tasks.tracking.outcome import run_at

ROLES = {"base": "base", "initial": "SFT", "policy": "final"}
"""Input of the evaluation -> title in the report."""
TRAINED = ("sft", "optimise", "improve")  # stages that train a policy
VERSION = re.compile(r"([^/@:]+)(?::(\d+)|@([^/@:]+))?")  # NAME, NAME:VERSION, NAME@ALIAS


@dataclass(frozen=True)
class Location:
    """Location of a stage's output, a model directory or a registered version. `path`: may be missing for a
    version; `run`: directory of the run that the name contains.
    """

    path: Path
    run: Path | None = None
    version: Version | None = None


def locate(name: str, home: Path) -> dict[str, Location]:
    """Title -> location. `name`: RUN (its base, SFT and final model, in this order), RUN/STAGE, a directory,
    or a registered `name`, `name:version` or `name@alias`. `RecipeError` if it is none of these.
    """
    if (run := run_at(name, home)) is not None:
        return {title: Location(path, run) for title, path in _of_run(run).items()}
    of_run, stage = (home / "runs" / name).parent, Path(name).name
    path = of_run / "stages" / stage if (of_run / "run.json").is_file() else Path(name)
    if path.is_dir():
        path = Path(os.path.abspath(path))
        of_run = path.parent.parent
        return {path.name: Location(path, of_run if (of_run / "run.json").is_file() else None)}
    if path != Path(name):
        made = [p.name for p in path.parent.glob("[!.]*")]
        raise RecipeError(f"run {of_run.name} has no stage {stage!r}{nearest(stage, made)}")
    if (match := VERSION.fullmatch(name)) and (version := find_version(*match.groups(""), home=home)):
        return {f"{version.name}:{version.version}": Location(Path(version.path), None, version)}
    known = [*(p.parent.name for p in (home / "runs").glob("*/run.json")), *models(home=home)]
    raise RecipeError(
        f"{name!r} is neither a run under {home / 'runs'}, nor RUN/STAGE, nor a directory, nor a registered "
        f"model{nearest(name, known)}; `ratchet runs` lists runs, `ratchet show` the stages of one; runs "
        "register their models at the end"
    )


def weights_of(name: str, home: Path) -> dict[str, Path]:
    """Title -> directory of each language model with that name (`locate`). `RecipeError` for an unknown
    name or a directory without a language model; `StoreError` if the files of a version are missing.
    """
    return {title: _model(_files(found, home)) for title, found in locate(name, home).items()}


def _files(found: Location, home: Path) -> Path:
    """Directory of a model: in the store, in a local registry, or downloaded."""
    if found.version is None or (found.path / "config.json").is_file():
        return found.path
    folder = Path(tempfile.mkdtemp(prefix="ratchet-model-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    bring(found.version, folder / "model", home)
    return folder / "model"


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
        newest = {link.name: link for _, link in made[-1:]}
        found = {"base": stages / "model_policy", "SFT": stages / "sft", **newest}
    found = {title: path.resolve() for title, path in found.items() if (path / "config.json").is_file()}
    for title in ("SFT", "final"):  # without SFT, this title duplicates the base or the final model
        if list(found.values()).count(found.get(title)) > 1:
            del found[title]
    if not found:
        raise RecipeError(f"run {run.name} has no model yet; `ratchet show {run.name}` lists its stages")
    return found
