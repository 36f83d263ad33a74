"""Model directories as vLLM can refresh them: untied output layers, what must stay equal, and the transfer of
weights to a running vLLM.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ratchet.components.errors import ContractError

INDEX = "model.safetensors.index.json"
TIED = "tie_word_embeddings"
WORKER = Path(__file__).with_name("vllm_worker")
"""Folder on the PYTHONPATH of vLLM's workers, with the weight transfer that they run."""
EXTENSION = "ratchet_weights.Registration"
"""vLLM's `worker_extension_cls` within that folder."""
TRANSFER = {"backend": "ratchet_files"}
"""vLLM's `weight_transfer_config`."""


def untied(path: Path, scratch: str | None) -> tempfile.TemporaryDirectory | None:
    """Temporary copy (by links) of a model directory with a separate lm_head tensor, if the model ties it to
    its input embedding; else None.

    vLLM 0.32 on CPU does not refresh a tied lm_head when weights are reloaded: it keeps multiplying by the
    first packed copy, so every log-prob is wrong (measured). Separate tensors are both refreshed.
    """
    from safetensors import safe_open
    from safetensors.torch import save_file

    config = json.loads((path / "config.json").read_text())
    if not config.get(TIED):
        return None
    view = tempfile.TemporaryDirectory(prefix="vllm-", dir=scratch)
    inside = Path(view.name)
    inside.chmod(0o755)  # the server may run as another user
    places: dict[str, str] = {}
    shared = None
    for file in sorted(p for p in path.iterdir() if p.is_file() and p.name not in ("config.json", INDEX)):
        name = (
            f"part-{file.name}" if file.suffix == ".safetensors" else file.name
        )  # the index is ignored if a `model.safetensors` exists
        (inside / name).symlink_to(file.resolve())
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as weights:
                places |= dict.fromkeys(weights.keys(), name)
                for key in weights.keys():  # noqa: SIM118  no mapping
                    if key.endswith("embed_tokens.weight"):
                        shared = weights.get_tensor(key)
    if shared is None:
        raise ContractError(
            f"{path}: config.json has `{TIED}`, but no weight named `embed_tokens.weight` "
            "was found; "
            "on a GPU, set `vllm.untie: false` in the profile"
        )
    save_file({"lm_head.weight": shared}, inside / "part-lm_head.safetensors", metadata={"format": "pt"})
    (inside / "part-lm_head.safetensors").chmod(0o644)
    (inside / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": {**places, "lm_head.weight": "part-lm_head.safetensors"}})
    )
    (inside / "config.json").write_text(json.dumps({**config, TIED: False}))
    return view


def shape(path: Path) -> dict[str, Any]:
    """The model config without provenance fields: what must stay equal for weights to be refreshed in
    place.
    """
    config = json.loads((path / "config.json").read_text())
    return {
        k: v
        for k, v in config.items()
        if k not in ("transformers_version", "_name_or_path", "dtype", "torch_dtype")
    }


def fits(served: dict[str, Any], path: Path) -> bool:
    """Whether a vLLM that was started with a model of the shape `served` takes the weights of a directory:
    the shapes are equal, but an output layer served apart from the input embedding may be tied to it.
    """
    new = shape(path)
    return served == (new if served.get(TIED) else {**new, TIED: served.get(TIED)})


def update(path: Path) -> dict[str, Any]:
    """vLLM's `update_info` for the weights of a directory."""
    return {"files": [str(file) for file in sorted(path.glob("*.safetensors"))]}
