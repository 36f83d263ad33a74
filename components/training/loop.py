"""Processing of sampled groups before training, shared by rounds and on-policy steps: annotate, select,
prepare, round metrics.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from statistics import fmean, stdev
from typing import Any, NamedTuple, final

from ratchet.components.errors import DataError
from ratchet.components.piece import build, describe
from ratchet.components.protocols import Memory
from ratchet.components.text.chat import encode
from ratchet.components.training import ranks
from ratchet.components.types import OK, Columns, Context, Group


class Named(NamedTuple):
    """A built piece with its recipe name and the columns it reads."""

    name: str
    call: Callable[..., Any]
    reads: frozenset[str] = frozenset()


def pieces(slot: str, specs: Sequence[Mapping[str, Any]]) -> list[Named]:
    """Build the pieces of a slot, in order. Stateful pieces must be built once and reused."""
    return [
        Named(spec["name"], build(slot, spec), describe(slot, spec["name"]).named("reads", spec))
        for spec in specs
    ]


def stateful_pieces(**slots: Sequence[Named]) -> dict[str, Memory]:
    """The stateful pieces (those with `state()`/`restore()`), keyed for checkpoints as `slot.index.name`."""
    return {
        f"{slot}.{i}.{piece.name}": piece.call
        for slot, named in slots.items()
        for i, piece in enumerate(named)
        if isinstance(piece.call, Memory)
    }


def annotate_groups(
    groups: Sequence[Group], annotators: Sequence[Named], ctx: Context, *, max_failed: float
) -> tuple[list[Group], dict[str, Any]]:
    """Apply annotators in order: each adds columns to every group. Returns the groups and counts.

    A trajectory whose reward failed, was skipped or is not finite is dropped and counted; `DataError` if the
    dropped share exceeds `max_failed`. A group that loses all its trajectories is dropped too.

    Rewards are computed on rank 0 and broadcast, because a reward may be slow, remote or nondeterministic.
    Provenance: the prompt's meta `reward_models` maps each reward column to {model name: weights digest} of
    the reward models behind it, including those of the columns it was derived from.
    """
    given = groups
    groups, counts = without_failed(given, max_failed)
    if given and not groups:
        raise DataError(
            f"rollout: the trajectories of all {len(given)} prompts failed; nothing can be rewarded"
        )
    sources: dict[str, dict[str, str]] = {}
    for name, annotator, reads in annotators:
        work = functools.partial(_run_annotator, annotator, groups, ctx)
        written, used = ranks.once(work) if name.startswith("rewards.") else work()
        groups = [
            g.extended({column: values[i] for column, values in written.items()})
            for i, g in enumerate(groups)
        ]
        rewards = [
            column for column in written if column.startswith("reward.") and not column.endswith(".status")
        ]
        for column in rewards:
            sources[column] = used | {
                model: weights for read in reads for model, weights in sources.get(read, {}).items()
            }
        kept, total, first = [], 0, ""
        for group in groups if rewards else ():
            good = []
            for i in range(len(group.trajectories)):
                total += 1
                bad = next((why for column in rewards if (why := _fault(group, column, i))), None)
                if bad is None:
                    good.append(i)
                else:
                    counts[f"{name} {bad.split(':')[0]}"] += 1
                    first = first or bad
            if len(good) < len(group.trajectories):
                counts["groups short of responses"] += bool(good)
                counts["groups without any reward"] += not good
            if good:
                kept.append(group.take(good))
        lost = total - sum(len(g.trajectories) for g in kept)
        if total and (lost / total > max_failed or lost == total):
            raise DataError(
                f"{name}: {lost} of {total} rewards failed or were skipped (at most {max_failed:.0%} "
                "allowed, and never all); "
                f"first failure: {first}"
            )
        groups = kept if rewards else groups
    if any(sources.values()):
        groups = [
            dataclasses.replace(
                g, prompt=dataclasses.replace(g.prompt, meta={**g.prompt.meta, "reward_models": sources})
            )
            for g in groups
        ]
    return groups, {"groups": len(groups), "trajectories": sum(len(g.trajectories) for g in groups), **counts}


def without_failed(groups: Sequence[Group], max_failed: float = 1.0) -> tuple[list[Group], Counter[str]]:
    """The groups without the trajectories whose environment failed, which have no reward of any kind, and
    their number. `DataError` if their share exceeds `max_failed`.
    """
    failed = [t for group in groups for t in group.trajectories if t.stop == "error"]
    total = sum(len(group.trajectories) for group in groups)
    if total and len(failed) / total > max_failed:
        raise DataError(
            f"rollout: {len(failed)} of {total} trajectories failed (at most {max_failed:.0%} allowed); "
            f"first failure: {failed[0].meta.get('error', 'unknown')}"
        )
    if not failed:
        return list(groups), Counter()
    kept = [g.take([i for i, t in enumerate(g.trajectories) if t.stop != "error"]) for g in groups]
    return [g for g in kept if g.trajectories], Counter({"trajectories that failed": len(failed)})


def _run_annotator(
    annotator: Callable[..., Any], groups: Sequence[Group], ctx: Context
) -> tuple[Columns, dict[str, str]]:
    """Columns written by an annotator, and the weights digests of the models it used."""
    models = RecordingModels(ctx.models)
    return annotator(groups, dataclasses.replace(ctx, models=models)), models.weights


@final
class RecordingModels(Mapping[str, Any]):
    """Mapping of models that records which ones were used, for provenance."""

    def __init__(self, models: Mapping[str, Any]) -> None:
        self._models = models
        self.weights: dict[str, str] = {}

    def __getitem__(self, name: str) -> Any:
        model = self._models[name]
        self.weights[name] = model.weights
        return model

    def __iter__(self):
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def _fault(group: Group, column: str, i: int) -> str:
    """Why a reward cannot be trained on; empty if it can."""
    status, value = group.columns.get(f"{column}.status"), group.columns[column][i]
    if status and status[i] != OK:
        return status[i]
    if value is None:
        return f"skipped: {column} has no value"
    return f"failed: {column} is {value}" if isinstance(value, Real) and not math.isfinite(value) else ""


def select_groups(
    groups: Sequence[Group], selectors: Sequence[Named], ctx: Context, *, earlier: Sequence[Group] = ()
) -> tuple[list[Group], dict[str, Any]]:
    """Apply selectors in order and prepend the groups kept from `earlier` rounds. Returns the groups and
    counts of what was dropped, by reason.
    """
    counts: Counter[str] = Counter({"groups before": len(groups)})
    chosen = list(groups)
    for name, selector, _ in selectors:
        chosen = selector(chosen, dataclasses.replace(ctx, counts=counts))
        counts[f"groups after {name}"] = len(chosen)
    if earlier:
        chosen = [*earlier, *chosen]
        counts["groups of earlier rounds"] = len(earlier)
    return chosen, dict(counts)


def tokenised(groups: Sequence[Group], tokenizer: Any) -> list[Group]:
    """Groups with the tokens of the answers that a selector wrote as text; sampled tokens are unchanged."""
    return [
        group.replace([encode(tokenizer, group.prompt, trajectory) for trajectory in group.trajectories])
        for group in groups
    ]


def prepare_groups(groups: Sequence[Group], annotators: Sequence[Named], ctx: Context) -> list[Group]:
    """Apply the annotators that run on selected groups only (e.g. reference log-probs). Groups of earlier
    rounds are annotated again, since the models may have changed.
    """
    groups = list(groups)
    for _, annotator, _ in annotators if groups else ():
        written = annotator(groups, ctx)
        groups = [
            g.extended({column: values[i] for column, values in written.items()})
            for i, g in enumerate(groups)
        ]
    return groups


def texts_read(specs: Sequence[Mapping[str, Any]]) -> int:
    """Number of passes of annotators over each answer: one per model used, and one for an annotator that uses
    no model and reads no column.
    """
    known = [(describe("annotate", spec["name"]), spec) for spec in specs]
    return sum(len(piece.named("models", spec)) or not piece.reads for piece, spec in known)


def reward_columns(specs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The reward columns that the annotators write, in order."""
    return [
        name
        for spec in specs
        for name in sorted(describe("annotate", spec["name"]).named("writes", spec))
        if name.startswith("reward.") and not name.endswith(".status")
    ]


def optimised_rewards(
    annotate: Sequence[Mapping[str, Any]], select: Sequence[Mapping[str, Any]]
) -> list[str]:
    """The reward columns that training optimises: those read by a selector or by an advantage estimator; the
    last one written if none is.
    """
    shapers = [spec for spec in annotate if not reward_columns([spec])]
    read = {
        column
        for slot, specs in (("select", select), ("annotate", shapers))
        for spec in specs
        for column in describe(slot, spec["name"]).named("reads", spec)
    }
    written = reward_columns(annotate)
    return [column for column in written if column in read] or written[-1:]


def round_metrics(
    groups: Sequence[Group],
    specs: Sequence[Mapping[str, Any]],
    *,
    optimised: Sequence[str] = (),
    gold: Sequence[Sequence[float]] | None = None,
    reference: Any = None,
    kl_prompts: int = 0,
    itself: bool = False,
) -> dict[str, float]:
    """Metrics of a round of samples: reward, length, truncation, entropy, diversity, KL to the initial
    policy, gold score.

    Entropy (nats per token) and KL (nats per answer) are Monte Carlo means of -log p and log p - log
    p_initial, with p at temperature 1. They are unbiased for answers sampled at temperature 1; at lower
    temperatures they measure surprise and drift on the answers actually given. `reward` sums the columns in
    `optimised`; `equal_rewards` is the share of prompts whose answers all have the same reward. `gold`: gold
    score of each answer, one list per group.
    `itself`: the initial policy sampled the answers, so KL is 0.
    """
    from ratchet.components.evaluation.diversity import distinct_n

    rows = [(g, i) for g in groups for i in range(len(g.trajectories))]
    lengths = [sum(g.trajectories[i].mask) for g, i in rows]
    texts = [g.trajectories[i].text for g, i in rows]
    sampled = [
        sum(p for p, m in zip(g.trajectories[i].logprobs or (), g.trajectories[i].mask, strict=False) if m)
        for g, i in rows
    ]
    numbers = {
        "responses": float(len(rows)),
        "length": sum(lengths) / len(rows),
        "truncated": sum(g.trajectories[i].stop == "length" for g, i in rows) / len(rows),
        "entropy": -sum(sampled) / max(sum(lengths), 1),
        "distinct_1": distinct_n(texts, 1),
        "distinct_2": distinct_n(texts, 2),
    }
    for name in reward_columns(specs):
        values = [g.columns[name][i] for g, i in rows]
        numbers[name] = sum(values) / len(values)
    if optimised:
        numbers["reward"] = sum(numbers[name] for name in optimised)
        rewards = [
            [sum(g.columns[name][i] for name in optimised) for i in range(len(g.trajectories))]
            for g in groups
        ]
        compared = [row for row in rewards if len(row) > 1] or [
            [value for row in rewards for value in row]
        ]  # single-answer groups: compare across prompts
        numbers["equal_rewards"] = sum(len(set(row)) == 1 for row in compared) / len(compared)
    if kl_prompts and itself:
        numbers["kl"] = 0.0
    elif kl_prompts and reference is not None:
        firsts = [g.take([0]) for g in groups[:kl_prompts]]
        scored = reference.score(firsts, frozenset({"logprobs"}))
        totals = [
            sum(
                (p - q) * m
                for p, q, m in zip(
                    g.trajectories[0].logprobs or (), row["logprobs"][0], g.trajectories[0].mask, strict=True
                )
            )
            for g, row in zip(firsts, scored, strict=True)
        ]
        numbers["kl"] = sum(totals) / len(totals)
    if gold is not None:
        numbers["gold"] = fmean(score for row in gold for score in row)
        if len(groups) > 1:
            numbers["gold.error"] = (
                stdev(fmean(row) for row in gold) / len(groups) ** 0.5
            )  # standard error over prompts
    return numbers
