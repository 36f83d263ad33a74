"""Hints of the checks of a section `fit`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.check_families import check_backends
from ratchet.components.recipes.check_fit import objectives_of_labels, objectives_of_pairs
from tests.shipped import shipped_recipe


def test_hints_name_the_objectives_that_fit_the_data() -> None:
    pairs, labels = objectives_of_pairs().split(", "), objectives_of_labels().split(", ")
    assert "preference.dpo" in pairs and "kto" in labels
    assert not set(pairs) & set(labels) and "likelihood" not in pairs + labels


@pytest.mark.parametrize("address", ["generate:tiny_vision?side=16&patch=4", "path:model"])
def test_a_model_that_sees_is_refused_with_vllm(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llava"}')
    monkeypatch.chdir(tmp_path)
    recipe, profile = shipped_recipe("visual_rft")
    policy = replace(recipe.models["policy"], source=address)
    recipe = replace(recipe, models={"policy": policy})
    check_backends(recipe, profile)
    with pytest.raises(RecipeError, match="engine: vllm"):
        check_backends(recipe, replace(profile, engine="vllm"))
    (tmp_path / "model" / "config.json").write_text('{"model_type": "llama"}')
    if address == "path:model":
        check_backends(recipe, replace(profile, engine="vllm"))
