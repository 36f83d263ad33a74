"""Selector `transitions`: returns and ends by hand, the two buffers, and the rounds that only fill them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.selectors.transitions import transitions_of
from ratchet.components.storage.state import load_state, save_state
from ratchet.components.types import Context, Group, Prompt, Request, Sample, Span, Trajectory

A, FRESH, END, SEEN = 50, 51, 2, 60
"""Tokens: a stored action, an action taken now, the end of a turn, an observation."""


class Policy:
    weights = "digest"

    def __init__(self) -> None:
        self.requests = list[Request]()

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        self.requests += requests
        return [[Sample((FRESH, END), (-1.0, -0.5), "end")] for _ in requests]


def episode(
    rewards: Sequence[float], *, stop: str = "environment", actor: str = "policy", start: int = 40
) -> Group:
    """Turns of two tokens each, with an observation after all but the last."""
    tokens, spans = [start], []
    for number, reward in enumerate(rewards):
        if number:
            spans.append(Span(len(tokens), len(tokens) + 1, actor="environment", kind="observe"))
            tokens.append(SEEN)
        spans.append(Span(len(tokens), len(tokens) + 2, reward))
        tokens += [A, END]
    path = Trajectory((), {"tokens": tokens}, actor=actor, spans=tuple(spans), stop=stop)  # pyright: ignore[reportArgumentType]
    return Group(Prompt(f"p{start}", ()), (path,))


def columns(groups: Sequence[Group]) -> list[tuple[float, ...]]:
    names = ("transition.reward", "transition.done", "transition.return")
    return [tuple(group.columns[name][0] for name in names) for group in groups]


def test_returns_and_ends_by_hand() -> None:
    """0.5 + 0.5 x 0 + 0.25 x 1; the last turn of an episode that was cut has no next state."""
    found = transitions_of(episode([0.5, 0.0, 1.0]), gamma=0.5)
    assert columns(found) == [(0.5, 0.0, 0.75), (0.0, 0.0, 0.5), (1.0, 1.0, 1.0)]
    assert [list(g.trajectories[0].inputs["tokens"]) for g in found] == [
        [40, A, END, SEEN],
        [40, A, END, SEEN, A, END, SEEN],
        [40, A, END, SEEN, A, END, SEEN, A, END],
    ]
    for stop in ("turns", "length"):
        cut = transitions_of(episode([0.5, 0.0, 1.0], stop=stop), gamma=0.5)
        assert columns(cut) == [(0.5, 0.0, 0.75), (0.0, 0.0, 0.5)], "the reward counts, the end does not"


def drawn(groups: Sequence[Group], *, round: int = 1, **options: Any) -> list[Group]:
    selector = build("select", {"name": "transitions", "count": 40, **options})
    return selector(groups, Context(models={"policy": Policy(), "clone": Policy()}, seed=1, round=round))


def test_a_draw_is_the_stored_turn_and_an_action_taken_now() -> None:
    counts, policy = Counter[str](), Policy()
    selector = build("select", {"name": "transitions", "count": 40, "gamma": 0.5, "max_tokens": 3})
    found = selector(
        [episode([0.0, 1.0])], Context(models={"policy": policy}, seed=1, round=1, counts=counts)
    )
    assert counts == {"turns stored": 2, "turns replayed": 40}
    ends = set()
    for group in found:
        stored, taken = group.trajectories
        state = [40] if len(stored.inputs["tokens"]) == 4 else [40, A, END, SEEN]
        ends.add(len(state))
        assert list(stored.inputs["tokens"])[: len(state) + 2] == [*state, A, END]
        assert list(taken.inputs["tokens"]) == [*state, FRESH, END]
        assert list(taken.mask) == [False] * len(state) + [True, True]
        last = len(state) == 4
        assert group.columns == {
            "transition.reward": [float(last)] * 2,
            "transition.done": [float(last)] * 2,
            "transition.return": [1.0 if last else 0.5] * 2,
            "transition.stored": [1.0, 0.0],
        }
    assert ends == {1, 4}, "both turns are drawn"
    assert len({r.seed for r in policy.requests}) == 40
    assert {(r.max_tokens, r.temperature) for r in policy.requests} == {(3, 1.0)}


def test_actions_alone_are_for_a_policy_gradient() -> None:
    for group in drawn([episode([0.0, 1.0])], stored=False):
        (taken,) = group.trajectories
        assert list(taken.inputs["tokens"])[-2:] == [FRESH, END]
        assert list(taken.logprobs or ())[-2:] == [-1.0, -0.5]


def test_the_named_model_acts() -> None:
    clone = Policy()
    selector = build("select", {"name": "transitions", "count": 3, "model": "clone"})
    selector([episode([1.0])], Context(models={"clone": clone}, seed=1, round=1))
    assert len(clone.requests) == 3


@pytest.mark.parametrize(("logged", "expected"), [(0.0, 0), (0.25, 10), (0.5, 20), (1.0, 40)])
def test_the_share_of_logged_turns(logged: float, expected: int) -> None:
    own = [episode([0.0, 1.0]) for _ in range(9)]
    found = drawn([*own, episode([0.0, 1.0], actor="logged", start=41)], logged=logged)
    assert sum(group.prompt.id == "p41" for group in found) == expected
    assert len(drawn([episode([1.0], actor="logged")], logged=logged)) == 40, "nothing else is there"
    assert len(drawn(own, logged=logged)) == 40


def test_the_first_rounds_only_fill_the_buffer() -> None:
    selector = build("select", {"name": "transitions", "count": 40, "after": 2})
    found = [
        selector([episode([1.0], start=40 + n)], Context(models={"policy": Policy()}, seed=1, round=n))
        for n in (1, 2, 3)
    ]
    assert [len(groups) for groups in found] == [0, 0, 40]
    assert {group.prompt.id for group in found[2]} == {"p41", "p42", "p43"}, "of all rounds so far"


def test_both_buffers_keep_the_last_turns_and_survive_a_checkpoint(tmp_path: Path) -> None:
    def context(number: int) -> Context:
        return Context(models={"policy": Policy()}, seed=1, round=number)

    through, resumed = (
        build("select", {"name": "transitions", "count": 40, "capacity": 2, "logged": 0.5}) for _ in range(2)
    )
    through([episode([0.0, 0.0, 1.0]), episode([0.0, 0.0, 0.5], actor="logged", start=41)], context(1))
    assert columns(through.own) == [(0.0, 0.0, 0.95), (1.0, 1.0, 1.0)]
    assert columns(through.others) == [(0.0, 0.0, 0.475), (0.5, 1.0, 0.5)]
    save_state(tmp_path / "state", {"memory": through.state()})
    resumed.restore(load_state(tmp_path / "state")["memory"])
    assert resumed([], context(2)) == through([], context(2))
