"""Catalogue of bad recipes (`bad_recipes.yaml`): loading and checking reports each in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ratchet.components.errors import RatchetError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.recipe import load

CASES = [
    (recipe, *case)
    for recipe, cases in yaml.safe_load((Path(__file__).parent / "bad_recipes.yaml").read_text()).items()
    for case in cases
]


def test_there_are_at_least_100_bad_recipes() -> None:
    assert len({(recipe, change) for recipe, change, _ in CASES}) == len(CASES) >= 100


@pytest.mark.parametrize(("recipe", "change", "message"), CASES)
def test_a_bad_recipe_is_one_sentence(recipe: str, change: str, message: str) -> None:
    with pytest.raises(RatchetError) as refused:
        check_files(load(recipe, overrides=[change])[0])
    assert message in str(refused.value) and "\n" not in str(refused.value)
