"""Errors of recipe and profile files that cannot be read, and of keys at the wrong place."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.recipe import dump, load, load_profile, reread
from ratchet.components.recipes.yaml_files import parse_yaml


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16"])
def test_a_file_that_is_not_utf_8_is_one_sentence(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("schema: 1\nbase: sft\nabout: Für mich\n", encoding=encoding)
    with pytest.raises(RecipeError, match=r"mine\.yaml: not UTF-8") as refused:
        load(tmp_path / "mine.yaml")
    assert "\n" not in str(refused.value)
    with pytest.raises(RecipeError, match=r"mine\.yaml: not UTF-8"):
        load_profile(str(tmp_path / "mine.yaml"))


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("# nothing yet\n")
    with pytest.raises(RecipeError, match=r"mine\.yaml: .*is empty"):
        load(tmp_path / "mine.yaml")
    (tmp_path / "mine.yaml").write_text("[sft]\n")
    with pytest.raises(RecipeError, match=r"mine\.yaml: .*got a list"):
        load(tmp_path / "mine.yaml")


def test_a_recipe_without_a_base_names_its_file_and_the_key_base(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("schema: 1\nabout: mine\nsft: {}\n")
    with pytest.raises(RecipeError, match=r"mine\.yaml: .*'models' and 'data'.*`base: sft`"):
        load(tmp_path / "mine.yaml")


def test_a_missing_profile_file_is_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"no profile file .*nope\.yaml"):
        load_profile(str(tmp_path / "nope.yaml"))
    with pytest.raises(RecipeError, match=r"no profile named 'gpuu'.*'gpu'"):
        load_profile("gpuu")


@pytest.mark.parametrize("change", ["engine=vllm", "tokens_per_microbatch=512", "hardware.devices=2"])
def test_a_profile_key_in_a_recipe_is_sent_to_the_profile(change: str) -> None:
    with pytest.raises(RecipeError, match=r"hardware profile.*--profile") as refused:
        load("sft", overrides=[change])
    assert "did you mean" not in str(refused.value)


def test_null_removes_a_key_of_an_objective() -> None:
    """`weight_column` of the base, and `where`, which masks nothing when it is null."""
    key = "online.fit.updates.policy.0"
    recipe, _ = load("tiny_people", overrides=[f"{key}.weight_column=null", f"{key}.where=null"])
    assert recipe.online is not None
    (spec,) = recipe.online.fit.updates["policy"]
    assert spec["name"] == "preference.dpo" and not {"weight_column", "where"} & spec.keys()
    without = load("tiny_people", overrides=["online.fit.updates.policy=[{name: preference.dpo, beta: 0.1}]"])
    assert without[0] == recipe


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("schema: 1\nbase: sft\nabout: mine\ndata: {source: {{ path }}}\n", "expected a word as a key"),
        ("schema: 1\n? [a, b]\n: 2\n", "expected a word as a key"),
        ("schema: 1\nseed: 1\nseed: 2\n", "duplicate key 'seed'"),
    ],
)
def test_a_key_that_is_no_word_or_given_twice_is_one_sentence(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(RecipeError, match=rf"mine\.yaml: not valid YAML: {says}") as refused:
        load(tmp_path / "mine.yaml")
    assert "\n" not in str(refused.value)


def test_a_folder_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").mkdir()
    with pytest.raises(RecipeError, match=r"mine\.yaml: cannot be read as a file: Is a directory"):
        load(tmp_path / "mine.yaml")


def test_own_keys_replace_those_of_a_merge_key() -> None:
    """YAML 1.1, merge key: earlier mappings of a list precede later ones."""
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], z: 3}\nd: {x: 4, <<: *a}\n"
    read = parse_yaml(text)
    assert (read["c"], read["d"]) == ({"x": 1, "y": 1, "z": 3}, {"x": 4, "y": 1})


def test_texts_that_look_like_numbers_stay_texts_in_a_resolved_recipe() -> None:
    changes = ['name="1e5"', 'models.policy.sha256="12345678e9"', 'data.columns={prompt: "1e5"}']
    recipe, profile = load("sft", overrides=changes)
    again, _ = reread(dump(recipe, profile))
    assert (again.name, again.data.columns["prompt"]) == ("1e5", "1e5") and plain(again) == plain(recipe)
