"""A model of a run, of the registry or of a directory, as a plain Hugging Face directory with a model card, here or on the hub."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError, ServiceError, SourceError, StoreError
from ratchet.components.stages.fetch import PICKLES, RECORDS
from ratchet.components.storage.store import MANIFEST, disk_errors, file_digest, read_manifest
from ratchet.tasks.registry.lineage import of_product, resolve
from ratchet.tasks.registry.model_card import model_card
from ratchet.tasks.registry.registry import Version
from ratchet.tasks.registry.registry_sources import bring
from ratchet.tasks.registry.weights import weights_of

LEFT_OUT = (*RECORDS, "README.md", *PICKLES)  # the store's own records, and another model's card


def locate(model: str, home: Path) -> tuple[Path | None, Mapping[str, Any], Version | None, str]:
    """The directory of a model (None: the registry has it), its lineage (empty where no run of ours made it), its registered version, and
    a title. `model` is RUN/STAGE, RUN (its final model), a directory, or a registered name, name:version or name@alias."""
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
            raise RecipeError(f"{path} holds no model (config.json expected)")
        of_run = path.parent.parent if path.parent.name == "stages" else None
        return path.resolve(), of_product(path, of_run) if (path / MANIFEST).is_file() else {}, None, path.resolve().name if not of_run else f"{of_run.name}/{path.name}"
    made, version = resolve(model, home)
    assert version is not None, "what is no directory is a registered version"
    return None, made, version, f"{version.name}:{version.version}"


def export(model: str, out: Path, *, home: Path, repository: str = "") -> Path:
    """Copy the model into the new directory `out`, whole or not at all, with a model card, of the hub's `repository` if it is to go there. Raises `RecipeError` for a model that is not
    there or an `out` that holds files, `StoreError` for one whose bytes are gone."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RecipeError(f"{out} exists and is not an empty directory; name a new one")
    place, made, version, name = locate(model, home)
    out.parent.mkdir(parents=True, exist_ok=True)
    with disk_errors(f"exporting {model}"), tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent) as beside:
        if place is None:
            assert version is not None
            place = Path(beside) / "registered"
            bring(f"registry:{version.name}/{version.version}", version.tags.get("weights"), place, home)
        whole, written = Path(beside) / "model", (read_manifest(place) or {"files": {}})["files"]
        shutil.copytree(place, whole, ignore=shutil.ignore_patterns(*LEFT_OUT))
        if odd := [name for name, entry in written.items() if (whole / name).is_file() and file_digest(whole / name) != entry["sha256"]]:
            raise StoreError(f"{place / odd[0]} is damaged: its SHA-256 is not the one in its manifest; a run makes it again")
        if not any(whole.glob("*.safetensors")):
            raise StoreError(f"{place} holds no weights (model.safetensors expected; pickles are never exported)")
        (whole / "README.md").write_text(model_card(whole, made, repository or name, repository or "path/to/this/folder"))
        whole.chmod(0o755)
        if out.exists():
            out.rmdir()
        whole.rename(out)
    return out


def push(model: str, address: str, *, home: Path, public: bool = False, message: str = "") -> str:
    """Upload the export of a model to `hub:org/name`, made private if it is new unless `public`; the address of the commit. Raises
    `SourceError` for another address, `ServiceError` for what the hub refuses."""
    match = re.fullmatch(r"hub:([\w.-]+/[\w.-]+)", address)
    if not match:
        raise SourceError(f"{address!r} is no repository of the hub; expected hub:org/name")
    from huggingface_hub import HfApi

    repository, endpoint = match.group(1), os.environ.get("HF_ENDPOINT")  # read now: the library reads it once, when first imported
    with tempfile.TemporaryDirectory(prefix=".push-", dir=home if home.is_dir() else None) as folder:
        out = export(model, Path(folder) / "model", home=home, repository=repository)
        hub = HfApi(endpoint=endpoint)
        try:
            hub.create_repo(repository, private=not public, exist_ok=True)
            done = hub.upload_folder(folder_path=out, repo_id=repository, commit_message=message or f"Ratchet: {model}")
        except Exception as error:  # network libraries differ in what they raise
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ServiceError(f"{address}: {hub.endpoint} did not take the model: {reason}; log in with `hf auth login` or set HF_TOKEN, to a token "
                               "that may write there") from error
    return str(done.commit_url)
