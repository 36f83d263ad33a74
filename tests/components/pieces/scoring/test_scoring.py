"""Columns computed by models: shapes and alignment with the trajectories."""

import pytest

from ratchet.components.errors import ContractError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


class Fixed:
    weights = "w"

    def __init__(self, short=0):
        self.short = short

    def score(self, groups, outputs):
        (output,) = outputs
        return [
            {output: [[float(len(output))] * (len(t.mask) - self.short) for t in g.trajectories]}
            for g in groups
        ]


@pytest.mark.parametrize(
    ("name", "options", "column", "value"),
    [
        ("scoring.logprobs", {"model": "reference"}, "logprobs.reference", 8.0),
        ("scoring.logprobs.old", {}, "logprobs.old", 8.0),
        ("scoring.values", {}, "values.old", 6.0),
    ],
)
def test_columns(name, options, column, value):
    group = Group(Prompt("p", ()), (Trajectory((), {"tokens": [1, 2]}, [False, True]),))
    annotate = build("annotate", {"name": name, **options})
    assert annotate([group], Context(models={"policy": Fixed(), "reference": Fixed()})) == {
        column: [[[value] * 2]]
    }
    with pytest.raises(ContractError, match="tokenizer"):
        annotate([group], Context(models={"policy": Fixed(1), "reference": Fixed(1)}))
