"""Export of a model (of a run, the registry or a directory) as a Hugging Face directory with a model card."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.stages.fetch import PICKLES, RECORDS
from ratchet.components.storage.store import MANIFEST, disk_errors, file_digest, read_manifest
from ratchet.tasks.registry.lineage import of_product, resolve
from ratchet.tasks.registry.model_card import model_card
from ratchet.tasks.registry.registry import Version
from ratchet.tasks.registry.registry_sources import bring
from ratchet.tasks.registry.weights import weights_of

LEFT_OUT = (*RECORDS, "README.md", *PICKLES)  # store metadata, and the model card of the source


def locate(model: str, home: Path) -> tuple[Path | None, Mapping[str, Any], Version | None, str]:
    """(directory, or None if only the registry has it; lineage, empty if unknown; registered version; title)
    of a model. `model`: RUN/STAGE, RUN (its final model), a directory, or a registered name, name:version or
    name@alias.
    """
    run, _, stage = model.rpartition("/")
    if (home / "runs" / model / "run.json").is_file():
        run, path = model, list(weights_of(model, home).values())[-1]
        return path, of_product(path, home / "runs" / run), None, run
    path = home / "runs" / run / "stages" / stage
    if not (run and (home / "runs" / run / "run.json").is_file()):
        path = Path(model)
    elif not path.exists():
        made = ", ".join(sorted(p.name for p in path.parent.glob("[!.]*")))
        raise RecipeError(f"run {run} has no stage {stage!r}; it has {made}")
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise RecipeError(f"{path} contains no model (config.json expected)")
        of_run = path.parent.parent if path.parent.name == "stages" else None
        return (
            path.resolve(),
            of_product(path, of_run) if (path / MANIFEST).is_file() else {},
            None,
            path.resolve().name if not of_run else f"{of_run.name}/{path.name}",
        )
    made, version = resolve(model, home)
    assert version is not None, "neither a run nor a directory: a registered version"
    return None, made, version, f"{version.name}:{version.version}"


def export(model: str, out: Path, *, home: Path) -> Path:
    """Copy the model to the new directory `out`, atomically, with a model card. `RecipeError` for an
    unknown model or a non-empty `out`, `StoreError` if its files are missing or damaged.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and is not an empty directory; name a new one")
    place, made, version, name = locate(model, home)
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        disk_errors(f"exporting {model}"),
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside,
    ):
        if place is None:
            assert version is not None
            place = Path(beside) / "registered"
            bring(f"registry:{version.name}/{version.version}", version.tags.get("weights"), place, home)
        whole, written = Path(beside) / "model", (read_manifest(place) or {"files": {}})["files"]
        shutil.copytree(place, whole, ignore=shutil.ignore_patterns(*LEFT_OUT))
        if odd := [
            name
            for name, entry in written.items()
            if (whole / name).is_file() and file_digest(whole / name) != entry["sha256"]
        ]:
            raise StoreError(
                f"{place / odd[0]} is damaged: its SHA-256 differs from the manifest; run again to "
                "recompute it"
            )
        if not any(whole.glob("*.safetensors")):
            raise StoreError(
                f"{place} contains no weights (model.safetensors expected; pickles are never exported)"
            )
        (whole / "README.md").write_text(model_card(whole, made, name))
        whole.chmod(0o755)
        if out.exists():
            out.rmdir()
        whole.rename(out)
    return out
