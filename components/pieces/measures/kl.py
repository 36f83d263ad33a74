"""Measure `kl`: divergence of an arm's model from another model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratchet.components.inference.answers import encoded_anew
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine, ModelEngine


@piece(models=("policy",), paper="arXiv:2312.14925")
def kl(groups: Sequence[Group], ctx: Context, *, model: str = "base") -> list[list[float]]:
    """log pi(y) - log p(y) of an answer y in nats, p being `model`: its mean over sampled answers is an
    unbiased estimate of KL(pi || p). For answers decoded otherwise (greedy, best of n) it is the log-ratio of
    these. Both models score the sampled tokens; a model with another tokenizer or chat template scores the
    text, and then it is the log-ratio of the texts as each model writes them.
    """
    engine = ctx.models["policy"]
    own, tokens = [engine.encode(group) for group in groups], _tokens(engine)
    mine = _sums(engine, own)  # before the other is loaded: an engine may hold one model at a time
    engine = ctx.models[model]
    shared = _tokens(engine) == tokens
    theirs = _sums(engine, own if shared else [encoded_anew(engine, group) for group in groups])
    return [[a - b for a, b in zip(*rows, strict=True)] for rows in zip(mine, theirs, strict=True)]


def _tokens(engine: ModelEngine) -> tuple[Any, ...]:
    """What two models must share for one to score the other's tokens."""
    return engine.contract.eos, engine.contract.template, engine.contract.vocabulary


def _sums(engine: Engine, encoded: Sequence[Group]) -> list[list[float]]:
    """Log-probability of each answer."""
    scored = engine.score(encoded, frozenset({"logprobs"}))
    return [[sum(steps) for steps in row["logprobs"]] for row in scored]
