"""Policy with a value head (arXiv 1707.06347): one linear map of the last hidden state."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

FILE = "value_head.st"
"""Safetensors data without the usual suffix: vLLM loads every *.safetensors of a directory as model weights.
"""


class PolicyWithValue(nn.Module):
    """`policy`: a causal language model. `value_head`: maps (…, hidden) to (…, 1)."""

    def __init__(self, policy: nn.Module, value_head: nn.Linear) -> None:
        super().__init__()
        self.policy = policy
        self.value_head = value_head

    @property
    def config(self):
        return self.policy.config

    def get_input_embeddings(self) -> nn.Module:
        return self.policy.get_input_embeddings()  # pyright: ignore[reportCallIssue]


def load_value_head(path: Path, hidden: int) -> nn.Linear:
    """The saved value head, or a zero-initialised one, which predicts 0 for every state."""
    from safetensors.torch import load_file

    head = nn.Linear(hidden, 1)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    if (path / FILE).is_file():
        head.load_state_dict({name: tensor.clone() for name, tensor in load_file(path / FILE).items()})
    return head


def save_value_head(head: nn.Module, path: Path) -> None:
    """Save the head: `weight` (1, hidden) and `bias` (1,)."""
    from safetensors.torch import save_file

    state: dict[str, torch.Tensor] = {
        name: p.detach().cpu().contiguous() for name, p in head.state_dict().items()
    }
    save_file(state, path / FILE)
