"""Selector `transitions`: replay buffer of transitions, of the policy's own episodes and of logged ones."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.turn_replay import seed_of, state_of, turns_of, with_action
from ratchet.components.recipes.ranges import Bool, Count, Natural, Share
from ratchet.components.types import Context, Group, Request, Trajectory


@piece(
    writes=("transition.reward", "transition.done", "transition.return", "transition.stored"),
    models=("{model}",),
    makes="pairs",
    paper="arXiv:2412.07762",
)
class Transitions:
    """Adds every turn of the episodes to one of two buffers of the last `capacity` turns, one for those of
    the actor `policy` and one for all others, and returns `count` draws, with replacement: a share `logged`
    of them, rounded, from the latter, all from the other buffer while one is empty. Nothing is returned
    before round `after` + 1, so that the buffer can be filled before anything is learned. Stateful.

    A draw is a group of two: the turn with what followed it (state, action, next state), and the same state
    with an action that `model` takes in it now, of at most `max_tokens` tokens at temperature 1. The loss
    mask is the turn, its end-of-turn token included. `transition.stored` is 1 for the first and 0 for the
    second. With `stored: false` the second is alone, for a policy gradient at replayed states.

    `transition.reward` is the turn's reward; `transition.done` is 1 if the environment ended with it. An
    episode that was cut says nothing about what would have followed: its last turn, whose next state is not
    known, is left out, so that no value is ever 0 because of a limit. `transition.return`, of both, is the
    return from the turn on with the discount `gamma`, without what would have followed a cut.

    Draws and random numbers depend on seed, round and `stored` only.
    """

    def __init__(
        self,
        *,
        count: Count = 256,
        capacity: Count = 100_000,
        max_tokens: Count = 32,
        gamma: Share = 0.95,
        logged: Share = 0.0,
        after: Natural = 0,
        stored: Bool = True,
        model: str = "policy",
    ) -> None:
        self.count, self.capacity, self.max_tokens, self.gamma = count, capacity, max_tokens, gamma
        self.logged, self.after, self.stored, self.model = logged, after, stored, model
        self.own: list[Group] = []
        self.others: list[Group] = []

    def __call__(self, groups: Sequence[Group], ctx: Context) -> list[Group]:
        single = [group.take([i]) for group in groups for i in range(len(group.trajectories))]
        for episode in single:
            turns = transitions_of(episode, self.gamma)
            mine = episode.trajectories[0].actor == "policy"
            ctx.counts["turns stored" if mine else "logged turns stored"] += len(turns)
            (self.own if mine else self.others).extend(turns)
        del self.own[: -self.capacity], self.others[: -self.capacity]
        if ctx.round <= self.after or not (self.own or self.others):
            return []
        key = f"{ctx.seed}/{ctx.round}/{self.stored}"
        drawn = self._draws(random.Random(key))
        engine = ctx.models[self.model]
        requests = [
            Request(state_of(turn), max_tokens=self.max_tokens, seed=seed_of(f"{key}/{number}"))
            for number, turn in enumerate(drawn)
        ]
        taken = [
            with_action(request.tokens, samples[0], engine.weights)
            for request, samples in zip(requests, engine.generate(requests), strict=True)
        ]
        ctx.counts["turns replayed"] += len(drawn)
        return [self._group(turn, action) for turn, action in zip(drawn, taken, strict=True)]

    def _draws(self, rng: random.Random) -> list[Group]:
        share = self.logged if self.own and self.others else float(not self.own)
        number = round(share * self.count)
        drawn = rng.choices(self.others, k=number) if number else []
        return drawn + (rng.choices(self.own, k=self.count - number) if number < self.count else [])

    def _group(self, turn: Group, action: Trajectory) -> Group:
        both = {**{name: [*values, *values] for name, values in turn.columns.items()}}
        both |= {"transition.stored": [1.0, 0.0]}
        pair = Group(turn.prompt, (*turn.trajectories, action), both)
        return pair if self.stored else pair.take([1])

    def state(self) -> dict[str, Any]:
        return {"own": list(self.own), "others": list(self.others)}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.own, self.others = list(state["own"]), list(state["others"])


def transitions_of(episode: Group, gamma: float) -> list[Group]:
    """The turns of a group of one episode, as groups of one with the columns `transition.reward`, `done` and
    `return`; without the last one of an episode that the environment did not end.
    """
    turns, value = turns_of(episode), 0.0
    ended = episode.trajectories[0].stop == "environment"
    found = []
    for turn in reversed(turns):
        value = turn.columns["transition.reward"][0] + gamma * value
        found.append(dataclasses.replace(turn, columns={**turn.columns, "transition.return": [value]}))
    found.reverse()
    return found if ended else found[:-1]
