"""A reward model that reads the mean of what it judges: a backbone, and a linear head on standardised mean hidden states.

The last token of a small model holds little of a conversation; the mean over the judged speaker's tokens holds more.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = "reward_head.safetensors"


class StandardisedHead(nn.Module):
    """(…, hidden) -> (…, 1): weight · (x − centre) / scale. `centre` and `scale` are fixed, the weight learns."""

    centre: Tensor
    scale: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden))
        self.register_buffer("centre", torch.zeros(hidden))
        self.register_buffer("scale", torch.ones(hidden))

    def forward(self, states: Tensor) -> Tensor:
        return ((states - self.centre) / self.scale) @ self.weight.t()


class MeanReward(nn.Module):
    """`backbone` is a transformers model without a head, `score` maps the mean of its last hidden states over the judged
    tokens (B, hidden) to (B, 1)."""

    base_model_prefix = "backbone"

    def __init__(self, backbone: nn.Module, score: StandardisedHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.score = score

    @property
    def config(self):
        return self.backbone.config

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()


def is_reward_model(path: Path) -> bool:
    """Whether a model directory holds something that scores: one of ours, or a classifier of transformers."""
    architectures = json.loads((path / "config.json").read_text()).get("architectures") or []
    return (path / FILE).is_file() or any("SequenceClassification" in name for name in architectures)


def load_reward_head(path: Path, hidden: int) -> StandardisedHead:
    """The head saved beside a backbone: `weight` (1, hidden), `centre` and `scale` (hidden,)."""
    from safetensors.torch import load_file

    head = StandardisedHead(hidden)
    head.load_state_dict({name: tensor.clone() for name, tensor in load_file(path / FILE).items()})
    return head


def save_reward_head(head: nn.Module, path: Path) -> None:
    """Writes `reward_head.safetensors`."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}, path / FILE)
