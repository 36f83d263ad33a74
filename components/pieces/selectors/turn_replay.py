"""Selector `turn_replay`: replay buffer of turns, with actions sampled anew in their states."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool, Count
from ratchet.components.types import Context, Group, Prompt, Request, Sample, Trajectory


@piece(
    writes=("transition.reward", "transition.done", "trained"),
    models=("policy",),
    paper="arXiv:2402.19446",
)
class TurnReplay:
    """Adds every turn of the episodes to a buffer of the last `capacity` turns, and returns `count` draws
    from it, with replacement: one group a draw. The first trajectory is the turn with what followed it
    (state, action, next state); the second is the same state with an action that the policy takes now, of at
    most `max_tokens` tokens at temperature 1. The loss mask is the turn, its end-of-turn token included. The
    first is `trained` on; the second says what the policy is worth there. With `stored: false` the second is
    alone, for a policy gradient at replayed states, and is trained on. Stateful.

    `transition.reward` is the turn's reward (0 where the environment gave none); `transition.done` is 1 if no
    turn follows in the episode: it ended, was cut at the turn limit, or its last turn was too long. Then no
    value of a next state may be added. That is no bias at a turn limit, since the state is the whole
    conversation, which shows how many turns are left.

    Draws and random numbers depend on seed, round and `stored` only, not on earlier draws.
    """

    def __init__(
        self, *, count: Count = 256, capacity: Count = 100_000, max_tokens: Count = 32, stored: Bool = True
    ) -> None:
        self.count, self.capacity, self.max_tokens, self.stored = count, capacity, max_tokens, stored
        self.memory: list[Group] = []

    def __call__(self, groups: Sequence[Group], ctx: Context) -> list[Group]:
        new = [turn for group in groups for turn in turns_of(group)]
        self.memory = [*self.memory, *new][-self.capacity :]
        ctx.counts["turns stored"] += len(new)
        if not self.memory:
            return []
        key = f"{ctx.seed}/{ctx.round}/{self.stored}"
        drawn = random.Random(key).choices(self.memory, k=self.count)
        engine = ctx.models["policy"]
        requests = [
            Request(state_of(turn), max_tokens=self.max_tokens, seed=seed_of(f"{key}/{number}"))
            for number, turn in enumerate(drawn)
        ]
        fresh = [
            with_action(request.tokens, samples[0], engine.weights)
            for request, samples in zip(requests, engine.generate(requests), strict=True)
        ]
        ctx.counts["turns replayed"] += len(drawn)
        return [
            _transition(turn, action) if self.stored else _action(turn.prompt, action)
            for turn, action in zip(drawn, fresh, strict=True)
        ]

    def state(self) -> dict[str, Any]:
        return {"memory": list(self.memory)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.memory = list(state["memory"])


def turns_of(group: Group) -> list[Group]:
    """The turns of the episodes of a group, each as a group of one: tokens up to the next turn, if there is
    one, else up to the turn's end, and the columns `transition.reward` and `transition.done`.
    """
    found = []
    for trajectory in group.trajectories:
        acts = [span for span in trajectory.spans if span.kind == "act"]
        for span, following in zip(acts, [*acts[1:], None], strict=True):
            end = following.start if following else span.stop
            tokens = list(trajectory.inputs["tokens"][:end])
            mask = [span.start <= step < span.stop for step in range(end)]
            turn = Trajectory((), {"tokens": tokens}, mask, actor="policy", weights=trajectory.weights)
            found.append(
                Group(
                    replace(group.prompt, answer=None, source="", meta={}),
                    (turn,),
                    {
                        "transition.reward": [float(span.reward or 0.0)],
                        "transition.done": [float(following is None)],
                    },
                )
            )
    return found


def state_of(turn: Group) -> list[int]:
    """The tokens before a turn."""
    (trajectory,) = turn.trajectories
    return list(trajectory.inputs["tokens"][: list(trajectory.mask).index(True)])


def with_action(state: Sequence[int], sample: Sample, weights: str) -> Trajectory:
    """A state with an action sampled in it."""
    before = len(state)
    return Trajectory(
        (),
        {"tokens": [*state, *sample.tokens]},
        [False] * before + [True] * len(sample.tokens),
        [0.0] * before + list(sample.logprobs),
        actor="policy",
        weights=weights,
        stop=sample.stop,
    )


def _transition(turn: Group, action: Trajectory) -> Group:
    return Group(
        turn.prompt,
        (*turn.trajectories, action),
        {
            **{name: [*values, 0.0] for name, values in turn.columns.items()},
            "trained": [True, False],
        },
    )


def _action(prompt: Prompt, action: Trajectory) -> Group:
    return Group(prompt, (action,), {"transition.reward": [0.0], "transition.done": [0.0], "trained": [True]})


def seed_of(key: str) -> int:
    """31 bits of a hash."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4]) >> 1
