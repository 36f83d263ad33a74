"""`registry:` sources: the version is resolved when a run starts, and its files are the registered ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from ratchet.components.errors import RecipeError, SourceError, StoreError
from ratchet.components.recipes.recipe import dump
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.registry.registration import checkpoints, trained_from
from ratchet.tasks.registry.registry import directory_digest, promote, register
from ratchet.tasks.registry.registry_sources import _model_files
from ratchet.tasks.registry.versions import find_version, history
from ratchet.tasks.registry.weights import locate


@pytest.fixture(scope="module")
def registered(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A home with two versions of `small`: 1 is champion, 2 an external one whose directory is outside the
    store.
    """
    home = tmp_path_factory.mktemp("registered")
    for number, external in enumerate((False, True)):
        place = home / f"model{number}"
        shutil.copytree(tiny_model, place)
        (place / "note.txt").write_text(str(number))
        register(place, "small", lineage={"data": {"pairs": str(number)}}, external=external, home=home)
    promote("small", "1", {"passed": True}, home=home)
    return home


@pytest.fixture
def home(registered: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return registered


def opened(home: Path, source: str, *more: str) -> Pipeline:
    return Pipeline.open(
        "sft", home=home, profile="test", overrides=[f"models.policy.source={source}", *more]
    )


def test_an_alias_is_pinned_to_its_version_and_the_digest_of_its_weights(home: Path) -> None:
    pipeline = opened(home, "registry:small")
    weights = directory_digest(home / "model0")
    assert (pipeline.recipe.models["policy"].source, pipeline.recipe.models["policy"].sha256) == (
        "registry:small/1",
        weights,
    )
    assert (
        yaml.safe_load(dump(pipeline.recipe, pipeline.profile))["recipe"]["models"]["policy"]["source"]
        == "registry:small/1"
    )
    artifact = pipeline.make("model_policy")
    assert directory_digest(artifact.path) == weights and artifact.meta["source"] == "registry:small/1"
    assert (
        opened(home, "registry:small@champion").stages["model_policy"].key
        == opened(home, "registry:small/1").stages["model_policy"].key
    )
    assert trained_from(pipeline, "sft") == ["model_policy"]


def test_a_registered_name_is_its_champion_and_numbers_and_aliases_are_looked_up(home: Path) -> None:
    names = ("small", "small:2", "small@champion", "small@candidate")
    assert [list(locate(name, home)) for name in names] == [
        ["small:1"],
        ["small:2"],
        ["small:1"],
        ["small:1"],
    ]
    assert find_version("other", home=home) is None
    for number, alias in (("3", ""), ("", "challenger")):
        with pytest.raises(RecipeError, match=number or alias):
            find_version("small", number, alias, home=home)


def test_a_source_without_version_needs_a_champion(home: Path) -> None:
    register(home / "model0", "unpromoted", lineage={"data": {"pairs": "x"}}, home=home)
    with pytest.raises(SourceError, match="champion"):
        opened(home, "registry:unpromoted")


def test_registry_files_are_used_if_the_store_has_none(home: Path) -> None:
    (home / "model0").rename(home / "gone")
    try:
        artifact = opened(home, "registry:small/1", "seed=7").make("model_policy")
    finally:
        (home / "gone").rename(home / "model0")
    assert directory_digest(artifact.path) == directory_digest(home / "model0"), (
        "files that MLflow wrote beside the model came along"
    )


def test_an_external_version_whose_directory_was_changed_is_refused(home: Path) -> None:
    note = home / "model1" / "note.txt"
    note.write_text("changed")
    try:
        with pytest.raises(StoreError, match=r"registry:small/2: .*model1"):
            opened(home, "registry:small/2", "seed=8").make("model_policy")
    finally:
        note.write_text("1")


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (
            "registry:smal",
            "models.policy.source: registry:smal: no model 'smal' is registered .* did you mean 'small'",
        ),
        ("registry:small/9", "'small' has no version 9; its versions: 1, 2"),
        (
            "registry:small@canary",
            r"'small' has no alias 'canary'; its versions: 1, 2; its aliases: @candidate \(version 1\), "
            r"@champion \(version 1\)",
        ),
        ("registry:small:1", "expected registry:NAME, registry:NAME/VERSION or registry:NAME@ALIAS"),
        ("registry:small/3/4", "expected registry:NAME, registry:NAME/VERSION or registry:NAME@ALIAS"),
    ],
)
def test_a_version_that_is_not_there_is_refused_before_anything_starts(
    home: Path, source: str, error: str
) -> None:
    with pytest.raises(SourceError, match=error):
        opened(home, source)


def test_unfinished_run_keeps_its_resolved_version(home: Path) -> None:
    first = opened(home, "registry:small@champion", "seed=9")
    first.begin()
    small = {version.version: version for version in history("small", home=home)}
    third = register(home / "model1", "small", lineage={"data": {"pairs": "1"}}, home=home)
    assert third not in small
    promote("small", third, {"passed": True}, home=home)
    try:
        again = opened(home, "registry:small@champion", "seed=9")
        assert again.run.name == first.run.name and again.recipe.models["policy"].source == "registry:small/1"
        other = opened(home, "registry:small@champion", "seed=10")
        assert other.recipe.models["policy"].source == f"registry:small/{third}"
        state = json.loads((first.run.path / "run.json").read_text())
        postponed = {"state": "finished", "registered": {}, "postponed": "no server"}
        first.run.record(**{**state, **postponed})
        again = opened(home, "registry:small@champion", "seed=9")
        assert again.recipe.models["policy"].source == "registry:small/1"
        first.run.record(**{**state, **postponed, "postponed": None, "registered": {"sft": "sft:4"}})
        assert (
            opened(home, "registry:small@champion", "seed=9").recipe.models["policy"].source
            == f"registry:small/{third}"
        )
    finally:
        promote("small", "1", {"passed": True}, home=home)


def test_a_finished_run_that_trains_nothing_lets_the_next_one_follow_the_alias(home: Path) -> None:
    """It reaches the registration, as the flow records, and has nothing to register."""
    first = opened(home, "registry:small@champion", "seed=11", "sft=null")
    assert first.recipe.register is not None and not checkpoints(first)
    first.begin()
    first.end("finished", registered={}, postponed=None, champion=None)
    third = register(home / "model1", "small", lineage={"data": {"pairs": "11"}}, home=home)
    promote("small", third, {"passed": True}, home=home)
    try:
        again = opened(home, "registry:small@champion", "seed=11", "sft=null")
        assert again.recipe.models["policy"].source == f"registry:small/{third}"
    finally:
        promote("small", "1", {"passed": True}, home=home)


def test_version_without_a_flavour_links_all_files(tmp_path: Path) -> None:
    """A mean-pooled reward model has no MLmodel file; its lineage is stored next to the weights."""
    for file in ("config.json", "reward_head.st", "requirements.txt", "lineage.json"):
        (tmp_path / file).touch()
    assert sorted(name for _, name in _model_files(tmp_path)) == [
        "config.json",
        "requirements.txt",
        "reward_head.st",
    ]


def test_model_logged_by_mlflow_becomes_a_flat_directory(tmp_path: Path) -> None:
    """Its transformers flavour keeps weights and tokenizer in folders of their own."""
    for file in (
        "model/config.json",
        "model/model.safetensors",
        "components/tokenizer/tokenizer.json",
        "requirements.txt",
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    (tmp_path / "MLmodel").write_text(
        yaml.safe_dump({"flavors": {"transformers": {"model_binary": "model", "components": ["tokenizer"]}}})
    )
    assert sorted(name for _, name in _model_files(tmp_path)) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
