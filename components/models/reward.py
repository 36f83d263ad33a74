"""Reward model with mean pooling: a backbone and a linear head on the standardised mean of the answer's last
hidden states.

In a small model, the last token's state carries little of the conversation; the mean over the answer's tokens
carries more. Saved as a transformers token classifier with one label: the mean of its logits over those
tokens is the score.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path

import torch
from torch import Tensor, nn

FILE = "reward_head.st"
"""Safetensors data without the usual suffix: vLLM loads every *.safetensors of a directory as model weights.
"""

PUBLISHED = "published_reward_model.txt"
"""Marker file of a reward model trained elsewhere; written on download."""


class StandardisedHead(nn.Module):
    """(…, hidden) -> (…, 1): weight · (x − centre) / scale. `centre` and `scale` are fixed buffers, the
    weight is trained.
    """

    centre: Tensor
    scale: Tensor

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, hidden))
        self.register_buffer("centre", torch.zeros(hidden))
        self.register_buffer("scale", torch.ones(hidden))

    def forward(self, states: Tensor) -> Tensor:
        return ((states - self.centre) / self.scale) @ self.weight.t()

    @torch.no_grad()
    def as_linear(self) -> nn.Linear:
        """The equivalent `nn.Linear`: weight / scale · x − weight / scale · centre."""
        weight = self.weight.double() / self.scale.double()
        linear = nn.Linear(weight.shape[1], 1, device=self.weight.device)
        linear.weight.copy_(weight)
        linear.bias.copy_(-(weight @ self.centre.double()))
        return linear


class MeanReward(nn.Module):
    """`backbone`: a transformers model without head. `score`: maps the mean of the last hidden states over
    the masked-in tokens, (B, hidden), to (B, 1).
    """

    base_model_prefix = "backbone"

    def __init__(self, backbone: nn.Module, score: StandardisedHead) -> None:
        super().__init__()
        self.backbone = backbone
        self.score = score

    @property
    def config(self):
        return self.backbone.config

    @property
    def image_processor(self):
        """That of a vision-language backbone; any other has none."""
        return self.backbone.image_processor

    def get_input_embeddings(self) -> nn.Module:
        return self.backbone.get_input_embeddings()  # pyright: ignore[reportCallIssue]


def as_token_classifier(model: MeanReward) -> nn.Module | None:
    """The equivalent transformers token classifier: the mean of its logits over the masked-in tokens is the
    score (the mean of a linear map is the map of the mean). None if the architecture has no such class.
    """
    from transformers import AutoModelForTokenClassification

    config = copy.deepcopy(model.config)
    if type(config) not in AutoModelForTokenClassification._model_mapping:
        return None
    with torch.device("meta"):
        classifier = AutoModelForTokenClassification.from_config(config)
    head = next(name for name, module in classifier.named_children() if isinstance(module, nn.Linear))
    setattr(classifier, classifier.base_model_prefix, model.backbone)
    setattr(classifier, head, model.score.as_linear())
    return classifier


def is_published(path: Path) -> bool:
    """Whether the reward model was trained elsewhere; its texts are then rendered exactly as by
    `apply_chat_template`.
    """
    return (path / PUBLISHED).is_file()


def is_reward_model(path: Path) -> bool:
    """Whether a directory holds a reward model: a `MeanReward` or a transformers sequence classifier."""
    return (path / FILE).is_file() or _has_class(path, "SequenceClassification")


def is_token_classifier(path: Path) -> bool:
    """Whether a directory holds a reward model saved by `as_token_classifier`."""
    return _has_class(path, "TokenClassification")


def _has_class(path: Path, kind: str) -> bool:
    architectures = json.loads((path / "config.json").read_text()).get("architectures") or []
    return any(name.endswith(f"For{kind}") for name in architectures)


def load_reward_head(path: Path, hidden: int) -> StandardisedHead:
    """Load the head saved with a backbone: `weight` (1, hidden), `centre` and `scale` (hidden,)."""
    from safetensors.torch import load_file

    head = StandardisedHead(hidden)
    head.load_state_dict({name: tensor.clone() for name, tensor in load_file(path / FILE).items()})
    return head


def save_reward_head(head: nn.Module, path: Path) -> None:
    """Save the head: `weight` (1, hidden), `centre` and `scale` (hidden,)."""
    from safetensors.torch import save_file

    save_file(
        {name: tensor.detach().cpu().contiguous() for name, tensor in head.state_dict().items()}, path / FILE
    )
