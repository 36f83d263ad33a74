"""Turn critic: what its heads see, targets worked by hand, and the values of a tiny problem."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from ratchet.components.errors import ContractError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.reading import Reading
from ratchet.components.models.tiny import train_tiny
from ratchet.components.piece import build
from ratchet.components.pieces.objectives.turn_critic import action_values, next_values, state_values
from ratchet.components.training.packing import pack
from ratchet.components.training.roles import Role
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Context, Group, Prompt, Request, Sample, Trajectory

START, A, B, THEN, END = 40, 50, 51, 60, 2
"""Tokens: the first state, the two actions, the observation between the two turns, the end of a turn."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("small")
    train_tiny(path, steps=1, hidden=32, layers=2, batch=4)
    return path


def learner(path: Path, **options: float) -> TorchLearner:
    return TorchLearner(path, kind="policy_with_value", **options)  # pyright: ignore[reportArgumentType]


def turn(state: Sequence[int], action: Sequence[int], after: Sequence[int] = ()) -> Trajectory:
    tokens = [*state, *action, *after]
    mask = [len(state) <= step < len(state) + len(action) for step in range(len(tokens))]
    return Trajectory((), {"tokens": tokens}, mask)


def read(model: torch.nn.Module, trajectory: Trajectory) -> tuple[list[float], list[float], list[float]]:
    """Q_1 and Q_2, V_1 and V_2, and those of the next state."""
    (batch,) = pack([Group(Prompt("p", ()), (trajectory,))], unit="row", tokens=99)
    with torch.no_grad():
        reading = Reading(model, batch)
        q, v, after = (reader(reading)[0].tolist() for reader in (action_values, state_values, next_values))
    return q, v, after


def test_state_values_do_not_see_the_turn_nor_action_values_what_follows(small: Path) -> None:
    model = learner(small).model
    torch.nn.init.normal_(model.value_head.weight, generator=torch.Generator().manual_seed(0))  # pyright: ignore
    q, v, after = read(model, turn([START, 41], [A, END], [THEN, 61]))
    other_q, other_v, _ = read(model, turn([START, 41], [B, B, END], [THEN, 61]))
    assert other_v == pytest.approx(v, abs=1e-5) and min(abs(a - b) for a, b in zip(q, other_q)) > 1e-3
    later_q, later_v, later = read(model, turn([START, 41], [A, END], [62, 63, 64]))
    assert (later_q, later_v) == (pytest.approx(q, abs=1e-5), pytest.approx(v, abs=1e-5))
    assert min(abs(a - b) for a, b in zip(after, later)) > 1e-3
    unended, _, _ = read(model, turn([START, 41], [A], [END, THEN]))
    assert min(abs(a - b) for a, b in zip(q, unended)) > 1e-3, "the end of the turn is part of the action"
    earlier = read(model, turn([START, 42], [A, END], [THEN, 61]))
    assert min(abs(a - b) for a, b in zip((*q, *v), (*earlier[0], *earlier[1]))) > 1e-3
    following = read(model, turn([START, 41, A, END, THEN, 61], [A, END]))
    assert following[1] == pytest.approx(after, abs=1e-5), "the next state's value is that of the next turn"


def test_the_four_heads_read_separate_parts_and_share_the_bias(small: Path) -> None:
    model = learner(small).model
    head = model.value_head  # pyright: ignore[reportAttributeAccessIssue]
    assert read(model, turn([START], [A, END])) == ([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]), "at the start"
    with torch.no_grad():
        head.weight[0, 8:16] = 1.0  # pyright: ignore
    (q_1, q_2), v, after = read(model, turn([START], [A, END]))
    assert q_1 == 0.0 != q_2 and (v, after) == ([0.0, 0.0], [0.0, 0.0])
    with pytest.raises(ContractError, match="value_head: true"):
        read(TorchLearner(small).model, turn([START], [A, END]))


def test_targets_by_hand(small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Q: 0.5 + 0.9 V(s') with V(s') 10 and 20, and 0.5 in the last turn. V: Q(s, a')."""
    from ratchet.components.pieces.scoring import turn_targets as module

    following = [[10.0, 20.0], [-1.0, -1.0], [30.0, 40.0], [-1.0, -1.0]]
    actions = [[7.0, 7.0], [1.0, 2.0], [7.0, 7.0], [3.0, 4.0]]
    monkeypatch.setattr(module, "read_turns", lambda groups, engine, readers: [following, actions])
    pair = (turn([START], [A, END], [THEN]), turn([START], [B, END]))
    groups = [
        Group(Prompt("p", ()), pair, {"transition.reward": [0.5, 0.0], "transition.done": [done, 0.0]})
        for done in (0.0, 1.0)
    ]
    targets = build("annotate", {"name": "scoring.turn_targets", "gamma": 0.9})
    found = targets(groups, Context(models={"critic_target": None}))
    assert found["target.q_1"] == [[pytest.approx(9.5), 0.0], [0.5, 0.0]]
    assert found["target.q_2"] == [[pytest.approx(18.5), 0.0], [0.5, 0.0]]
    assert (found["target.v_1"], found["target.v_2"]) == ([[1.0, 0.0], [3.0, 0.0]], [[2.0, 0.0], [4.0, 0.0]])
    with pytest.raises(ContractError, match="got 1 trajectories"):
        targets([groups[0].take([0])], Context(models={"critic_target": None}))


def test_advantages_take_the_smaller_of_two_values(monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.components.pieces.advantages import turn_values as module

    monkeypatch.setattr(
        module,
        "read_turns",
        lambda groups, engine, readers: [[[3.0, 2.0], [0.0, 5.0]], [[1.0, 4.0], [2.0, 3.0]]],
    )
    groups = [Group(Prompt(name, ()), (turn([START], [A, END]),)) for name in "pq"]
    advantages = build("annotate", {"name": "advantages.turn_values"})
    assert advantages(groups, Context(models={"critic": None}))["advantages"] == [[1.0], [-2.0]]


SECOND = [START, A, END, THEN]
GAMMA = 0.5
POLICY = {(START,): 0.25, tuple(SECOND): 0.75}
"""Probability of the action A."""
EXACT = {
    "second": {"A": 1.0, "B": 0.0, "V": 0.75},
    "first": {"A": GAMMA * 0.75, "B": 0.3, "V": 0.25 * GAMMA * 0.75 + 0.75 * 0.3},
}
"""A in the first state leads to the second without a reward; there A is worth 1 and ends. B ends at once,
with a reward of 0.3 in the first state and 0 in the second. V is the mean of Q under the policy.
"""


class Chooser:
    """A policy that takes A and B in the exact shares of `POLICY`, in any four requests for a state."""

    weights = "digest"

    def __init__(self) -> None:
        self.number = {state: itertools.count() for state in POLICY}

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        found = []
        for request in requests:
            state = tuple(request.tokens)
            action = A if next(self.number[state]) % 4 < 4 * POLICY[state] else B
            found.append([Sample((action, END), (0.0, 0.0), "end")])
        return found


def test_the_critic_reaches_the_values_of_a_problem_of_two_states(small: Path) -> None:
    """Q and V computed by hand, from single turns: nothing in the second state is seen together with the
    first state's action B, and the policy's shares are not those of the buffer.
    """
    section = {
        "fit": {
            "updates": {
                "critic": [
                    {"name": "turn_critic", "label": "turn_critic", "weight": 1.0, "reduce": "unit_mean"}
                ]
            },
            "batch": 32,
            "epochs": 1,
        },
        "select": [{"name": "turn_replay", "count": 32, "max_tokens": 2}],
        "prepare": [],
        "fresh": [{"name": "scoring.turn_targets", "gamma": GAMMA}],
        "target": {"name": "ema", "decay": 0.9},
        "start": 1,
    }
    own = learner(small, learning_rate=3e-3)
    engine = TorchEngine.following(own)
    role = Role(
        "critic",
        section,
        own,
        engine,
        lambda: engine.follow(own),
        TorchEngine(small, kind="policy_with_value"),
    )
    (memory,) = [m for name, m in role.memories.items() if "turn_replay" in name]
    memory.restore(
        {
            "memory": [
                Group(Prompt("p", ()), (path,), {"transition.reward": [reward], "transition.done": [done]})
                for path, reward, done in (
                    (turn([START], [A, END], [THEN]), 0.0, 0.0),
                    (turn([START], [B, END]), 0.3, 1.0),
                    (turn(SECOND, [A, END]), 1.0, 1.0),
                    (turn(SECOND, [B, END]), 0.0, 1.0),
                )
            ]
        }
    )
    policy = Chooser()
    for number in range(1, 201):
        models = {"policy": policy, **role.models}
        role.learn([], Context(models=models, seed=1, round=number), tokenizer=None, tokens=4096)
    assert role.steps == 200
    for name, state in (("first", [START]), ("second", SECOND)):
        for action, token in (("A", A), ("B", B)):
            q, v, _ = read(own.model, turn(state, [token, END]))
            assert q == pytest.approx([EXACT[name][action]] * 2, abs=0.05), (name, action)
            assert v == pytest.approx([EXACT[name]["V"]] * 2, abs=0.05), name
