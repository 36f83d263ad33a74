"""Module wrapped by DeepSpeed: the forward pass of a learner as one call."""

from __future__ import annotations

from torch import Tensor, nn

from ratchet.components.models.forward import model_outputs
from ratchet.components.models.layers import language_model
from ratchet.components.types import Batch, Read


class Rows(nn.Module):
    """Module wrapped by DeepSpeed: one forward pass from a batch to the requested outputs, so that ZeRO's
    hooks see a single call. `trained` holds all parameters: `model`, the entry of the forward pass, and those
    that an adapter keeps outside of it.
    """

    def __init__(self, model: nn.Module, trained: nn.Module, kind: str, stage: int) -> None:
        super().__init__()
        self.trained, self.kind = trained, kind
        self.entry = (model,)  # not a second child: ZeRO-3 would add its hooks twice
        if stage == 3 and kind != "reward":
            from deepspeed import zero

            # The log-probs read the head's weight without calling the module, so ZeRO-3 must gather it for
            # this module.
            for parameter in language_model(model).get_output_embeddings().parameters():
                zero.register_external_parameter(self, parameter)

    def forward(self, batch: Batch, outputs: frozenset[str | Read]) -> dict[str | Read, Tensor]:
        return dict(model_outputs(*self.entry, self.kind, batch, outputs).by_name)
