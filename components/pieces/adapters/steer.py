"""Adapter `steer`: a low-rank change of the last hidden state, over a frozen model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Positive

if TYPE_CHECKING:
    from torch.nn import Module


@piece(outputs=("logprobs", "entropy"), paper="arXiv:2412.14626")
def steer(model: Module, *, rank: Count = 8, scale: Positive = 1.0, seed: Natural = 0) -> Module:
    """A linear controller: logits E (I + W) h instead of E h, with h the last hidden state, E the frozen
    output layer and W = `scale` B A of `rank`, the only parameters that are trained (LM-Steer's form, arXiv
    2305.12798). B is initialised to 0, so that the model is initially unchanged; A is drawn by `seed`.

    The saved model is a plain one with the output layer E (I + W), no longer tied to the embeddings. As the
    logits are linear in W, strengths e_d of several controllers over one model, E (I + sum of e_d W_d) h, are
    the mixture of weights {model: 1 - sum of e_d, d: e_d} (`mixed`, `by_sentence`). A strength of 1 is the
    one at which the controller was trained.
    """
    from ratchet.components.models.value import PolicyWithValue

    model.requires_grad_(False)
    language: Any = model.policy if isinstance(model, PolicyWithValue) else model
    return _steered()(model, language, rank, scale, seed)


def _steered() -> Any:
    """The class, made at first use, since recipes are checked without torch."""
    import torch
    from torch import Tensor, nn

    from ratchet.components.models.layers import backbone

    class Steer(nn.Module):
        """h -> h + scale B A h, on the last hidden states that the backbone returns."""

        def __init__(self, width: int, rank: int, scale: float, seed: int) -> None:
            super().__init__()
            drawn = torch.randn(rank, width, generator=torch.Generator().manual_seed(seed))
            self.down = nn.Parameter(drawn / width**0.5)
            self.up = nn.Parameter(torch.zeros(width, rank))
            self.scale = scale

        def forward(self, hidden: Tensor) -> Tensor:
            return hidden + self.scale * (hidden @ self.down.t().to(hidden.dtype)) @ self.up.t().to(
                hidden.dtype
            )

        def hook(self, layers: nn.Module, args: Any, output: Any) -> Any:
            output.last_hidden_state = self(output.last_hidden_state)
            return output

    class Steered(nn.Module):
        """The model with its controller; `merge_and_unload` gives the plain model."""

        def __init__(self, model: nn.Module, language: Any, rank: int, scale: float, seed: int) -> None:
            super().__init__()
            self.model, self.language = model, language
            self.steer = Steer(language.config.get_text_config().hidden_size, rank, scale, seed)
            self.handle = backbone(language).register_forward_hook(self.steer.hook)

        def forward(self, *args: Any, **options: Any) -> Any:
            return self.model(*args, **options)

        def get_base_model(self) -> nn.Module:
            """Itself: there is no adapter in peft's format to save."""
            return self

        @torch.no_grad()
        def merge_and_unload(self) -> nn.Module:
            backbone(self.language)._forward_hooks.clear()
            head = self.language.get_output_embeddings()
            weight = head.weight.float()
            change = self.steer.scale * (weight @ self.steer.up) @ self.steer.down
            head.weight = nn.Parameter((weight + change).to(head.weight.dtype), requires_grad=False)
            self.language.config.tie_word_embeddings = False
            self.language.config.get_text_config().tie_word_embeddings = False
            return self.model

    return Steered
