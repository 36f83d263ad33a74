"""Export of a model (of a run, the registry or a directory) as a Hugging Face directory with a model card."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.stages.fetch import PICKLES, RECORDS
from ratchet.components.storage.store import Store, disk_errors, read_manifest
from ratchet.components.types import Artifact
from ratchet.tasks.registry.lineage import lineage_of
from ratchet.tasks.registry.registry_sources import bring
from ratchet.tasks.registry.weights import locate
from ratchet.tasks.tracking.results import as_text

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
    manifest = read_manifest(place)
    made = lineage_of(found, home) if version or manifest else {}
    out.parent.mkdir(parents=True, exist_ok=True)
    with (
        disk_errors(f"exporting {model}"),
        tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as scratch,
    ):
        if version:
            place = Path(scratch) / "registered"
            bring(version, place, home)
        elif manifest:
            Store(home).verify(Artifact(manifest["kind"], place, manifest["key"]))
        whole = Path(scratch) / "model"
        shutil.copytree(place, whole, ignore=shutil.ignore_patterns(*LEFT_OUT))
        if not any(whole.glob("*.safetensors")):
            raise StoreError(
                f"{place} contains no weights (model.safetensors expected; pickles are never exported)"
            )
        title = f"{found.run.name}/{title}" if found.run else title
        (whole / "README.md").write_text(_model_card(whole, made, title))
        whole.chmod(0o755)
        if out.exists():
            out.rmdir()
        whole.rename(out)
    return out


def _model_card(model_dir: Path, made: Mapping[str, Any], title: str) -> str:
    """Model card in Markdown with Hub metadata, without local paths. `made`: lineage, or empty."""
    from jinja2 import Template

    architecture = (json.loads((model_dir / "config.json").read_text()).get("architectures") or [""])[0]
    reward_model = "Classification" in architecture
    stages = made.get("stages", {})
    sources = {name: str(stage.get("meta", {}).get("source") or "") for name, stage in stages.items()}
    head = {
        "library_name": "transformers",
        "pipeline_tag": "text-classification" if reward_model else "text-generation",
        "tags": ["ratchet", "reward-model" if reward_model else "rlhf"],
    }
    if base := re.match(r"hub:(?:models/)?([\w.-]+/[\w.-]+)", sources.get("model_policy", "")):
        head["base_model"] = base[1]
    resolved = yaml.safe_load(made.get("resolved") or "") or {}
    template = Path(__file__).with_name("model_card.md.j2").read_text()
    return Template(template, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True).render(
        head=yaml.safe_dump(head, sort_keys=False),
        title=title,
        reward_model=reward_model,
        made=made,
        about=resolved.get("recipe", {}).get("about", "").strip(),
        metrics=as_text(made.get("results", {}).get("metrics", {})),
        certificate=made and stages[made["product"]].get("meta", {}).get("certificate"),
        sources={n: "a local file" if one.startswith("path:") else one for n, one in sources.items()},
    )
