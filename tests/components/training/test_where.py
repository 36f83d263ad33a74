"""`where` of an objective: its terms and its denominators are of the chosen steps alone."""

from __future__ import annotations

import pytest
import torch

from ratchet.components.errors import RecipeError, TrainingError
from ratchet.components.recipes.recipe import load
from ratchet.components.training.objectives import Meter, parts
from ratchet.components.training.step_loss import measure
from ratchet.components.types import Group, Outputs, Prompt, Trajectory


class Counting:
    """A learner whose negative log-prob of token 10 n is n."""

    def __call__(self, batch, outputs):
        width = batch.mask.shape[1]
        padded = [torch.nn.functional.pad(row, (0, width - len(row))) for row in batch.inputs["tokens"]]
        return Outputs({"logprobs": -torch.stack(padded) / 10.0})


GROUPS = [
    Group(
        Prompt(name, ()),
        (Trajectory((), {"tokens": tokens}, [False, *[True] * (len(tokens) - 1)]),),
        {"turn": [turn], "class": [kind]},
    )
    for name, tokens, turn, kind in (
        ("a", [90, 10, 20, 30], [0, 1, 1, 0], 1.0),
        ("b", [90, 40, 50], [1, 0, 1], 0.0),
        ("c", [90, 60], [0, 0], 1.0),
    )
]


@pytest.mark.parametrize("tokens", [1, 100])
@pytest.mark.parametrize(
    ("reduce", "keys", "expected"),
    [
        ("token_mean", {}, (1 + 2 + 3 + 4 + 5 + 6) / 6),
        ("token_mean", {"where": "turn"}, (1 + 2 + 5) / 3),
        ("row_mean", {"where": "turn"}, (1.5 + 5) / 2),
        ("row_sum", {"where": "turn"}, (3 + 5) / 2),
        ("token_mean", {"weight_column": "turn"}, (1 + 2 + 5) / 6),
        ("row_mean", {"where": "class"}, (2 + 6) / 2),
        ("token_mean", {"where": "class", "weight_column": "turn"}, (1 + 2) / 4),
    ],
)
def test_where_changes_the_denominator_too(reduce: str, keys: dict, tokens: int, expected: float) -> None:
    update = parts([{"name": "likelihood", "weight": 1.0, "reduce": reduce, "label": "likelihood", **keys}])
    meter = Meter()
    loss = measure(Counting(), update, GROUPS, tokens=tokens, backward=False, meter=meter)  # pyright: ignore[reportArgumentType]
    assert loss == pytest.approx(expected)
    if reduce == "token_mean" and "weight_column" not in keys:
        assert meter.means()["likelihood/loss"] == pytest.approx(expected), "its metrics too"


def test_where_is_a_column_that_exists() -> None:
    change = "online.fit.updates.policy=[{name: reinforce, where: %s}]"
    load("rloo", overrides=[change % "reward.exact_answer"])
    with pytest.raises(RecipeError, match=r"'reinforce.where' reads \['turn_1'\], which no earlier piece"):
        load("rloo", overrides=[change % "turn_1"])
    with pytest.raises(RecipeError, match="`where` does not restrict"):
        load("kto", overrides=["offline.fit.updates.policy=[{name: kto, where: label}]"])


def test_metrics_of_rows_and_pairs_are_those_of_where_too() -> None:
    """Ratio 1: loss and metric are those of the two rows with advantage 2. Of the pairs the first is kept, in
    which the chosen answer is the likelier one.
    """
    rows = [
        group.with_columns(advantages=[advantage], **{"logprobs.old": [[-n / 10.0 for n in tokens]]})
        for group, advantage in zip(GROUPS, (2.0, -6.0, 2.0), strict=True)
        for tokens in [group.trajectories[0].inputs["tokens"]]
    ]
    clip = {"name": "clip.row", "weight": 1.0, "reduce": "unit_mean", "label": "clip", "where": "class"}
    meter = Meter()
    loss = measure(Counting(), parts([clip]), rows, tokens=100, backward=False, meter=meter)  # pyright: ignore[reportArgumentType]
    assert loss == pytest.approx(-2.0) and meter.means()["clip/loss"] == pytest.approx(-2.0)

    pairs = [
        Group(
            Prompt(str(chosen), ()),
            tuple(Trajectory((), {"tokens": [9, token]}, [False, True]) for token in (chosen, rejected)),
            {"logprobs.reference": [[0.0, -1.0]] * 2, "keep": [keep] * 2},
        )
        for chosen, rejected, keep in ((10, 40, 1.0), (40, 10, 0.0), (60, 10, 0.0))
    ]
    dpo = {"name": "preference.dpo", "weight": 1.0, "reduce": "unit_mean", "label": "dpo", "where": "keep"}
    meter = Meter()
    loss = measure(Counting(), parts([dpo]), pairs, tokens=100, backward=False, meter=meter)  # pyright: ignore[reportArgumentType]
    assert meter.means()["dpo/loss"] == pytest.approx(loss)
    assert meter.means()["dpo/accuracy"] == 1.0


def test_a_step_without_a_row_of_where_has_the_loss_0() -> None:
    likelihood = {"name": "likelihood", "weight": 1.0, "reduce": "token_mean", "label": "nll"}
    only_b, meter = GROUPS[1:2], Meter()
    loss = measure(
        Counting(),  # pyright: ignore[reportArgumentType]
        parts([{**likelihood, "where": "class"}]),
        only_b,
        tokens=100,
        backward=False,
        meter=meter,
    )
    assert loss == 0.0 and not meter.means()
    untrained = [only_b[0].with_columns(trained=[False])]
    empty = [Group(Prompt("d", ()), (Trajectory((), {"tokens": [90, 40]}, [False, False]),))]
    for groups, why in ((untrained, "no trajectory of this step is trained"), (empty, "chat template")):
        with pytest.raises(TrainingError, match=why):
            measure(Counting(), parts([likelihood]), groups, tokens=100, backward=False, meter=Meter())  # pyright: ignore[reportArgumentType]
