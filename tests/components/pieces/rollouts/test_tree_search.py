"""Tree search on a policy and a value model given by tables, whose iterations are worked out by hand."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.components.inference.search_tree import Node, back_up, bound
from ratchet.components.piece import build
from ratchet.components.pieces.rollouts import tree_search as module
from ratchet.components.types import Context, Group, Prompt, Sample

END = 0
PROMPT = Prompt("p", ({"role": "user", "content": "go"},), answer="secret")
STEPS = {"": "a, b,", "b,": "c g,", "a,": "d, e,", "a,e,": "f,"}
"""Steps that the policy takes after each answer, in turn; "c" ends the answer, and so does all else."""
VALUES = {"a,": 0.2, "b,": 0.6, "b,c": 0.8, "a,d,": 0.1, "a,e,": 0.3, "a,e,f,": 0.1, "b,g,": 0.5}


class Policy:
    """Tokens are characters; 0 ends an answer. Sample i of a request is step i of the table, round and
    round.
    """

    contract, weights = SimpleNamespace(eos=(END,)), "weights"

    def __init__(self, steps: dict[str, str]) -> None:
        self.steps, self.requests = steps, []

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        return [1]

    def decode(self, tokens: Any) -> str:
        return "".join(chr(t) for t in tokens if t > 1)

    def generate(self, requests: Any) -> list[list[Sample]]:
        self.requests += requests
        return [[self.one(request, i) for i in range(request.count)] for request in requests]

    def one(self, request: Any, i: int) -> Sample:
        known = self.steps.get(self.decode(request.tokens), "z").split()
        step = known[i % len(known)]
        tokens = [*map(ord, step)] + [END] * (not step.endswith(","))
        stop = "end" if len(tokens) <= request.max_tokens else "length"
        tokens = tokens[: request.max_tokens]
        return Sample(tuple(tokens), (-1.0,) * len(tokens), stop)


@pytest.fixture(autouse=True)
def values(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """The value model: a table by the text of the answer so far, which a test may change."""
    known = dict(VALUES)

    def state_values(engine: Any, states: Any) -> list[float]:
        assert engine == "critic"
        return [known.get("".join(chr(t) for t in state if t > 1), 0.0) for state in states]

    monkeypatch.setattr(module, "state_values", state_values)
    return known


def searched(prompts: Any = (PROMPT,), steps: Any = STEPS, **options: Any) -> tuple[list[Group], Policy]:
    policy = Policy(steps)
    given = {"name": "tree_search", "value": "critic", "separators": [","], "branch": 2, "roll_steps": 1}
    rollout = build("rollout", {**given, **options})
    return rollout(list(prompts), Context(models={"policy": policy, "critic": "critic"})), policy


def test_three_iterations_grow_the_tree_that_is_worked_out_by_hand() -> None:
    """1: a (0.2), b (0.6); b is followed to c (0.8): V_b = 0.7, V_root = 0.7. 2: a, unvisited, has 1.2 and b
    0.7: a-d (0.1), a-e (0.3), followed to f (0.1): V = 0.2 for e and a, V_root = 0.45. 3: b has 1.52 and a
    1.02: c again, which is the same child, and g (0.5); c has ended: V_b = 0.8, V_root = (0.2 + 2 x 0.8) / 3.
    """
    (group,), policy = searched(iterations=3, leaves=True, gate=None)
    assert [t.text for t in group.trajectories] == ["a,d,", "a,e,f,", "b,c", "b,g,"]
    assert [t.stop for t in group.trajectories] == ["length", "length", "end", "length"]
    assert [t.parent for t in group.trajectories] == [None, (0, 3), (0, 1), (2, 3)]
    spans = [[(s.start, s.stop) for s in t.spans] for t in group.trajectories]
    assert spans == [[(1, 3), (3, 5)], [(1, 3), (3, 5), (5, 7)], [(1, 3), (3, 5)], [(1, 3), (3, 5)]]
    numbers = [[(s.numbers["value"], s.numbers["visits"]) for s in t.spans] for t in group.trajectories]
    a, b = (pytest.approx(0.2), 1), (pytest.approx(0.8), 2)
    assert numbers[0] == [a, (0.1, 0)] and numbers[1] == [a, (pytest.approx(0.2), 1), (0.1, 0)]
    assert numbers[2] == [b, (0.8, 1)] and numbers[3] == [b, (0.5, 0)]
    assert {(t.meta["generated"], t.meta["valued"]) for t in group.trajectories} == {(16, 7)}
    assert sum(request.count for request in policy.requests) == 8
    assert group.trajectories[2].inputs["tokens"] == [1, *map(ord, "b,c"), END]
    assert group.trajectories[2].mask == [False, True, True, True, True]


def test_a_simulation_counts_with_the_weight_alpha() -> None:
    """V of b is 3/4 of its own 0.6 and 1/4 of the 0.8 that its simulation met."""
    (group,), _ = searched(iterations=1, leaves=True, gate=None, alpha=0.25)
    (b, _) = group.trajectories[1].spans
    assert group.trajectories[1].text == "b,c" and b.numbers == {"value": pytest.approx(0.65), "visits": 1}


def test_bounds_and_back_up_follow_the_paper() -> None:
    assert bound(Node([], [], value=0.5, visits=2), 8, 0.7) == pytest.approx(
        0.5 + 0.7 * math.sqrt(math.log(8))
    )
    assert bound(Node([], [], value=0.5), 8, 0.7) == 1.5
    root = Node([], [], value=0.1, visits=3)
    leaf = Node([], [], parent=root, value=0.9, visits=1)
    root.children = [leaf, Node([], [], parent=root, value=0.2, visits=3), Node([], [], value=0.4)]
    back_up(leaf)
    assert (leaf.visits, leaf.value, root.visits) == (2, 0.9, 4)
    assert root.value == pytest.approx((2 * 0.9 + 3 * 0.2) / 5), "a child without visits does not count"


def test_the_search_stops_at_the_gate_and_answers_with_what_it_selected(values: dict[str, float]) -> None:
    """In iteration 4 the bounds lead to c, which has ended, with 0.8."""
    (group,), _ = searched(gate=0.8)
    (answer,) = group.trajectories
    assert (answer.text, answer.stop, answer.meta["generated"]) == ("b,c", "end", 16)
    values["b,c"] = 0.79
    (group,), _ = searched(gate=0.8, iterations=9)
    assert group.trajectories[0].meta["generated"] > 16


def test_without_a_solution_the_answer_is_the_best_that_ended(values: dict[str, float]) -> None:
    values["a,e,f,"] = 0.95
    (group,), _ = searched(iterations=3)
    assert group.trajectories[0].text == "b,c", "f has a higher value but no end"
    (group,), _ = searched(iterations=1, roll_steps=0)
    assert (group.trajectories[0].text, group.trajectories[0].stop) == ("b,", "length")


def test_a_budget_of_generated_tokens_ends_the_search() -> None:
    """Six tokens an iteration, counting those of the branches that were not followed."""
    spent = [
        searched(iterations=3, budget=budget)[0][0].trajectories[0].meta["generated"] for budget in (6, 7)
    ]
    assert spent == [6, 12]


def test_limits_cut_steps_and_answers() -> None:
    (group,), policy = searched(iterations=9, step_tokens=2, max_tokens=3, leaves=True, gate=None)
    assert [t.text for t in group.trajectories] == ["a,d", "a,e", "b,c", "b,g"]
    assert {t.stop for t in group.trajectories} == {"length"}, "not even the end of c fits"
    assert [r.max_tokens for r in policy.requests[:2]] == [2, 1]


def test_without_separators_one_iteration_is_best_of_n(values: dict[str, float]) -> None:
    values |= {"u": 0.3, "v": 0.7, "w": 0.1}
    (group,), policy = searched(
        steps={"": "u v w v"}, separators=[], branch=4, iterations=1, roll_steps=0, responses_per_prompt=2
    )
    assert [t.text for t in group.trajectories] == ["v", "v"]
    assert [t.meta["sample"] for t in group.trajectories] == [0, 1]
    assert {(t.meta["generated"], t.meta["valued"]) for t in group.trajectories} == {(8, 3)}
    assert len({request.seed for request in policy.requests}) == 2, (
        "each answer has random numbers of its own"
    )


def test_random_numbers_depend_on_prompt_and_path_alone_and_no_answer_is_looked_at() -> None:
    other = Prompt("q", PROMPT.messages, answer="b,c")
    (alone,), first = searched(iterations=3, leaves=True)
    (_, beside), both = searched([other, PROMPT], iterations=3, leaves=True)
    (unknown,), _ = searched([Prompt("p", PROMPT.messages)], iterations=3, leaves=True)
    assert alone.trajectories == beside.trajectories == unknown.trajectories
    seeds = [request.seed for request in first.requests]
    assert len(set(seeds)) == len(seeds) and set(seeds) < {request.seed for request in both.requests}


def test_ties_are_broken_at_random() -> None:
    """After the first iteration with equal values, the two other children have the same bound."""
    prompts = [Prompt(str(i), PROMPT.messages) for i in range(24)]
    groups, _ = searched(
        prompts, steps={"": "k, l, m,"}, branch=3, roll_steps=0, iterations=2, leaves=True, gate=None
    )
    followed = {next(t.text[0] for t in g.trajectories if len(t.spans) == 2) for g in groups}
    assert followed == {"l", "m"}
