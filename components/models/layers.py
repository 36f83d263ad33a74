"""Parts of a transformers decoder: the pass through its layers, and its output layer."""

from __future__ import annotations

from torch import Tensor, nn

from ratchet.components.errors import ContractError

SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")


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


def backbone(language: nn.Module) -> nn.Module:
    """The model without its head."""
    return getattr(language, language.base_model_prefix)  # pyright: ignore[reportArgumentType]


def output_head(language: nn.Module) -> nn.Module:
    """The output layer (lm_head). `ContractError` for models that transform logits after it."""
    config = language.config.get_text_config()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    for name in SCALED:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ContractError(
                f"{type(language).__name__}: config.{name} = {getattr(config, name)} transforms logits "
                "after the output "
                "layer, which the chunked log-probs do not support; use a model without it"
            )
    return language.get_output_embeddings()  # pyright: ignore[reportCallIssue]
