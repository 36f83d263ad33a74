"""Sentence encoder: embeddings of texts."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ratchet.components.errors import SourceError
from ratchet.components.storage.store import MANIFEST

MAX_TOKENS = 128
BATCH = 64

Turn = tuple[str, str]
"""(text of the previous turn, empty for the first; text of this turn)."""


class Encoder:
    """Sentence encoder: mean-pooled, normalised fp32 embeddings from a transformers directory, cached by
    text.
    """

    def __init__(self, path: Path, *, threads: int | None = None) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        from ratchet.components.models.load import trusted

        if not (Path(path) / "config.json").exists():
            raise SourceError(f"{path}: no sentence encoder found; expected a transformers model directory")
        if threads:
            torch.set_num_threads(threads)
        self.digest = digest(path)
        self._tokenizer = AutoTokenizer.from_pretrained(
            path, local_files_only=True, trust_remote_code=trusted(path)
        )
        self._model = AutoModel.from_pretrained(
            path,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=trusted(path),
            use_safetensors=True,
        ).eval()
        self._known: dict[str, np.ndarray] = {}

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings (N,D) float32 of unit length. Texts are truncated after 128 tokens."""
        new = sorted({text for text in texts if text not in self._known}, key=lambda text: (len(text), text))
        for start in range(0, len(new), BATCH):
            for text, vector in zip(
                new[start : start + BATCH], self._encode(new[start : start + BATCH]), strict=True
            ):
                self._known[text] = vector
        return np.stack([self._known[text] for text in texts])

    def _encode(self, texts: list[str]) -> np.ndarray:
        import torch

        with torch.inference_mode():
            batch = self._tokenizer(
                texts, padding=True, truncation=True, max_length=MAX_TOKENS, return_tensors="pt"
            )
            hidden, mask = self._model(**batch).last_hidden_state, batch["attention_mask"][..., None]
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            return torch.nn.functional.normalize(pooled, dim=-1).numpy()


def digest(path: Path) -> str:
    """SHA-256 over the encoder's weights and vocabulary, without the store's manifest, which contains
    timestamps.
    """
    total = hashlib.sha256()
    for file in sorted(
        p
        for p in Path(path).iterdir()
        if p.suffix in (".safetensors", ".bin", ".json", ".txt") and p.name != MANIFEST
    ):
        total.update(file.name.encode())
        with file.open("rb") as stream:
            total.update(hashlib.file_digest(stream, "sha256").digest())
    return total.hexdigest()
