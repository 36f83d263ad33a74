"""Parts of a transformers decoder: the pass through its layers, and its output layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from ratchet.components.models.reward import MeanReward
from ratchet.components.models.value import PolicyWithValue


def hidden_states(
    language: nn.Module,
    tokens: Tensor,
    positions: Tensor,
    plan: object,
    *,
    embeddings: Tensor | None = None,
) -> Tensor:
    """Last hidden states (N, H) of a flat row (1, N) under a plan, from its tokens or from `embeddings`
    (1, N, H) in their place.
    """
    layers = backbone(language)
    device = next(layers.parameters()).device
    given = (
        {"input_ids": tokens.to(device)} if embeddings is None else {"inputs_embeds": embeddings.to(device)}
    )
    return layers(**given, position_ids=positions.to(device), use_cache=False, plan=plan).last_hidden_state[0]


def language_model(model: nn.Module) -> Any:
    """The transformers model inside a loaded one: the policy under a value head, the backbone of a
    `MeanReward`, else the model itself.
    """
    if isinstance(model, PolicyWithValue):
        return model.policy
    return model.backbone if isinstance(model, MeanReward) else model


def untie(model: nn.Module) -> None:
    """Give the output layer of a language model a weight of its own, equal to the input embedding that it was
    tied to. A no-op for any other model.
    """
    language = language_model(model)
    head = language.get_output_embeddings() if hasattr(language, "get_output_embeddings") else None
    if head is not None and head.weight is language.get_input_embeddings().weight:
        head.weight = nn.Parameter(head.weight.detach().clone(), requires_grad=head.weight.requires_grad)


def backbone(language: nn.Module) -> nn.Module:
    """The model without its head."""
    return getattr(language, language.base_model_prefix)  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True)
class OutputLayer:
    """The map from hidden states h (N, H) to logits (N, V): scale W h + b, or c tanh((scale W h + b) / c)
    with a `softcap` c. weight (V, H) and bias (V,) are float32.
    """

    weight: Tensor
    bias: Tensor | None
    scale: float = 1.0
    softcap: float | None = None

    @property
    def linear(self) -> bool:
        """Whether the logits are W h + b."""
        return self.scale == 1 and self.softcap is None

    def logits(self, products: Tensor) -> Tensor:
        """Logits (V, R) from the products W h (V, R), which are overwritten."""
        if self.scale != 1:
            products.mul_(self.scale)
        if self.bias is not None:
            products.add_(self.bias[:, None])
        return products if self.softcap is None else products.div_(self.softcap).tanh_().mul_(self.softcap)


def output_layer(language: nn.Module) -> OutputLayer:
    """The output layer (lm_head) of a language model, with what its class does to the logits: Granite
    divides, Cohere multiplies and Gemma 2 caps them.
    """
    config: Any = language.config.get_text_config()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    head: Any = language.get_output_embeddings()  # pyright: ignore[reportCallIssue]
    scale = getattr(config, "logit_scale", None) or 1 / (getattr(config, "logits_scaling", None) or 1)
    return OutputLayer(
        head.weight.float(),
        None if head.bias is None else head.bias.float(),
        float(scale),
        getattr(config, "final_logit_softcapping", None),
    )
