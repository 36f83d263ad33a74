"""The JSON schema for editors: what ships is valid, and the mistakes an editor can see are not."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from typer.testing import CliRunner

from ratchet.components.recipes.json_schema import recipe_schema
from ratchet.components.recipes.recipe import dump, names
from ratchet.components.recipes.yaml_files import folder, shipped
from ratchet.flows.cli import app
from tests.shipped import shipped_recipe


@pytest.fixture(scope="module")
def editor() -> Draft202012Validator:
    schema = recipe_schema()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_every_recipe_that_ships_is_valid(editor: Draft202012Validator) -> None:
    written = {
        file.name: yaml.safe_load(file.read_text())
        for file in [*shipped().values(), *(folder() / "bases").glob("*.yaml")]
    }
    for name, recipe in (
        written | {name: yaml.safe_load(dump(*shipped_recipe(name)))["recipe"] for name in names()}
    ).items():
        assert [f"{name}: {best_match([error]).message}" for error in editor.iter_errors(recipe)] == []


@pytest.mark.parametrize(
    "change",
    [
        {"sft": None},
        {"data": {"splits": {"reward": None}}},
        {"online": {"annotate": {"0": "rewards.length"}}},
        {"online": {"select": ["drop_constant"]}},
        {
            "offline": {
                "fit": {
                    "updates": {
                        "policy": [
                            {
                                "name": "preference.dpo",
                                "beta": {"name": "anneal", "start": 0.1, "end": 0.2, "steps": 9},
                            }
                        ]
                    }
                }
            }
        },
    ],
)
def test_what_a_recipe_over_a_base_may_say_is_valid(
    editor: Draft202012Validator, change: dict[str, Any]
) -> None:
    assert editor.is_valid({"schema": 1, "base": "online"} | change)


@pytest.mark.parametrize(
    "change",
    [
        {"onlin": {}},
        {"sft": {"fit": {"warmup": 5}}},
        {"sft": {"fit": {"schedule": "cosin"}}},
        {"online": {"select": ["worst"]}},
        {"online": {"fit": {"updates": {"policy": [{"name": "preference.dpo", "bata": 0.1}]}}}},
        {"online": {"annotate": [{"name": "rewards.lenght"}]}},
        {"online": {"rollout": {"name": "sample", "temperature": "hot"}}},
    ],
)
def test_a_mistake_is_marked(editor: Draft202012Validator, change: dict[str, Any]) -> None:
    assert not editor.is_valid({"schema": 1, "base": "online"} | change)


def test_the_command_prints_it(editor: Draft202012Validator) -> None:
    assert json.loads(CliRunner().invoke(app, ["recipes", "schema"]).output) == json.loads(
        json.dumps(editor.schema)
    )
