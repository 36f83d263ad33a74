"""Model families other than language models. A model directory of such a family has `family.json`, the spec
of its piece in the slot `family`, next to `model.safetensors`; it has no tokenizer.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError, SourceError
from ratchet.components.piece import build, resolve
from ratchet.components.recipes.families import FILE, family_of
from ratchet.components.types import Batch

WEIGHTS = "model.safetensors"
VALUES = "value."
"""Prefix of the parameters that a policy without values leaves out."""


def is_family(model: nn.Module) -> bool:
    """Whether a loaded model is of a family, so that it computes its own outputs."""
    return hasattr(model, "family")


def new_model(spec: Mapping[str, Any], *, seed: int = 0, values: bool = False) -> nn.Module:
    """A model of a family with random weights, a function of the spec and the seed."""
    full = {**resolve("family", spec), "values": values}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build("family", full)
    model.family = full
    return model.eval()


def load_family(path: Path, kind: str) -> nn.Module:
    """The model of a directory with `family.json`, on CPU in float32. With `policy_with_value` and no saved
    values, these are 0. `SourceError` for missing or other weights.
    """
    from safetensors.torch import load_file

    if kind not in ("policy", "policy_with_value"):
        raise ContractError(f"{path}: a model of the family {_name(path)} is a policy, got kind {kind!r}")
    model = new_model(family_of(path) or {}, values=kind == "policy_with_value")
    if not (Path(path) / WEIGHTS).is_file():
        raise SourceError(f"{path}: holds no weights ({WEIGHTS} expected; pickles are never read)")
    saved, own = load_file(Path(path) / WEIGHTS), model.state_dict()
    shapes = [{name: value.shape for name, value in one.items()} for one in (saved, own)]
    odd = {name for name, _ in shapes[0].items() ^ shapes[1].items()}
    without = {name for name in odd if name.startswith(VALUES)}
    # a policy leaves the values out; a critic without saved ones starts at 0
    if odd - without or (without & saved.keys() and without & own.keys()):
        raise SourceError(
            f"{path}: {WEIGHTS} and {FILE} do not belong together: {min(odd)!r} is in one only, or has "
            "another shape"
        )
    model.load_state_dict({name: value for name, value in saved.items() if name in own}, strict=False)
    return model


def save_family(model: nn.Module, path: Path) -> None:
    """Save a model of a family: weights and `family.json`, each replaced atomically."""
    from safetensors.torch import save_file

    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    weights = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=path) as beside:
        save_file(weights, Path(beside) / WEIGHTS, metadata={"format": "pt"})
        spec: Any = model.family
        (Path(beside) / FILE).write_text(json.dumps(spec, indent=1, sort_keys=True) + "\n")
        for file in sorted(Path(beside).iterdir()):
            file.chmod(0o644)  # safetensors creates files with mode 0600
            os.replace(file, path / file.name)


def family_outputs(model: Any, batch: Batch, names: frozenset[str]) -> dict[str, Tensor]:
    """Outputs (B,T) of a batch with observations and actions, zero where the loss mask is False.
    `ContractError` for a batch of tokens, or of other sizes than the model's.
    """
    arrays = [batch.inputs.get(name) for name in ("observations", "actions")]
    sizes = [model.observation, model.action]
    got = [rows[0].shape[-1] if rows else None for rows in arrays]
    if got != sizes:
        raise ContractError(
            f"the model of the family {model.family['name']!r} takes observations of {sizes[0]} and "
            f"actions of {sizes[1]} numbers, got {got[0]} and {got[1]} (prompt {batch.ids[0]!r}); make the "
            "trajectories with a rollout of arrays, such as `control`, and an environment of these sizes"
        )
    device = next(model.parameters()).device
    observations, actions = (torch.cat(rows).to(device) for rows in arrays if rows)
    mask, lengths = (
        batch.mask.to(device),
        torch.tensor([len(rows) for rows in batch.inputs["actions"]], device=device),
    )
    places = torch.arange(mask.shape[1], device=device) < lengths[:, None]
    return {
        name: torch.zeros(mask.shape, device=device).masked_scatter(places, values.float()) * mask
        for name, values in model.outputs(observations, actions, names).items()
    }


def _name(path: Path) -> str:
    return repr((family_of(path) or {}).get("name"))
