"""Selectors with a buffer of episodes: turns with fresh actions, and the best episodes so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.selectors.turn_replay import turns_of
from ratchet.components.storage.state import load_state, save_state
from ratchet.components.types import Context, Group, Message, Prompt, Request, Sample, Trajectory

EOS = 0


class Policy:
    """An engine of characters. Its turns in an episode are `script`; in a state that it is asked for later it
    answers "f". Requests are kept.
    """

    weights = "digest"

    def __init__(self, script: Sequence[str] = (), fresh: str = "f") -> None:
        self.script, self.fresh, self.requests = script, fresh, list[Request]()

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        return list(map(ord, prompt.messages[0]["content"] + ">"))

    def encode_reply(self, messages: Sequence[Message]) -> list[int]:
        return list(map(ord, "<" + messages[0]["content"] + ">"))

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(t) for t in tokens if t)

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        self.requests += requests
        turns = [self.script[list(r.tokens).count(ord("<"))] if self.script else self.fresh for r in requests]
        whole = [[*map(ord, text), EOS] for text in turns]
        return [
            [
                Sample(
                    tuple(tokens[: r.max_tokens]),
                    (-1.0,) * min(r.max_tokens, len(tokens)),
                    "end" if len(tokens) <= r.max_tokens else "length",
                )
            ]
            for r, tokens in zip(requests, whole, strict=True)
        ]


def episode(script: Sequence[str], *, attempts: int = 9, turns: int = 3, name: str = "q") -> Group:
    environment = {"name": "retry", "feedback": "No.", "attempts": attempts}
    spec = {"name": "episodes", "environment": environment, "responses_per_prompt": 1, "turns": turns}
    prompt = Prompt(name, ({"role": "user", "content": "q"},), answer="7")
    (group,) = build("rollout", {**spec, "max_tokens": 3})(
        [prompt], Context(models={"policy": Policy(script)})
    )
    return group


def text(tokens: Sequence[int]) -> str:
    return "".join(chr(t) if t else "." for t in tokens)


def shown(group: Group) -> list[tuple[str, str]]:
    """Tokens of each trajectory, and those in its loss mask."""
    return [
        (text(t.inputs["tokens"]), text([x for x, m in zip(t.inputs["tokens"], t.mask, strict=True) if m]))
        for t in group.trajectories
    ]


def test_turns_of_an_episode_worked_by_hand() -> None:
    found = turns_of(episode(["1", "7"]))
    assert [shown(turn) for turn in found] == [
        [("q>1.<No.>", "1.")],
        [("q>1.<No.>7.", "7.")],
    ], "the end-of-turn token belongs to the turn, and the next state ends where the next turn begins"
    assert [turn.columns for turn in found] == [
        {"transition.reward": [0.0], "transition.done": [0.0]},
        {"transition.reward": [1.0], "transition.done": [1.0]},
    ]


@pytest.mark.parametrize(
    ("script", "attempts", "stop"),
    [
        (["1", "2", "3"], 3, "environment"),
        (["1", "2", "3"], 9, "turns"),
        (["1", "2", "12345"], 9, "length"),
    ],
)
def test_the_last_turn_of_an_episode_is_done_however_it_ended(
    script: list[str], attempts: int, stop: str
) -> None:
    group = episode(script, attempts=attempts)
    assert group.trajectories[0].stop == stop
    found = turns_of(group)
    assert [turn.columns["transition.done"][0] for turn in found] == [0.0, 0.0, 1.0]
    assert not any(turn.columns["transition.reward"][0] for turn in found)
    assert found[-1].trajectories[0].mask[-1], "no next state is shown"


def replay(count: int = 6, **options: object):
    return build("select", {"name": "turn_replay", "count": count, "max_tokens": 4, **options})


def test_a_draw_is_the_stored_turn_and_a_fresh_action_in_its_state() -> None:
    engine, counts = Policy(), Counter[str]()
    found = replay(12)(
        [episode(["1", "7"])], Context(models={"policy": engine}, seed=1, round=3, counts=counts)
    )
    assert counts == {"turns stored": 2, "turns replayed": 12}
    first = [("q>1.<No.>", "1."), ("q>f.", "f.")]
    second = [("q>1.<No.>7.", "7."), ("q>1.<No.>f.", "f.")]
    assert all(shown(group) in (first, second) for group in found)
    assert {len(group.trajectories[1].inputs["tokens"]) for group in found} == {4, 11}, "both are drawn"
    for group in found:
        reward = float(shown(group) == second)
        assert group.columns == {
            "transition.reward": [reward, 0.0],
            "transition.done": [reward, 0.0],
            "trained": [True, False],
        }
    assert len({request.seed for request in engine.requests}) == 12 and engine.requests[0].temperature == 1.0


def test_fresh_actions_alone_have_log_probs_and_other_draws() -> None:
    context = Context(models={"policy": Policy()}, seed=1, round=3)
    alone = replay(12, stored=False)([episode(["1", "7"])], context)
    assert all(shown(group) in ([("q>f.", "f.")], [("q>1.<No.>f.", "f.")]) for group in alone)
    (t,) = alone[0].trajectories
    assert t.logprobs is not None and list(t.logprobs)[-2:] == [-1.0, -1.0]
    assert [bool(m) for m in t.mask] == [p != 0 for p in t.logprobs]
    both = replay(12)([episode(["1", "7"])], context)
    lengths = [[len(g.trajectories[-1].inputs["tokens"]) for g in groups] for groups in (alone, both)]
    assert lengths[0] != lengths[1]


def test_the_buffer_is_never_emptied_up_to_its_capacity_and_survives_a_checkpoint(tmp_path: Path) -> None:
    def context(number: int) -> Context:
        return Context(models={"policy": Policy()}, seed=1, round=number)

    through, small = replay(), replay(capacity=2)
    assert replay()([], context(1)) == [], "nothing to replay"
    for selector in (through, small):
        selector([episode(["1", "7"])], context(1))
        selector([episode(["2", "3", "7"], name="r")], context(2))
    assert (len(through.memory), len(small.memory)) == (5, 2)
    assert [turn.prompt.id for turn in through.memory] == ["q", "q", "r", "r", "r"]
    save_state(tmp_path / "state", {"memory": through.state()})
    resumed = replay()
    resumed.restore(load_state(tmp_path / "state")["memory"])
    assert resumed([], context(3)) == through([], context(3))


def returned(name: str, *returns: float) -> Group:
    answers = tuple(Trajectory((), meta={"name": f"{name}{i}"}) for i in range(len(returns)))
    return Group(Prompt(name, ()), answers, {"reward.environment": list(returns)})


def test_best_episodes_are_those_of_all_rounds_and_ties_count() -> None:
    def drawn(groups: Sequence[Group], share: float) -> set[str]:
        made = build("select", {"name": "best_episodes", "share": share, "count": 60})
        for number, group in enumerate(groups):
            found = made([group], Context(seed=1, round=number))
        assert len(found) == 60 and all(len(group.trajectories) == 1 for group in found)
        return {group.trajectories[0].meta["name"] for group in found}

    rounds = [returned("a", 3.0, 1.0, 0.0, 0.0), returned("b", 1.0, 2.0, 1.0, 0.0)]
    assert drawn(rounds, 0.125) == {"a0"}
    assert drawn(rounds, 0.25) == {"a0", "b1"}
    assert drawn(rounds, 0.375) == {"a0", "b1", "a1", "b0", "b2"}, "the third best has two equals"
    assert drawn(rounds[1:], 0.1) == {"b1"}, "at least one"


def test_best_episodes_survive_a_checkpoint(tmp_path: Path) -> None:
    through, resumed = (build("select", {"name": "best_episodes", "count": 8}) for _ in range(2))
    through([returned("a", 3.0, 1.0)], Context(seed=1, round=1))
    save_state(tmp_path / "state", {"memory": through.state()})
    resumed.restore(load_state(tmp_path / "state")["memory"])
    later = ([returned("b", 2.0, 0.5)], Context(seed=1, round=2))
    assert resumed(*later) == through(*later) and len(through.memory) == 4
