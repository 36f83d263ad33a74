"""Truncated importance weights against hand-computed values."""

from __future__ import annotations

import math

import pytest

from ratchet.components.errors import ContractError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(*rows: tuple[list[float], list[float], list[bool]]) -> Group:
    """Rows of (learner's log-probs, sampler's, mask)."""
    return Group(
        Prompt("p", ()),
        tuple(Trajectory((), mask=mask, logprobs=sampled) for _, sampled, mask in rows),
        {"logprobs.old": [old for old, _, _ in rows]},
    )


def weigh(piece: str, groups: list[Group], **options: float) -> list:
    return next(
        iter(
            build("annotate", {"name": f"scoring.{piece}", "limit": 9.0, **options})(
                groups, Context()
            ).values()
        )
    )


ROW = (
    [9.0, -1.0, -1.0, -2.0, -0.5],
    [0.0, -1.0, -1.0 - math.log(1.5), -2.0 + math.log(4), -0.5 - math.log(8)],
    [False, True, True, True, True],
)


def test_each_step_is_weighted_by_the_bounded_ratio() -> None:
    """Ratios 1, 3/2, 1/4 and 8, the last truncated at 2; prompt tokens are ignored."""
    assert weigh("importance", [group(ROW)])[0][0] == pytest.approx([1.0, 1.0, 1.5, 0.25, 2.0])
    assert weigh("importance", [group(ROW)], cap=10.0)[0][0] == pytest.approx([1.0, 1.0, 1.5, 0.25, 8.0])


def test_the_weights_are_those_of_nemo_rl() -> None:
    """Its test of truncated importance sampling: exp(-1/2), exp(5/2) truncated at 5, exp(-1/5)."""
    steps = ([-1.0] * 3, [-0.5, -3.5, -0.8], [True] * 3)
    assert weigh("importance", [group(steps)], cap=5.0)[0][0] == pytest.approx([0.606531, 5.0, 0.818731])


def test_a_row_is_weighted_by_the_bounded_product() -> None:
    """1 x 3/2 x 1/4 x 8 = 3, truncated at 2; without the last step 3/8."""
    short = tuple(part[:4] for part in ROW)
    assert weigh("importance.row", [group(ROW, short)])[0] == pytest.approx([2.0, 0.375])
    assert weigh("importance.row", [group(ROW)], cap=4.0)[0] == pytest.approx([3.0])


def test_a_far_ratio_neither_overflows_nor_passes_the_limit() -> None:
    far = group(([-1.0], [-2000.0], [True]))
    assert weigh("importance", [far], limit=1e9)[0][0] == pytest.approx([2.0])
    with pytest.raises(ContractError, match="weights"):
        weigh("importance", [far])


@pytest.mark.parametrize("gap", [0.51, -0.51, math.nan])
def test_another_models_log_probs_are_refused(gap: float) -> None:
    piece = build("annotate", {"name": "scoring.importance"})
    with pytest.raises(ContractError, match=r"nats"):
        piece([group(([-1.0 + gap, 5.0], [-1.0, 0.0], [True, False]))], Context())
    assert piece([group(([-1.5, 5.0], [-1.0, 0.0], [True, False]))], Context())["importance"][0][
        0
    ] == pytest.approx([math.exp(-0.5), 1.0])


def test_answers_without_sampler_logprobs_have_no_weight() -> None:
    human = Group(Prompt("p", ()), (Trajectory((), mask=[True]),), {"logprobs.old": [[-1.0]]})
    with pytest.raises(ContractError, match="log-probs"):
        weigh("importance", [human])
