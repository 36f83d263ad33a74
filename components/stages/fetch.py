"""Stages `fetch_data`, `fetch_model`: download raw data unchanged, and models as Hugging Face directories."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from ratchet.components.data.hub import commit
from ratchet.components.data.sources import fetch
from ratchet.components.errors import SourceError
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import MANIFEST

REGISTRY = "registry:"  # a registered model: the pipeline places its files in REGISTERED before this stage
REGISTERED = "registered"
RECORDS = (MANIFEST, "metrics.jsonl")  # store files of an output of an earlier run
PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib")  # never read or copied


def fetch_data(job: Job) -> dict[str, Any]:
    """Copy or download `data.source`, or each of `data.sources`, into the store, byte for byte."""
    sources = job.options.get("sources") or [job.options]
    for number, one in enumerate(sources):
        name = f"source_{number}" if "sources" in job.options else "source"
        _download(
            one["source"],
            one["sha256"],
            job.work.progress / f"download_{number}",
            job.work.product / name,
            config=one.get("config"),
        )
    return dict(job.options)


def fetch_model(job: Job) -> dict[str, Any]:
    """A transformers model directory: copied, converted from GGUF, or a LoRA adapter merged into its base
    model.
    """
    from ratchet.components.inference.verify import require_verified
    from ratchet.components.models.gguf import convert_gguf
    from ratchet.components.models.images import load_image_processor, takes_images
    from ratchet.components.models.load import REMOTE_CODE, trusted
    from ratchet.components.models.lora import FOLDER, is_adapter, merge_adapter

    options = job.options
    got = (
        job.work.progress / REGISTERED
        if options["source"].startswith(REGISTRY)
        else _download(options["source"], options["sha256"], job.work.progress / "download", None)
    )
    kind, base = options["format"], {}
    if kind == "auto":
        kind = "gguf" if _gguf(got) else "huggingface"
    if is_adapter(got):
        base = _download_base(got, job)
        merge_adapter(got, job.work.progress / "base_model", job.work.product)
    elif options.get("base"):
        raise SourceError(
            f"{options['source']}: the recipe sets `base: {options['base']}`, but this is not a LoRA "
            "directory (expected adapter_config.json and "
            "no config.json); remove `base`"
        )
    elif kind == "gguf":
        convert_gguf(got if got.is_file() else next(got.glob("*.gguf")), job.work.product)
    else:
        if not (got / "config.json").is_file():
            raise SourceError(
                f"{options['source']}: {got} holds no config.json; expected a Hugging Face model directory, "
                "as for transformers' from_pretrained"
            )
        shutil.copytree(
            got,
            job.work.product,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(*PICKLES, REMOTE_CODE, FOLDER, *RECORDS),
        )
        if options.get("remote_code"):
            (job.work.product / REMOTE_CODE).write_text(
                "The recipe lets the code beside these weights be run.\n"
            )
        trusted(job.work.product)
        if takes_images(job.work.product):
            load_image_processor(job.work.product)  # its absence shows now, not after the first training
    if options.get("role") == "reward":
        _check_reward(job.work.product, options["source"])
    require_verified(job.work.product)
    return {"source": options["source"], "sha256": options["sha256"], **base}


def _gguf(got: Path) -> bool:
    return got.suffix == ".gguf" or (got.is_dir() and any(got.glob("*.gguf")))


def _download_base(adapter: Path, job: Job) -> dict[str, str]:
    """Fetch the base model of a LoRA into progress/base_model; returns its address."""
    from ratchet.components.models.gguf import convert_gguf
    from ratchet.components.models.lora import base_of

    address, place = job.options.get("base") or base_of(adapter), job.work.progress / "base_model"
    if address.startswith("hub:") and "@" not in address and (found := commit(address.removeprefix("hub:"))):
        address = f"{address}@{found}"
    got = _download(address, job.options.get("base_sha256"), job.work.progress / "base", None)
    shutil.rmtree(place, ignore_errors=True)
    if _gguf(got):
        convert_gguf(got if got.is_file() else next(got.glob("*.gguf")), place)
    else:
        place.mkdir(parents=True)
        for file in got.iterdir():
            (place / file.name).symlink_to(file.resolve())
    return {"base": address}


def _check_reward(path: Path, source: str) -> None:
    """`SourceError` if it is not a reward model. Models trained elsewhere are marked: their texts are
    rendered by the full chat template.
    """
    from transformers import AutoConfig

    from ratchet.components.models.load import trusted
    from ratchet.components.models.reward import FILE, PUBLISHED, is_reward_model

    config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=trusted(path))
    if not is_reward_model(path) or (config.num_labels != 1 and not (path / FILE).is_file()):
        raise SourceError(
            f"{source}: `role: reward` expects a sequence classifier with one label (num_labels 1), got "
            f"{', '.join(config.architectures or ['no architecture'])} with {config.num_labels}; use a "
            "reward model"
        )
    if not (path / "certificate.json").is_file():
        (path / PUBLISHED).write_text("Scored on the whole rendering of its chat template.\n")


def _download(
    source: str, sha256: str | None, download: Path, product: Path | None, config: str | None = None
) -> Path:
    got = fetch(source, download, sha256=sha256, config=config)
    if product is not None:
        product.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(got, product, dirs_exist_ok=True) if got.is_dir() else shutil.copy2(
            got, product.with_suffix(got.suffix)
        )
    return got
