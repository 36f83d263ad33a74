"""Splits of a recipe's own: named after a kind, filled from the rows' split column, read by arms."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.components.data.parsing import parse
from ratchet.components.errors import RecipeError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.splits import is_split, kind_of


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("evaluate_shifted", "evaluate"),
        ("sft_narrow_validation", "sft"),
        ("labelled", "labelled"),
        ("reward_validation", "reward"),
    ],
)
def test_the_first_word_of_a_split_is_its_kind(name: str, kind: str) -> None:
    assert is_split(name) and kind_of(name) == kind


@pytest.mark.parametrize("name", ["shifted", "evaluated", "Evaluate_a", "evaluate-b", "source"])
def test_other_names_are_no_splits(name: str) -> None:
    assert not is_split(name)


def test_a_row_names_its_split(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": "a?", "where": "train"},
        {"prompt": "b?", "where": "shifted"},
        {"prompt": "c?", "where": None},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [r.published for r in parse(file, columns={"split": "where"}).kept] == ["train", "shifted", ""]
    assert [r.published for r in parse(file).kept] == [
        ""
    ] * 3  # a column of that name means nothing by itself


def test_arms_and_curation_read_named_splits() -> None:
    recipe, profile = load("generalisation")
    stages = plan(recipe, profile)
    assert stages["answers_policy_shifted"].options["data"] == "evaluate_shifted"
    assert stages["drafts"].options["section"]["splits"]["evaluate_shifted"]["split"] == "shifted"
    check_files(recipe)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            "data.splits.evaluate_shifted={split: shfited}",
            r"data\.splits\.evaluate_shifted: .*'shfited'.*shifted, train",
        ),
        (
            "data.columns=null",
            r"data\.splits\.evaluate_shifted\.split: 'shifted' is not one of train, validation, test",
        ),
        ("data.splits.evaluate_shifted=null", r"'evaluate_shifted' is not in data\.splits"),
        ("data.splits.shifted=0.5", r"data\.splits\.shifted: unknown split 'shifted'"),
        (
            "evaluate.arms.base.data=evaluate_shited",
            r"evaluate\.arms\.base\.data: 'evaluate_shited' is not in",
        ),
    ],
)
def test_a_split_that_does_not_exist_is_refused_by_the_check(change: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        check_files(load("generalisation", overrides=[change])[0])
