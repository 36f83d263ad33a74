"""Outputs of the forward pass, their shapes, and which ones each kind of model has. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from torch import Tensor

Shape = Literal["row", "step", "vector", "text"]
"""One number a row (B,), one a step (B,T), one vector a row (B,K), or one string a row (in no tensor)."""

SHAPES: dict[str, Shape] = {"logprobs": "step", "entropy": "step", "values": "step", "scores": "row"}

OUTPUTS: dict[str, frozenset[str]] = {
    "policy": frozenset({"logprobs", "entropy"}),
    "policy_with_value": frozenset({"logprobs", "entropy", "values"}),
    "reward": frozenset({"scores"}),
}


@dataclass(frozen=True, slots=True)
class Outputs:
    """Outputs of a forward pass. Only the requested ones exist; reading another is an `AttributeError`."""

    by_name: Mapping[Any, Tensor]  # by name, or by `Read`

    def __getattr__(self, name: str) -> Tensor:
        try:
            return self.by_name[name]
        except KeyError:
            raise AttributeError(
                f"output {name!r} was not requested; available: {sorted(map(str, self.by_name))}"
            ) from None
