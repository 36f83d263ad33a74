"""Export of a model (of a run, the registry or a directory) as a Hugging Face directory with a model card."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.stages.fetch import PICKLES, RECORDS
from ratchet.components.storage.store import MANIFEST, disk_errors, file_digest, read_manifest
from ratchet.tasks.registry.lineage import lineage_of
from ratchet.tasks.registry.model_card import model_card
from ratchet.tasks.registry.registry_sources import bring
from ratchet.tasks.registry.weights import locate

LEFT_OUT = (*RECORDS, "README.md", *PICKLES)  # store metadata, and the model card of the source


def export(model: str, out: Path, *, home: Path) -> Path:
    """Copy the model to the new directory `out`, atomically, with a model card. `RecipeError` for an
    unknown model or a non-empty `out`, `StoreError` if its files are missing or damaged.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and is not an empty directory; name a new one")
    title, found = list(locate(model, home).items())[-1]
    place, version = found.path, found.version
    if version is None and not (place / "config.json").is_file():
        raise RecipeError(f"{place} contains no model (config.json expected)")
    made = lineage_of(found, home) if version or (place / MANIFEST).is_file() else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        disk_errors(f"exporting {model}"),
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside,
    ):
        if version:
            place = Path(beside) / "registered"
            bring(f"registry:{version.name}/{version.version}", version.tags.get("weights"), place, home)
        whole, written = Path(beside) / "model", (read_manifest(place) or {"files": {}})["files"]
        shutil.copytree(place, whole, ignore=shutil.ignore_patterns(*LEFT_OUT))
        for name, entry in written.items():
            if (whole / name).is_file() and file_digest(whole / name) != entry["sha256"]:
                raise StoreError(
                    f"{place / name} is damaged: its SHA-256 differs from the manifest; run again to "
                    "recompute it"
                )
        if not any(whole.glob("*.safetensors")):
            raise StoreError(
                f"{place} contains no weights (model.safetensors expected; pickles are never exported)"
            )
        title = f"{found.run.name}/{title}" if found.run else title
        (whole / "README.md").write_text(model_card(whole, made, title))
        whole.chmod(0o755)
        if out.exists():
            out.rmdir()
        whole.rename(out)
    return out
