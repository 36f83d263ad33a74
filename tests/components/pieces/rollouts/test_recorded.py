"""Rollout `recorded`: a replayed episode is the episode of a policy with the same actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Request, Sample

EOS = 0
MAZE = {"name": "maze", "layout": ".XG/...", "moves": 6}
PLANS = ["seen", "en", "sseeeen", "seewwe"]
"""Solved in four moves; left off after two; two moves blocked, and cut at the sixth; cut at the sixth."""


class Policy:
    """An engine of characters whose turns in an episode are `script`."""

    weights = "digest"

    def __init__(self, script: Sequence[str] = ()) -> None:
        self.script = script

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        return list(map(ord, prompt.messages[0]["content"] + ">"))

    def encode_reply(self, messages: Sequence[Message], *, ended: bool = True) -> list[int]:
        said = "".join(m["content"] for m in messages)
        return [*([] if ended else [EOS]), *map(ord, f"<{said}>")]

    def encode_text(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(t) for t in tokens if t)

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        found = []
        for request in requests:
            text = self.script[list(request.tokens).count(ord("<"))]
            tokens = (*map(ord, text), EOS)[: request.max_tokens]
            stop = "end" if len(tokens) > len(text) else "length"
            found.append([Sample(tokens, (-1.0,) * len(tokens), stop)] * request.count)
        return found


def prompt(**meta: Any) -> Prompt:
    return Prompt("q", ({"role": "user", "content": "a1"},), meta={"start": "a1", **meta})


def recorded(given: Prompt, *, round: int = 1, policy: Policy | None = None, **options: Any) -> Group:
    rollout = build("rollout", {"name": "recorded", "environment": MAZE, "turns": 6, **options})
    (group,) = rollout([given], Context(models={"policy": policy or Policy()}, round=round))
    return group


def sampled(script: Sequence[str], **limits: int) -> Group:
    spec = {
        "name": "episodes",
        "environment": MAZE,
        "responses_per_prompt": 1,
        "turns": len(script),
        **limits,
    }
    (group,) = build("rollout", spec)([prompt()], Context(models={"policy": Policy(script)}))
    return group


@pytest.mark.parametrize(
    ("actions", "limits"),
    [
        *((plan, {}) for plan in PLANS),
        (["s", "down", "e"], {"max_tokens": 4}),  # four letters and the end of turn are five tokens
        (["s", "down", "e"], {"max_tokens": 5}),
        (["s", "east", "n"], {"max_length": 9}),  # 2, the reply's 4, and 3 of the second action
        (["s", "e", "e"], {"max_length": 8}),
    ],
)
def test_a_replayed_episode_is_that_of_a_policy_with_the_same_actions(
    actions: Sequence[str], limits: dict[str, int]
) -> None:
    (replayed,) = recorded(prompt(log=[actions]), **limits).trajectories
    (own,) = sampled(list(actions)[:6], **limits).trajectories
    assert replayed.inputs == own.inputs and list(replayed.mask) == list(own.mask)
    assert replayed.spans == own.spans and replayed.messages == own.messages
    assert (replayed.stop, replayed.meta["score"]) == (own.stop, own.meta["score"])
    assert (replayed.actor, replayed.logprobs) == ("logged", None)


def test_stops_and_rewards_by_hand() -> None:
    solved, left, cut, _ = recorded(prompt(log=PLANS), count=4).trajectories
    assert [s.reward for s in solved.spans if s.kind == "act"] == [0.0, 0.0, 0.0, 1.0]
    assert (solved.stop, left.stop, cut.stop) == ("environment", "turns", "turns")
    tokens = "".join(chr(t) if t else "." for t in solved.inputs["tokens"])
    assert tokens == "a1>s.<a2>e.<b2>e.<c2>n."
    assert "".join("x" if m else "-" for m in solved.mask) == "---xx----xx----xx----xx"


def test_an_action_is_a_text_where_the_log_says_so() -> None:
    (episode,) = recorded(prompt(log=[["s", "e", "up"]])).trajectories
    assert [m["content"] for m in episode.messages] == ["s", "a2", "e", "b2", "up"]
    assert [s.valid for s in episode.spans if s.kind == "act"] == [True, True, False]


def test_rounds_go_on_in_the_log_and_begin_again() -> None:
    def due(round: int, count: int) -> list[str]:
        group = recorded(prompt(log=["s", "se", "see"]), round=round, count=count)
        return ["".join(m["content"] for m in t.messages[::2]) for t in group.trajectories]

    assert [due(number, 2) for number in (1, 2, 3)] == [["s", "se"], ["see", "s"], ["se", "see"]]
    assert due(0, 1) == due(1, 1) == ["s"] and due(2, 9) == ["s", "se", "see"]


def test_episodes_of_the_policy_come_first() -> None:
    group = recorded(prompt(log=["w", "n"]), count=2, own=2, policy=Policy("seen"))
    assert [t.actor for t in group.trajectories] == ["policy", "policy", "logged", "logged"]
    assert group.trajectories[0].inputs == sampled("seen").trajectories[0].inputs
    assert group.trajectories[0].logprobs is not None and not group.columns


@pytest.mark.parametrize("log", [None, "seen", []])
def test_a_prompt_without_a_log_is_refused(log: object) -> None:
    with pytest.raises(DataError, match=r"meta\.log"):
        recorded(prompt(log=log))


def test_an_environment_that_breaks_fails_the_trajectory() -> None:
    (broken,) = recorded(
        Prompt("q", ({"role": "user", "content": "a1"},), meta={"start": "z", "log": ["s"]})
    ).trajectories
    assert broken.stop == "error" and "expected a start" in broken.meta["error"]
