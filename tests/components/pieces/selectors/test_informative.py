"""Selector `informative`, and what LOOP's update is, worked by hand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from ratchet.components.piece import build
from ratchet.components.recipes.recipe import load
from ratchet.components.training.reduce import count, reduce
from ratchet.components.types import Batch, Context, Group, Outputs, Prompt, Trajectory

PER_TOKEN, EPSILON = 3, 0.1


def group(name: str, rewards: Sequence[float], advantages: Sequence[Any]) -> Group:
    columns = {"reward.solved": list(rewards), "advantages": list(advantages)}
    return Group(Prompt(name, ()), tuple(Trajectory(()) for _ in advantages), columns)


def select(groups: Sequence[Group], counts: Counter[str] | None = None, **options: Any) -> list[str]:
    ctx = Context(counts=Counter() if counts is None else counts)
    chosen = build("select", {"name": "informative", **options})(groups, ctx)
    return [one.prompt.id for one in chosen]


GROUPS = [
    group("zero", [1, 1], [0.0, 0.0]),
    group("small", [1, 1], [0.005, -0.005]),
    group("large", [1, 0], [1.0, -1.0]),
    group("steps", [0, 0], [[0.0, 0.0], [0.0, -0.01]]),
    group("nothing", [0, 0], [0.0, 0.0]),
]


def test_small_advantages_are_left_out_and_counted() -> None:
    counts: Counter[str] = Counter()
    assert select(GROUPS, counts) == ["large", "steps"] and counts == {"groups of small advantages": 3}
    assert select(GROUPS, least=0.001) == ["small", "large", "steps"]
    assert select(GROUPS, least=0.0) == [one.prompt.id for one in GROUPS]


def test_the_largest_of_the_others_fill_the_number_up_and_the_order_stays() -> None:
    assert select(GROUPS, multiple_of=3) == ["small", "large", "steps"]
    assert select(GROUPS, multiple_of=4) == ["zero", "small", "large", "steps"]
    assert select(GROUPS, multiple_of=6) == [one.prompt.id for one in GROUPS], "there are no more"
    assert select(GROUPS[:2], multiple_of=4) == [], "nothing to learn is no step"


def gradient(groups: Sequence[Group], *, batch: int = 4) -> Tensor:
    """Gradient of LOOP's loss of one batch by the log-probs of the group `mixed`. Rows have three tokens; the
    old log-probs are those of the policy, so that each ratio is 1.
    """
    rows = [(g.prompt.id, a) for g in groups for a in g.columns["advantages"]]
    logprobs = torch.full((len(rows), PER_TOKEN), -1.0, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(len(rows), PER_TOKEN, dtype=torch.bool)
    columns = {
        "advantages": torch.tensor([a for _, a in rows], dtype=torch.float64),
        "logprobs.sampled": logprobs.detach(),
    }
    number = torch.arange(len(rows)) // 2
    data = Batch({}, mask, columns, number, torch.arange(len(rows)), tuple(name for name, _ in rows))
    terms = build("objective", {"name": "clip", "old": "sampled"})(Outputs({"logprobs": logprobs}), data)
    assert len(groups) <= batch
    (found,) = torch.autograd.grad(reduce("row_mean", terms.loss, data, count(data, "step")), logprobs)
    others = torch.tensor([name != "mixed" for name, _ in rows])
    assert not found[others].any(), "zero advantages have no gradient"
    return found[~others]


def test_dropping_zero_advantages_leaves_the_gradient_under_the_constant_divisor_alone() -> None:
    """-A / (tokens of the row) / (2 rows x 4 groups): 1/24 a token. With `drop_constant` the divisor is that
    of the two rows left, and the gradient four times as large.
    """
    rewards = [("won", [1, 1]), ("lost", [0, 0]), ("mixed", [1, 0]), ("lost too", [0, 0])]
    advantages = build("annotate", {"name": "advantages.leave_one_out", "reward": "reward.solved"})
    plain = [group(name, found, [0.0] * len(found)) for name, found in rewards]
    columns = advantages(plain, Context())["advantages"]
    groups = [one.with_columns(advantages=a) for one, a in zip(plain, columns, strict=True)]
    expected = torch.tensor([[-1 / 24] * 3, [1 / 24] * 3], dtype=torch.float64)
    torch.testing.assert_close(gradient(groups), expected)
    for multiple_of, dropped, factor in ((4, 0, 1), (2, 2, 2), (1, 3, 4)):
        kept = build("select", {"name": "informative", "multiple_of": multiple_of})(groups, Context())
        assert len(kept) == 4 - dropped
        torch.testing.assert_close(gradient(kept), factor * expected)
    constant = build("select", {"name": "drop_constant", "reward": "reward.solved"})(groups, Context())
    torch.testing.assert_close(gradient(constant), 4 * expected)


def test_every_batch_of_a_round_is_full() -> None:
    """Five informative groups of fifteen and batches of four: eight are kept, the five among them."""
    groups = [
        group(str(i), [1, 0], [1.0, -1.0]) if i % 3 == 0 else group(str(i), [1, 1], [0.0, 0.0])
        for i in range(15)
    ]
    kept = select(groups, multiple_of=4)
    assert len(kept) == 8 and {"0", "3", "6", "9", "12"} < set(kept)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 0, 0, 0], [1.0, -1 / 3, -1 / 3, -1 / 3]),
        ([1, 1, 1, 0], [1 / 3, 1 / 3, 1 / 3, -1.0]),
        ([1, 1, 1, 1], [0.0, 0.0, 0.0, 0.0]),
    ],
)
def test_advantages_of_loop_are_not_divided_by_a_deviation(
    rewards: list[float], expected: list[float]
) -> None:
    """The rare success weighs three times as much as a failure; GRPO's are 1.5 times as large."""
    made = {
        name: build("annotate", {"name": f"advantages.{name}", "reward": "reward.solved"})(
            [group("p", rewards, [0.0] * 4)], Context()
        )["advantages"][0]
        for name in ("leave_one_out", "group_norm")
    }
    assert made["leave_one_out"] == pytest.approx(expected)
    assert made["group_norm"] == pytest.approx([1.5 * a for a in expected], abs=1e-5)


def test_the_clip_of_the_recipe_is_symmetric_in_log_space() -> None:
    """min(w A, g(A)), g = 1.1 A for A >= 0 and A / 1.1 below. By hand: at w = 1.2, 1.1 for A = 1 and -1.2 for
    A = -1; at w = 0.905, below LOOP's bound of 0.909 and above PPO's of 0.9, -1/1.1 for A = -1, where PPO has
    -0.905.
    """
    (spec,) = load("loop")[0].online.fit.updates["policy"]  # pyright: ignore[reportOptionalMemberAccess]
    assert spec["name"] == "clip" and spec["reduce"] == "row_mean"
    ratios = [0.5, 0.9, 0.905, 1 / 1.1, 1.0, 1.05, 1.1, 1.2, 3.0]
    options = {name: spec[name] for name in ("name", "low", "high", "old")}
    for advantage in (1.0, -1.0, 0.5, -0.25):
        bound = (1 + EPSILON) * advantage if advantage >= 0 else advantage / (1 + EPSILON)
        expected = [-min(w * advantage, bound) for w in ratios]
        assert objective(options, ratios, advantage) == pytest.approx(expected, abs=1e-8)
    assert objective(options, [1.2, 1.2], 1.0) == pytest.approx([-1.1] * 2)
    assert objective(options, [1.2, 0.905], -1.0) == pytest.approx([1.2, 1 / 1.1])
    plain = {**options, "low": 0.1}
    assert objective(plain, [1.2, 0.905], -1.0) == pytest.approx([1.2, 0.905])


def objective(spec: dict[str, Any], ratios: Sequence[float], advantage: float) -> list[float]:
    old = torch.full((1, len(ratios)), -1.0, dtype=torch.float64)
    new = old + torch.tensor([[math.log(w) for w in ratios]], dtype=torch.float64)
    columns = {"advantages": torch.tensor([advantage], dtype=torch.float64), "logprobs.sampled": old}
    one = torch.zeros(1, dtype=torch.long)
    batch = Batch({}, torch.ones_like(old, dtype=torch.bool), columns, one, one, ("p",))
    return build("objective", spec)(Outputs({"logprobs": new}), batch).loss[0].tolist()
