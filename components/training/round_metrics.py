"""Metrics of a round of samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from ratchet.components.training.loop import score_shared
from ratchet.components.training.reward_columns import reward_columns
from ratchet.components.types import Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


def round_metrics(
    groups: Sequence[Group],
    specs: Sequence[Mapping[str, Any]],
    *,
    optimised: Sequence[str] = (),
    gold: Sequence[Sequence[float]] | None = None,
    reference: Engine | None = None,
    kl_prompts: int = 0,
    itself: bool = False,
) -> dict[str, float]:
    """Metrics of a round of samples: reward, length, truncation, entropy, diversity, KL to the initial
    policy, gold score.

    Entropy (nats per token) and KL (nats per answer) are Monte Carlo means of -log p and log p - log
    p_initial, with p at temperature 1, over the answers with log-probs; without any they are left out. They
    are unbiased for answers sampled at temperature 1; at lower temperatures they measure surprise and drift
    on the answers actually given. `reward` sums the columns in
    `optimised`; `equal_rewards` is the share of prompts whose answers all have the same reward. `gold`: gold
    score of each answer, one list per group.
    `itself`: the initial policy sampled the answers, so KL is 0.
    """
    numbers = _answers(groups)
    for name in reward_columns(specs):
        values = [value for g in groups for value in g.columns[name]]
        numbers[name] = sum(values) / len(values)
    if optimised:
        numbers["reward"] = sum(numbers[name] for name in optimised)
        numbers["equal_rewards"] = _equal(groups, optimised)
    if kl_prompts and itself:
        numbers["kl"] = 0.0
    elif kl_prompts and reference is not None:
        numbers |= _kl(groups[:kl_prompts], reference)
    if gold is not None:
        numbers["gold"] = fmean(score for row in gold for score in row)
        if len(groups) > 1:
            numbers["gold.error"] = (
                stdev(fmean(row) for row in gold) / len(groups) ** 0.5
            )  # standard error over prompts
    return numbers


def _answers(groups: Sequence[Group]) -> dict[str, float]:
    """Length, truncation, entropy and diversity of the answers."""
    from ratchet.components.evaluation.diversity import distinct_n

    lengths, texts, logprobs, sampled, truncated = [], [], [], 0, 0
    for t in (t for g in groups for t in g.trajectories):
        lengths.append(sum(t.mask))
        texts.append(t.text)
        truncated += t.stop == "length"
        if t.logprobs is not None:
            logprobs.append(sum(p for p, m in zip(t.logprobs, t.mask, strict=False) if m))
            sampled += lengths[-1]
    return {
        "responses": float(len(texts)),
        "length": sum(lengths) / len(texts),
        "truncated": truncated / len(texts),
        **({"entropy": -sum(logprobs) / max(sampled, 1)} if logprobs else {}),
        "distinct_1": distinct_n(texts, 1),
        "distinct_2": distinct_n(texts, 2),
    }


def _equal(groups: Sequence[Group], optimised: Sequence[str]) -> float:
    """Share of prompts whose answers all have the same reward."""
    rewards = [
        [sum(g.columns[name][i] for name in optimised) for i in range(len(g.trajectories))] for g in groups
    ]
    compared = [row for row in rewards if len(row) > 1] or [
        [value for row in rewards for value in row]
    ]  # single-answer groups: compare across prompts
    return sum(len(set(row)) == 1 for row in compared) / len(compared)


def _kl(groups: Sequence[Group], reference: Engine) -> dict[str, float]:
    """Mean of log p - log p_reference over the first answers that have log-probs. Collective."""
    firsts = [g.take([0]) for g in groups if g.trajectories[0].logprobs is not None]
    if not firsts:
        return {}
    scored = score_shared(reference, firsts, frozenset({"logprobs"}))
    totals = [
        sum(
            (p - q) * m
            for p, q, m in zip(
                g.trajectories[0].logprobs or (), row["logprobs"][0], g.trajectories[0].mask, strict=True
            )
        )
        for g, row in zip(firsts, scored, strict=True)
    ]
    return {"kl": sum(totals) / len(totals)}
