"""Outputs of an earlier run as `path:` model sources: complete, without the store's manifest."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification

from ratchet.components.models.reward import PUBLISHED
from ratchet.components.stages.fetch import fetch_model
from ratchet.components.storage.store import Store
from ratchet.components.types import Artifact

CONFIG = LlamaConfig(
    vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_labels=1
)


def artifact_of(store: Store, role: str | None) -> Artifact:
    """A product as a stage publishes it: with a manifest, metrics and, of a reward model, its certificate."""
    with store.working("reward" if role else "sft", "1" * 64) as work:
        (LlamaForSequenceClassification if role else LlamaForCausalLM)(CONFIG).save_pretrained(work.product)
        work.metrics.write_text('{"step": 1, "metrics": {}}\n')
        if role:
            (work.product / "certificate.json").write_text('{"passed": true}')
        return store.publish(work, "reward" if role else "sft", "1" * 64, "weights", [], {})


@pytest.mark.parametrize("role", [None, "reward"])
def test_earlier_stage_output_is_accepted_as_a_model_source(tmp_path: Path, role: str | None) -> None:
    torch.manual_seed(0)
    store, earlier = Store(tmp_path / "next"), artifact_of(Store(tmp_path / "first"), role)
    with store.working("model_mine", "2" * 64) as work:
        meta = fetch_model(
            SimpleNamespace(
                options={"source": f"path:{earlier.path}", "sha256": None, "format": "auto", "role": role},
                work=work,
            )
        )
        artifact = store.publish(work, "model_mine", "2" * 64, "weights", [], meta)
    store.verify(artifact)  # raises where the manifest of the earlier product was taken along
    names = {file.name for file in artifact.path.iterdir()}
    assert (
        names == {file.name for file in earlier.path.iterdir()} - {"metrics.jsonl"} and PUBLISHED not in names
    )
    assert all(
        (artifact.path / name).read_bytes() == (earlier.path / name).read_bytes()
        for name in names - {"manifest.json"}
    )
