"""Outputs of the forward pass: their shapes, and those of each kind of model. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

Shape = Literal["row", "step", "vector", "text"]
"""One number a row (B,), one a step (B,T), one vector a row (B,K), or one string a row (in no tensor)."""

SHAPES: dict[str, Shape] = {"logprobs": "step", "entropy": "step", "values": "step", "scores": "row"}

OUTPUTS: dict[str, frozenset[str]] = {
    "policy": frozenset({"logprobs", "entropy"}),
    "policy_with_value": frozenset({"logprobs", "entropy", "values"}),
    "reward": frozenset({"scores"}),
}
