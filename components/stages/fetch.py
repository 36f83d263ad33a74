"""Bring bytes in: a model as a plain Hugging Face directory, raw data as it came."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ratchet.components.data.hub import commit
from ratchet.components.data.sources import fetch
from ratchet.components.errors import SourceError
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import MANIFEST

REGISTRY = "registry:"  # a registered model: the pipeline puts its files into REGISTERED before this stage begins
REGISTERED = "registered"
RECORDS = (MANIFEST, "metrics.jsonl")  # of the store that a product of ours comes from
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib")  # never read, and never handed on


def fetch_data(job: Job) -> dict[str, Any]:
    """`data.source`, or each of `data.sources`, into the store, byte for byte."""
    sources = job.options.get("sources") or [job.options]
    for number, one in enumerate(sources):
        name = f"source_{number}" if "sources" in job.options else "source"
        _bring(one["source"], one["sha256"], job.work.progress / f"download_{number}", job.work.product / name, config=one.get("config"))
    return dict(job.options)


def fetch_model(job: Job) -> dict[str, Any]:
    """A model directory that transformers loads: taken as it is, converted from GGUF, or a LoRA merged into its base model."""
    from ratchet.components.models.load import REMOTE_CODE, convert_gguf, trusted
    from ratchet.components.models.lora import FOLDER, is_adapter, merge_adapter

    options = job.options
    got = (job.work.progress / REGISTERED if options["source"].startswith(REGISTRY) else
           _bring(options["source"], options["sha256"], job.work.progress / "download", None))
    kind, base = options["format"], {}
    if kind == "auto":
        kind = "gguf" if _gguf(got) else "huggingface"
    if is_adapter(got):
        base = _bring_base(got, job)
        merge_adapter(got, job.work.progress / "base_model", job.work.product)
    elif options.get("base"):
        raise SourceError(f"{options['source']}: the recipe names a base model {options['base']}, but this is no LoRA directory (adapter_config.json and "
                          "no config.json expected); remove `base`")
    elif kind == "gguf":
        convert_gguf(got if got.is_file() else next(got.glob("*.gguf")), job.work.product)
    else:
        if not (got / "config.json").is_file():
            raise SourceError(f"{options['source']}: {got} holds no config.json, so it is not a model directory; "
                              "point at the folder that transformers' from_pretrained would take")
        shutil.copytree(got, job.work.product, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*PICKLES, REMOTE_CODE, FOLDER, *RECORDS))
        if options.get("remote_code"):
            (job.work.product / REMOTE_CODE).write_text("The recipe lets the code beside these weights be run.\n")
        trusted(job.work.product)
    if options.get("role") == "reward":
        _check_reward(job.work.product, options["source"])
    return {"source": options["source"], "sha256": options["sha256"], **base}


def _gguf(got: Path) -> bool:
    return got.suffix == ".gguf" or (got.is_dir() and any(got.glob("*.gguf")))


def _bring_base(adapter: Path, job: Job) -> dict[str, str]:
    """The base model of a LoRA as the directory progress/base_model; what it was."""
    from ratchet.components.models.load import convert_gguf
    from ratchet.components.models.lora import base_of

    address, place = job.options.get("base") or base_of(adapter), job.work.progress / "base_model"
    if address.startswith("hub:") and "@" not in address and (found := commit(address.removeprefix("hub:"))):
        address = f"{address}@{found}"
    got = _bring(address, job.options.get("base_sha256"), job.work.progress / "base", None)
    shutil.rmtree(place, ignore_errors=True)
    if _gguf(got):
        convert_gguf(got if got.is_file() else next(got.glob("*.gguf")), place)
    else:
        place.mkdir(parents=True)
        for file in got.iterdir():
            (place / file.name).symlink_to(file.resolve())
    return {"base": address}


def _check_reward(path: Path, source: str) -> None:
    """Refuse what is no reward model, and mark one that was trained elsewhere: its texts are rendered as published."""
    from transformers import AutoConfig

    from ratchet.components.models.load import trusted
    from ratchet.components.models.reward import FILE, PUBLISHED, is_reward_model

    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted(path))
    if not is_reward_model(path) or (config.num_labels != 1 and not (path / FILE).is_file()):
        raise SourceError(f"{source}: `role: reward` expects a sequence classifier with one label (num_labels 1), got "
                          f"{', '.join(config.architectures or ['no architecture'])} with {config.num_labels}; name a reward model")
    if not (path / "certificate.json").is_file():
        (path / PUBLISHED).write_text("Scored on the whole rendering of its chat template.\n")


def _bring(source: str, sha256: str | None, download: Path, product: Path | None, config: str | None = None) -> Path:
    got = fetch(source, download, sha256=sha256, config=config)
    if product is not None:
        product.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(got, product, dirs_exist_ok=True) if got.is_dir() else shutil.copy2(got, product.with_suffix(got.suffix))
    return got

