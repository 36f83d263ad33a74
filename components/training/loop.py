"""Processing of sampled groups: annotate, select, prepare. `components/training/rounds.py` makes a round."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, final

from ratchet.components.data.lazy_groups import annotated_in_parts, each, is_lazy, listed, taken
from ratchet.components.errors import DataError
from ratchet.components.piece import build, describe
from ratchet.components.protocols import Memory
from ratchet.components.text.chat import encode
from ratchet.components.training import ranks
from ratchet.components.types import OK, Columns, Context, Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine
    from ratchet.components.text.tokenizer import Tokenizer


class Named(NamedTuple):
    """A built piece with its recipe name, the columns it reads, the models it uses, and whether each group's
    values depend on that group alone.
    """

    name: str
    call: Callable[..., Any]
    reads: frozenset[str] = frozenset()
    models: frozenset[str] = frozenset()
    by_group: bool = False


def pieces(slot: str, specs: Sequence[Mapping[str, Any]]) -> list[Named]:
    """Build the pieces of a slot, in order. Stateful pieces must be built once and reused."""
    return [
        Named(
            spec["name"],
            build(slot, spec),
            described.named("reads", spec),
            described.named("models", spec),
            described.by_group,
        )
        for spec in specs
        for described in [describe(slot, spec["name"])]
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
) -> tuple[Sequence[Group], dict[str, Any]]:
    """Apply annotators in order: each adds columns to every group. Returns the groups and counts.

    A trajectory whose reward failed, was skipped or is not finite is dropped and counted; `DataError` if the
    dropped share exceeds `max_failed`. A group that loses all its trajectories is dropped too.

    Over several ranks, an annotator with `by_group` computes each group once, on one of them (a model's
    log-probs then differ by the rounding of another packing, below 1e-5); other rewards are computed on rank
    0, since they may be slow or nondeterministic; anything else on every rank.
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
    for annotator in annotators:
        written, used = run_annotator(annotator, groups, ctx)
        groups = _extended(groups, written)
        rewards = [
            column for column in written if column.startswith("reward.") and not column.endswith(".status")
        ]
        for column in rewards:
            sources[column] = used | {
                model: weights for read in annotator.reads for model, weights in sources.get(read, {}).items()
            }
        if rewards:
            groups = _rewarded(groups, annotator.name, rewards, counts, max_failed)
    if any(sources.values()):
        groups = each(
            groups,
            lambda _, g: dataclasses.replace(
                g, prompt=dataclasses.replace(g.prompt, meta={**g.prompt.meta, "reward_models": sources})
            ),
        )
    return groups, {"groups": len(groups), "trajectories": sum(len(g.trajectories) for g in groups), **counts}


def _extended(groups: Sequence[Group], written: Columns) -> Sequence[Group]:
    return each(groups, lambda i, g: g.extended({column: values[i] for column, values in written.items()}))


def _rewarded(
    groups: Sequence[Group], name: str, rewards: Sequence[str], counts: Counter[str], max_failed: float
) -> Sequence[Group]:
    """The groups without trajectories of which one of the `rewards` cannot be trained on; counts them by
    reason. `DataError` if the dropped share exceeds `max_failed`, or nothing is left.
    """
    kept: list[list[int]] = []
    total, first = 0, ""
    for group in groups:
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
        kept.append(good)
    lost = total - sum(map(len, kept))
    if total and (lost / total > max_failed or lost == total):
        raise DataError(
            f"{name}: {lost} of {total} rewards failed or were skipped (at most {max_failed:.0%} "
            "allowed, and never all); "
            f"first failure: {first}"
        )
    return taken(groups, kept)


def without_failed(groups: Sequence[Group], max_failed: float = 1.0) -> tuple[Sequence[Group], Counter[str]]:
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
        return listed(groups), Counter()
    kept = [[i for i, t in enumerate(g.trajectories) if t.stop != "error"] for g in groups]
    return taken(groups, kept), Counter({"trajectories that failed": len(failed)})


def run_annotator(annotator: Named, groups: Sequence[Group], ctx: Context) -> tuple[Columns, dict[str, str]]:
    """Columns written by an annotator, and the weights digests of the models it used. How the ranks share the
    work: `annotate_groups`. Collective.
    """

    def work(some: Sequence[Group]) -> tuple[Columns, dict[str, str]]:
        models = RecordingModels(ctx.models)
        return annotator.call(some, dataclasses.replace(ctx, models=models)), models.weights

    shared = ranks.count() > 1 and annotator.by_group and bool(groups)
    if shared and not any(in_lockstep(ctx.models[name]) for name in annotator.models & set(ctx.models)):

        def rows(mine: list[Group]) -> list[tuple[dict[str, Any], dict[str, str]]]:
            written, used = work(mine)
            return [({column: v[i] for column, v in written.items()}, used) for i in range(len(mine))]

        found = ranks.spread(groups, rows, tokens_of)
        columns = {column: [row[column] for row, _ in found] for column in found[0][0]}
        return columns, {model: weights for _, used in found for model, weights in used.items()}
    in_parts = annotator.by_group and is_lazy(groups)
    every = (lambda: annotated_in_parts(groups, work)) if in_parts else (lambda: work(groups))
    return ranks.once(every) if annotator.name.startswith("rewards.") else every()


def in_lockstep(model: Any) -> bool:
    """Whether all ranks must make this model's forward passes together, such as one with sharded weights."""
    return getattr(model, "lockstep", False)


def tokens_of(group: Group) -> int:
    """Tokens of a group: its cost for load balancing."""
    return sum(len(trajectory.mask) for trajectory in group.trajectories)


def score_shared(
    model: Engine, groups: Sequence[Group], outputs: frozenset[str]
) -> list[Mapping[str, list[Any]]]:
    """`Engine.score` with each group on one of the ranks. Collective."""
    if in_lockstep(model):
        return model.score(groups, outputs)
    return ranks.spread(groups, lambda mine: model.score(mine, outputs), tokens_of)


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
) -> tuple[Sequence[Group], dict[str, Any]]:
    """Apply selectors in order and prepend the groups kept from `earlier` rounds. Returns the groups and
    counts of what was dropped, by reason.
    """
    counts: Counter[str] = Counter({"groups before": len(groups)})
    chosen = listed(groups)
    for selector in selectors:
        chosen = selector.call(chosen, dataclasses.replace(ctx, counts=counts))
        counts[f"groups after {selector.name}"] = len(chosen)
    if earlier:
        chosen = [*earlier, *chosen]
        counts["groups of earlier rounds"] = len(earlier)
    return chosen, dict(counts)


def tokenised(groups: Sequence[Group], tokenizer: Tokenizer) -> Sequence[Group]:
    """Groups with the tokens of the answers that a selector wrote as text; sampled tokens are unchanged."""
    return each(groups, lambda _, g: g.replace([encode(tokenizer, g.prompt, t) for t in g.trajectories]))


def prepare_groups(groups: Sequence[Group], annotators: Sequence[Named], ctx: Context) -> Sequence[Group]:
    """Apply the annotators that run on selected groups only (e.g. reference log-probs). Groups of earlier
    rounds are annotated again, since the models may have changed. Collective.
    """
    groups = listed(groups)
    for annotator in annotators if groups else ():
        groups = _extended(groups, run_annotator(annotator, groups, ctx)[0])
    return groups


def texts_read(specs: Sequence[Mapping[str, Any]]) -> int:
    """Number of passes of annotators over each answer: one per model used, and one for an annotator that uses
    no model and reads no column.
    """
    known = [(describe("annotate", spec["name"]), spec) for spec in specs]
    return sum(len(piece.named("models", spec)) or not piece.reads for piece, spec in known)
