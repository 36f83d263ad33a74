"""A round of online learning in its parts: sample, score, select, update. By rounds each part is a stage of
its own; in on-policy steps `one_round` calls them in memory. A piece cannot tell which.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.protocols import Memory
from ratchet.components.storage.state import load_state, save_state
from ratchet.components.training import ranks
from ratchet.components.training.loop import (
    Named,
    annotate_groups,
    pieces,
    prepare_groups,
    select_groups,
    stateful_pieces,
    tokenised,
)
from ratchet.components.training.objectives import Part
from ratchet.components.training.postconditions import check_rollout
from ratchet.components.training.steps import step_groups
from ratchet.components.training.trainer import one_step
from ratchet.components.types import Context, Group, Prompt

if TYPE_CHECKING:
    from ratchet.components.protocols import Learner
    from ratchet.components.text.tokenizer import Tokenizer

PARTS = {
    "prompts": "prompts",
    "rollout": "rollout",
    "annotate": "annotate",
    "select": "select",
    "prepare": "annotate",
}
"""Keys of an online section with the pieces of a round -> their slots."""
SAMPLED = 2**24
"""Tokens of answers that a round samples at a time; as Python numbers they take about 1 GB."""
MEMORIES = "memories"
"""Folder of a stage's product with the state of its pieces."""


@final
class Pieces(Mapping[str, list[Named]]):
    """The built pieces of an online section, or of those of its parts that `options` has, by `PARTS`. They
    are built once, since some have state.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        given = {part: options[part] for part in PARTS if part in options}
        self._named = {
            part: pieces(PARTS[part], [specs] if isinstance(specs, Mapping) else specs)
            for part, specs in given.items()
        }
        self.memories: dict[str, Memory] = stateful_pieces(**self._named)

    def __getitem__(self, part: str) -> list[Named]:
        return self._named[part]

    def __iter__(self):
        return iter(self._named)

    def __len__(self) -> int:
        return len(self._named)


def restore_memories(memories: Mapping[str, Memory], product: Path) -> None:
    """Continue from the state in the product of the same stage of the round before. A piece that this round
    names anew starts afresh.
    """
    saved = load_state(product / MEMORIES) if (product / MEMORIES).is_dir() else {}
    for name, piece in memories.items():
        if name in saved:
            piece.restore(saved[name])


def save_memories(memories: Mapping[str, Memory], product: Path) -> None:
    """Write the state of the pieces that have one into a stage's product."""
    if memories and ranks.first():
        save_state(product / MEMORIES, {name: piece.state() for name, piece in memories.items()})


def choose(
    prompts: Sequence[Prompt], built: Pieces, options: Mapping[str, Any], ctx: Context
) -> list[Prompt]:
    """The prompts of a round."""
    (sampler,) = built["prompts"]
    return sampler.call(
        prompts,
        count=options["prompts_per_round"],
        round=ctx.round,
        rounds=options["rounds"],
        seed=ctx.seed,
    )


def sample(
    prompts: Sequence[Prompt], built: Pieces, options: Mapping[str, Any], ctx: Context
) -> Sequence[Group]:
    """The policy's answers to the prompts of a round, which the ranks share. `DataError` if some are missing.
    Collective.
    """
    (rollout,) = built["rollout"]
    return check_rollout(ranks.spread(prompts, lambda mine: rollout.call(mine, ctx)), options)


def sample_to(
    path: Path, prompts: Sequence[Prompt], built: Pieces, options: Mapping[str, Any], ctx: Context
) -> Sequence[Group]:
    """As `sample`, written to a file of groups: at most `SAMPLED` tokens are sampled and held at a time."""
    (rollout,) = built["rollout"]
    spec = options["rollout"]
    each = max(1, spec.get("responses_per_prompt", 1) * spec.get("max_tokens", 1))
    size = max(1, SAMPLED // each)

    def answers() -> Iterator[Group]:
        for first in range(0, len(prompts), size):
            yield from rollout.call(prompts[first : first + size], ctx)

    write_groups(path, answers())
    return check_rollout(read_groups(path), options)


def learn_prompts(groups: Sequence[Group], built: Pieces) -> None:
    """Update an adaptive prompt sampler with the scored groups of a round."""
    (sampler,) = built["prompts"]
    if hasattr(sampler.call, "update"):
        sampler.call.update(groups)


def score(
    groups: Sequence[Group], built: Pieces, options: Mapping[str, Any], ctx: Context
) -> tuple[Sequence[Group], dict[str, Any]]:
    """The answers with rewards and other columns, and counts. Collective."""
    return annotate_groups(groups, built["annotate"], ctx, max_failed=options["max_failed"])


def select(
    groups: Sequence[Group],
    built: Pieces,
    ctx: Context,
    tokenizer: Tokenizer,
    *,
    earlier: Sequence[Group] = (),
) -> tuple[Sequence[Group], dict[str, Any]]:
    """The tokenised groups to train on, and counts."""
    chosen, counts = select_groups(groups, built["select"], ctx, earlier=earlier)
    return tokenised(chosen, tokenizer), counts


def prepare(groups: Sequence[Group], built: Pieces, ctx: Context) -> Sequence[Group]:
    """The chosen groups with the columns that the objectives read from other models. Collective."""
    return prepare_groups(groups, built["prepare"], ctx)


def update(
    learners: Mapping[str, Learner],
    updates: Mapping[str, Sequence[Part]],
    groups: Sequence[Group],
    options: Mapping[str, Any],
    *,
    tokens: int,
    seed: int,
    at: int,
    before: Callable[[Sequence[Group]], Sequence[Group]] | None = None,
    after: Callable[[], None] | None = None,
) -> tuple[dict[str, float], int]:
    """`epochs` passes over the chosen groups: metrics of the last optimizer step, and the number of steps.
    `options` is a section `fit`. `at`: rounds of the learning-rate schedule before this one, whose updates
    share the next, however many they are. `before` adds columns to the groups of each optimizer step, under
    the weights of that moment; `after` follows each step. Collective.
    """
    line: dict[str, float] = {}
    steps = math.ceil(len(groups) / options["batch"]) * options["epochs"]
    for step in range(steps):
        some = step_groups(groups, options, step, seed)
        line |= one_step(
            learners,
            updates,
            before(some) if before else some,
            tokens=tokens,
            at=(at + step / steps, 1 / steps),
        )
        if after:
            after()
    return line, steps


@dataclass
class Round:
    """The groups of a round in memory after each part, and its metrics."""

    prompts: list[Prompt]
    sampled: Sequence[Group]
    scored: Sequence[Group] = field(default_factory=list)
    chosen: Sequence[Group] = field(default_factory=list)
    line: dict[str, float] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)
    rolled_back: bool = False
    updates: int = 0


def one_round(
    prompts: Sequence[Prompt],
    built: Pieces,
    options: Mapping[str, Any],
    ctx: Context,
    *,
    tokenizer: Tokenizer,
    check_sampled: Callable[[Sequence[Group]], Mapping[str, float]],
    check_scored: Callable[[Sequence[Group]], tuple[Mapping[str, float], bool]],
    learn_roles: Callable[[Sequence[Group], Context], Mapping[str, float]],
    learn: Callable[[Sequence[Group], Context], tuple[Mapping[str, float], int]],
) -> Round:
    """One round in memory: sample, score, update the further roles, select, update the policy.
    `check_sampled` measures the fresh answers; `check_scored` measures the scored ones and says whether a
    health rule rolled the policy back, so that nothing is learned from them. Collective.
    """
    chosen = choose(prompts, built, options, ctx)
    this = Round(chosen, sample(chosen, built, options, ctx))
    this.line |= check_sampled(this.sampled)
    this.scored, counts = score(this.sampled, built, options, ctx)
    learn_prompts(this.scored, built)
    measured, this.rolled_back = check_scored(this.scored)
    selected: dict[str, Any] = {}
    if not this.rolled_back:
        this.line |= learn_roles(this.scored, ctx)
        this.chosen, selected = select(this.scored, built, ctx, tokenizer)
        this.chosen = prepare(this.chosen, built, ctx)
    this.counts = {**counts, **selected}
    this.line |= {f"rollout/{k}": v for k, v in measured.items()}
    this.line |= {"health/rolled_back": float(this.rolled_back), "select/groups": float(len(this.chosen))}
    this.line |= {f"rollout/{k}": float(v) for k, v in counts.items()}
    this.line |= {f"select/{k}": float(v) for k, v in selected.items()}
    if this.chosen and ctx.round >= options["start"]:
        line, this.updates = learn(this.chosen, ctx)
        this.line |= line
    return this
