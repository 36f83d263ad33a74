"""Annotation and selection: masking of failed rewards, counts, origin of rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError
from ratchet.components.piece import each
from ratchet.components.training.loop import (
    Named,
    annotate_groups,
    pieces,
    prepare_groups,
    select_groups,
    texts_read,
)
from ratchet.components.training.reward_columns import optimised_rewards, reward_columns
from ratchet.components.training.round_metrics import round_metrics
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(name: str, *texts: str, **columns: list[Any]) -> Group:
    return Group(
        Prompt(name, ({"role": "user", "content": "?"},)),
        tuple(
            Trajectory(({"role": "assistant", "content": text},), {"tokens": [1]}, [True], weights="w")
            for text in texts
        ),
        columns,
    )


@dataclasses.dataclass
class Scorer:
    """Scores an answer by its length."""

    weights: str

    def encode(self, group: Group) -> Group:
        return group

    def score(self, groups: list[Group], outputs: frozenset[str]) -> list[Mapping[str, Any]]:
        return [{"scores": [float(len(t.text)) for t in g.trajectories]} for g in groups]


SCORED = {"name": "rewards.reward_model", "model": "reward_model"}


@pytest.mark.parametrize(
    ("annotate", "reward", "sources"),
    [
        ([SCORED], "reward.reward_model", {"reward_model": "ddd"}),
        (
            [SCORED, {"name": "rewards.combine.length_controlled", "reward": "reward.reward_model"}],
            "reward.length_controlled",
            {"reward_model": "ddd"},
        ),
        (
            [
                SCORED,
                {"name": "rewards.format"},
                {"name": "rewards.combine.length_penalised", "reward": "reward.reward_model"},
                {"name": "rewards.combine", "rewards": ["reward.length_penalised", "reward.format"]},
            ],
            "reward.combined",
            {"reward_model": "ddd"},
        ),
        (
            [
                SCORED,
                {"name": "rewards.ensemble", "models": ["one", "two"], "standardise": True},
                {"name": "rewards.combine.length_controlled", "reward": "reward.ensemble"},
            ],
            "reward.length_controlled",
            {"one": "111", "two": "222"},
        ),
        ([SCORED, {"name": "rewards.repetition", "n": 1}], "reward.repetition", {}),
    ],
)
def test_pairs_record_the_models_of_their_reward(
    annotate: list[dict[str, Any]], reward: str, sources: dict[str, str], tmp_path: Path
) -> None:
    models: dict[str, Any] = {
        "reward_model": Scorer("ddd"),
        "one": Scorer("111"),
        "two": Scorer("222"),
        "unasked": Scorer("333"),
    }
    groups = [
        dataclasses.replace(
            g,
            trajectories=tuple(
                dataclasses.replace(t, inputs={"tokens": [1] * n}, mask=[True] * n)
                for t, n in zip(g.trajectories, (1, 2, 4), strict=True)
            ),
        )
        for g in (group("p", "a", "bbbb", "cc"), group("q", "aa", "b", "ccccccc"))
    ]
    marked, _ = annotate_groups(groups, pieces("annotate", annotate), Context(models=models), max_failed=0.0)
    write_groups(tmp_path / "groups.parquet", marked)  # annotating and selecting are two stages
    chosen, _ = select_groups(
        read_groups(tmp_path / "groups.parquet"),
        pieces("select", [{"name": "best_worst", "reward": reward}]),
        Context(),
    )
    assert [pair.prompt.id for pair in chosen] == ["p", "q"]
    assert all(pair.prompt.meta["pair"]["reward_models"] == sources for pair in chosen)


@each
def shaky(prompt: Prompt, trajectory: Trajectory) -> float | None:
    if trajectory.text == "breaks":
        raise RuntimeError("no network")
    return {"nan": float("nan"), "inf": float("-inf"), "skip": None}.get(
        trajectory.text, float(len(trajectory.text))
    )


def test_failed_and_skipped_rewards_are_masked_and_counted() -> None:
    """Of 10 rewards 3 fail and 2 are skipped: one group is whole, two are short, one is gone."""
    groups = [
        group("whole", "a", "bb"),
        group("short", "a", "nan", "ccc", "breaks"),
        group("shorter", "skip", "bb", "inf"),
        group("gone", "skip"),
    ]
    marked, counts = annotate_groups(groups, [Named("shaky", shaky)], Context(), max_failed=0.5)
    assert [(g.prompt.id, [t.text for t in g.trajectories], g.columns["reward.shaky"]) for g in marked] == [
        ("whole", ["a", "bb"], [1.0, 2.0]),
        ("short", ["a", "ccc"], [1.0, 3.0]),
        ("shorter", ["bb"], [2.0]),
    ]
    assert counts == {
        "groups": 3,
        "trajectories": 5,
        "shaky failed": 3,
        "shaky skipped": 2,
        "groups short of responses": 2,
        "groups without any reward": 1,
    }
    chosen, counts = select_groups(
        marked, pieces("select", [{"name": "best_worst", "reward": "reward.shaky"}]), Context()
    )
    assert [[t.text for t in g.trajectories] for g in chosen] == [["bb", "a"], ["ccc", "a"]], (
        "a NaN beside them takes no pair away"
    )
    assert counts == {"groups before": 3, "groups of one answer": 1, "groups after best_worst": 2}


def test_too_many_failed_rewards_stop_the_run() -> None:
    groups = [group("p", "a", "bb", "ccc", "nan")]
    assert (
        annotate_groups(groups, [Named("shaky", shaky)], Context(), max_failed=0.25)[1]["shaky failed"] == 1
    )
    with pytest.raises(DataError, match=r"shaky: 1 of 4 .*24%.*nan"):
        annotate_groups(groups, [Named("shaky", shaky)], Context(), max_failed=0.24)


def test_a_round_without_any_reward_stops_the_run() -> None:
    """With `max_failed: 1.0` too: there is nothing to average."""
    groups = [group("p", "nan", "skip"), group("q", "breaks")]
    with pytest.raises(DataError, match=r"shaky: 3 of 3 rewards .*never all"):
        annotate_groups(groups, [Named("shaky", shaky)], Context(), max_failed=1.0)
    broken = [
        dataclasses.replace(
            g, trajectories=tuple(dataclasses.replace(t, stop="error") for t in g.trajectories)
        )
        for g in groups
    ]
    with pytest.raises(DataError, match=r"rollout: the trajectories of all 2 prompts failed"):
        annotate_groups(broken, [Named("shaky", shaky)], Context(), max_failed=1.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None])
def test_nan_of_a_combined_reward_is_masked(value: float | None) -> None:
    def derived(groups: list[Group], ctx: Context) -> dict[str, Any]:
        return {
            "reward.derived": [[1.0, value, 3.0] for _ in groups],
            "advantages": [[0.0, float("nan"), 0.0] for _ in groups],
        }

    marked, counts = annotate_groups(
        [group("p", "a", "bb", "ccc")], [Named("derived", derived)], Context(), max_failed=0.5
    )
    assert marked[0].columns["reward.derived"] == [1.0, 3.0]
    assert counts["derived skipped" if value is None else "derived failed"] == 1


def test_prompts_without_pairs_are_counted_by_reason() -> None:
    groups = [
        group("pair", "a", "b", r=[1.0, 3.0]),
        group("tie", "a", "b", r=[1.0, 1.0]),
        group("small", "a", "b", r=[1.0, 1.4]),
        group("twins", "a", "b", "a", r=[3.0, 2.0, 1.0]),
        group("all the same", "a", "a", r=[1.0, 1.0]),
        group("small too", "a", "b", r=[2.0, 1.9]),
        group("alone", "a", r=[1.0]),
    ]
    selectors = pieces("select", [{"name": "best_worst", "reward": "r", "min_margin": 0.5}])
    chosen, counts = select_groups(groups, selectors, Context())
    assert [g.prompt.id for g in chosen] == ["pair"]
    assert counts == {
        "groups before": 7,
        "ties": 1,
        "margins under min_margin": 2,
        "identical texts": 2,
        "groups of one answer": 1,
        "groups after best_worst": 1,
    }


def test_earlier_pairs_come_first_and_are_recomputed() -> None:
    def prepare(groups: list[Group], ctx: Context) -> dict[str, Any]:
        return {"logprobs.reference": [[ctx.round] * len(g.trajectories) for g in groups]}

    old = [group("old", "a", "b", **{"r": [1.0, 0.0], "logprobs.reference": [1, 1]})]
    chosen, counts = select_groups(
        [group("new", "a", "b", r=[0.0, 1.0])],
        pieces("select", [{"name": "best_worst", "reward": "r"}]),
        Context(round=2),
        earlier=old,
    )
    chosen = prepare_groups(chosen, [Named("prepare", prepare)], Context(round=2))
    assert [(g.prompt.id, g.columns["logprobs.reference"]) for g in chosen] == [
        ("old", [2, 2]),
        ("new", [2, 2]),
    ]
    assert counts == {"groups before": 1, "groups after best_worst": 1, "groups of earlier rounds": 1}


@pytest.mark.parametrize(
    ("specs", "times"),
    [
        ([SCORED], 1),
        ([{"name": "rewards.ensemble", "models": ["one", "two", "three"]}], 3),
        ([{"name": "scoring.logprobs.old"}, {"name": "scoring.values"}], 2),
        ([{"name": "rewards.exact_answer"}, {"name": "rewards.unit_tests"}], 2),
        ([], 0),
        (
            [
                {"name": "rewards.combine", "rewards": ["reward.reward_model"]},
                {"name": "advantages.group_norm"},
                {"name": "scoring.importance"},
            ],
            0,
        ),
    ],
)
def test_forward_passes_per_answer(specs: list[dict[str, Any]], times: int) -> None:
    assert texts_read(specs) == times


@pytest.mark.parametrize(
    ("annotate", "select", "expected"),
    [
        (
            [
                {"name": "rewards.instructions"},
                {"name": "rewards.reward_model", "model": "reward_model"},
                {"name": "rewards.length"},
            ],
            [{"name": "best_worst", "reward": "reward.reward_model"}],
            ["reward.reward_model"],
        ),
        (
            [
                {"name": "rewards.ensemble", "models": ["reward_model_1", "reward_model_2"]},
                {"name": "rewards.length"},
            ],
            [{"name": "best_worst", "reward": "reward.ensemble"}],
            ["reward.ensemble"],
        ),
        (
            [
                {"name": "rewards.instructions"},
                {"name": "advantages.group_norm", "reward": "reward.instructions"},
                {"name": "rewards.length"},
            ],
            [],
            ["reward.instructions"],
        ),
        ([{"name": "rewards.instructions"}, {"name": "rewards.length"}], [], ["reward.length"]),
    ],
)
def test_optimised_reward_is_the_one_read_by_selection(annotate, select, expected):
    """Even if another reward was written after it."""
    assert optimised_rewards(annotate, select, {}) == expected
    groups = [
        Group(
            Prompt("p", ()),
            (Trajectory(({"role": "assistant", "content": "a"},), mask=(True,)),),
            {c: [float(len(c))] for c in reward_columns(annotate)},
        )
    ]
    assert round_metrics(groups, annotate, optimised=expected)["reward"] == float(len(expected[0]))


def test_entropy_and_kl_are_of_the_answers_with_logprobs() -> None:
    """Answers that the policy did not sample from their prompt have none."""
    sampled = Trajectory(
        ({"role": "assistant", "content": "x"},),
        {"tokens": [1, 2, 3]},
        [False, True, True],
        [0.0, -2.0, -2.0],
    )
    other = dataclasses.replace(sampled, logprobs=None)
    groups = [Group(Prompt("p", ()), pair) for pair in ((sampled, other), (other, other))]
    for some, expected in ((groups, {"entropy": 2.0, "kl": -2.0}), (groups[1:], {})):
        found = round_metrics(some, [], reference=Scores(), kl_prompts=2)
        assert {key: found[key] for key in ("entropy", "kl") if key in found} == expected


class Scores:
    """Stub of a reference: log-prob -1 of each token."""

    def score(self, groups, outputs):
        return [{"logprobs": [[0.0, -1.0, -1.0] for _ in g.trajectories]} for g in groups]


def test_a_reward_that_weights_an_objective_is_optimised() -> None:
    annotate = [{"name": "rewards.instructions"}, {"name": "rewards.length"}]
    weighted = {"policy": [{"name": "likelihood", "weight_column": "reward.instructions"}]}
    assert optimised_rewards(annotate, [], weighted) == ["reward.instructions"]


@pytest.mark.parametrize(
    ("rewards", "share"),
    [
        ([[1.0, 1.0], [0.0, 0.0]], 1.0),
        ([[1.0, 0.0], [0.0, 0.0]], 0.5),
        ([[1.0], [1.0]], 1.0),
        ([[1.0], [0.0]], 0.0),
    ],
)
def test_equal_rewards_is_the_share_of_prompts_without_signal(
    rewards: list[list[float]], share: float
) -> None:
    """With one answer a prompt they are compared over all prompts."""
    groups = [group(str(i), *"ab"[: len(row)], **{"reward.length": row}) for i, row in enumerate(rewards)]
    assert (
        round_metrics(groups, [{"name": "rewards.length"}], optimised=["reward.length"])["equal_rewards"]
        == share
    )
