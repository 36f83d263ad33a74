"""Measures of a reward model: pairs in the right order, and consistency between similar prompts."""

from __future__ import annotations

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(name: str, columns: dict, answer: str | None = None, size: int = 3) -> Group:
    prompt = Prompt(name, ({"role": "user", "content": name},), answer)
    return Group(
        prompt, tuple(Trajectory(({"role": "assistant", "content": "x"},)) for _ in range(size)), columns
    )


def test_pair_accuracy_is_the_share_of_pairs_in_the_right_order() -> None:
    """Truths 1, 2, 2: two pairs differ. Scores 0, 1, -1: one of them is right; a tie counts half."""
    measure = build("measure", {"name": "pair_accuracy", "truth": "reward.gold"})
    rows = [
        group("a", {"reward.gold": [1.0, 2.0, 2.0], "reward.reward_model": [0.0, 1.0, -1.0]}),
        group("b", {"reward.gold": [1.0, 2.0, 2.0], "reward.reward_model": [0.0, 1.0, 0.0]}),
        group("c", {"reward.gold": [1.0, 1.0, 1.0], "reward.reward_model": [0.0, 1.0, 2.0]}),
    ]
    assert measure(rows, Context()) == [[0.5] * 3, [0.75] * 3, [0.5] * 3]


class Reader:
    """A reward model that scores an answer by a table of (question, answer)."""

    weights = "reader"

    def __init__(self, table: dict[tuple[str, str], float]) -> None:
        self.table = table

    def encode(self, group: Group) -> Group:
        return group

    def score(self, groups, outputs):
        return [
            {
                "scores": [
                    self.table.get((g.prompt.messages[-1]["content"], t.text), 0.0) for t in g.trajectories
                ]
            }
            for g in groups
        ]


def test_consistency_prefers_the_own_answer_to_that_of_the_most_similar_prompt() -> None:
    rows = [
        group("what colour is snow", {}, "white", size=2),
        group("what colour is coal", {}, "black", size=2),
        group("say a word", {}, None, size=2),
    ]
    measure = build("measure", {"name": "consistency"})
    likes_white = Reader({(q, "white"): 1.0 for q in ("what colour is snow", "what colour is coal")})
    assert measure(rows, Context({"reward_model": likes_white})) == [[1.0] * 2, [0.0] * 2, [0.5] * 2]
    reads = Reader({("what colour is snow", "white"): 1.0, ("what colour is coal", "black"): 1.0})
    assert measure(rows, Context({"reward_model": reads})) == [[1.0] * 2, [1.0] * 2, [0.5] * 2]
    assert measure(rows, Context({"reward_model": Reader({})})) == [[0.5] * 2] * 3
    nearer = group("what colour is snow here", {}, None, size=2)
    assert measure([*rows, nearer], Context({"reward_model": reads}))[:2] == [[1.0] * 2, [1.0] * 2]
