"""`ratchet init`: a valid recipe for data of each kind; errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ratchet.components.errors import DataError, RecipeError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.recipe import load
from ratchet.flows.cli import app

ROWS: dict[str, tuple[Any, str, str]] = {  # what a row is, the recipe below, the split that is learned from
    "messages": (
        lambda i: {
            "messages": [
                {"role": "user", "content": f"What is {i}?"},
                {"role": "assistant", "content": "A number. " * 40},
            ]
        },
        "sft",
        "sft",
    ),
    "preference": (
        lambda i: {"prompt": f"Say {i}", "chosen": f"{i}, of course.", "rejected": f"no {i}"},
        "dpo",
        "reward",
    ),
    "completion": (
        lambda i: {"prompt": f"Say {i}", "completion": f"{i}, of course.", "label": i % 4 == 0},
        "kto",
        "labelled",
    ),
    "question": (
        lambda i: {"question": f"How much is {i} + {i}?", "answer": f"Twice {i}.\n#### {2 * i}"},
        "rlvr_grpo",
        "prompts",
    ),
    "helpsteer": (
        lambda i: {"prompt": f"Say {i // 2}", "response": f"{i}, of course.", "helpfulness": i % 2 * 4},
        "dpo",
        "reward",
    ),
    "prompt": (lambda i: {"prompt": f"Tell me about the number {i}, please."}, "instruct", "prompts"),
}


def init(folder: Path, rows: list[Any], *more: str) -> str:
    (folder / "mine data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = CliRunner().invoke(
        app, ["init", str(folder / "mine data.jsonl"), "--out", str(folder / "mine.yaml"), *more]
    )
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


@pytest.mark.parametrize("layout", ROWS)
def test_each_kind_of_data_gets_a_recipe_that_passes_the_check(layout: str, tmp_path: Path) -> None:
    row, base, split = ROWS[layout]
    output = init(tmp_path, [row(i) for i in range(200)], "--model", "generate:tiny?seed=0")
    assert (
        f"in the layout `{layout}`" in output
        and f"over `{base}`" in output
        and list(tmp_path.glob("*.yaml")) == [tmp_path / "mine.yaml"]
    )
    recipe, _ = load(tmp_path / "mine.yaml")
    check_files(recipe)
    assert (
        recipe.models["policy"].source == "generate:tiny?seed=0"
        and recipe.register
        and recipe.register.model == "mine"
    )
    assert {"final.ended", "final.repetitive"} <= set(recipe.register.gates)
    if recipe.offline and base == "kto":
        (update,) = recipe.offline.fit.updates["policy"]
        assert (update["desirable"], update["undesirable"]) == (3.0, 1.0), (
            "three answers with label false for one with true"
        )
    assert recipe.data.source == f"path:{tmp_path}/mine data.jsonl" and (recipe.data.splits or {})[split]


def test_sizes_follow_the_data(tmp_path: Path) -> None:
    """200 rows of 400 characters: 115 tokens and a template; 170 to train on, 10 steps an epoch. 20,000 rows
    need no second epoch.
    """
    row = ROWS["messages"][0]
    init(tmp_path, [row(i) for i in range(200)])
    sft = load(tmp_path / "mine.yaml")[0].sft
    assert sft and (sft.max_tokens, sft.fit.epochs) == (192, 8)
    init(tmp_path, [row(i) for i in range(3000)], "--force")
    sft = load(tmp_path / "mine.yaml")[0].sft
    assert sft and sft.fit.epochs == 1


def test_init_errors_are_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"none\.jsonl"):
        CliRunner().invoke(app, ["init", str(tmp_path / "none.jsonl")], catch_exceptions=False)
    with pytest.raises(RecipeError, match="hub:datasets/org/x"):
        CliRunner().invoke(app, ["init", "hub:datasets/org/x"], catch_exceptions=False)
    with pytest.raises(DataError, match="bar, foo"):
        init(tmp_path, [{"foo": 1, "bar": 2}])
    assert not list(tmp_path.glob("*.yaml"))
    init(tmp_path, [ROWS["messages"][0](i) for i in range(9)])
    with pytest.raises(RecipeError, match=r"mine\.yaml.*--out.*--force"):
        init(tmp_path, [ROWS["messages"][0](1)])


@pytest.mark.parametrize("model", [None, "generate:tiny?seed=0", "hub:org/name"])
@pytest.mark.parametrize("layout", ["messages", "prompt", "preference"])
def test_the_description_names_the_model_and_the_data(layout: str, model: str | None, tmp_path: Path) -> None:
    init(tmp_path, [ROWS[layout][0](i) for i in range(200)], *(("--model", model) if model else ()))
    about = load(tmp_path / "mine.yaml")[0].about
    assert f" of {model or 'SmolLM2-135M-Instruct'}, on mine data.jsonl" in about and ",," not in about
    assert "tiny" in about if model and "tiny" in model else "tiny model" not in about


@pytest.mark.parametrize("model", [None, "generate:tiny?seed=0"])
def test_the_plan_that_init_suggests_is_estimated_before_any_download(
    model: str | None, tmp_path: Path
) -> None:
    output = init(
        tmp_path, [ROWS["preference"][0](i) for i in range(200)], *(("--model", model) if model else ())
    )
    command = next(line for line in output.splitlines() if line.startswith("ratchet plan"))
    words = command.partition("#")[0].split()[1:]
    done = CliRunner().invoke(app, [*words, "--home", str(tmp_path / "out")], catch_exceptions=False)
    size = "134.5" if model is None else "1.4"
    assert done.exit_code == 0 and f"{size} million parameters" in done.output


def test_a_model_of_unknown_size_is_fetched_by_a_command_that_names_the_file(tmp_path: Path) -> None:
    init(tmp_path, [ROWS["preference"][0](i) for i in range(200)], "--model", "hub:org/name")
    ask = ["plan", str(tmp_path / "mine.yaml"), "--estimate", "--home", str(tmp_path / "out")]
    with pytest.raises(RecipeError, match=r"models\.policy") as refused:
        CliRunner().invoke(app, ask, catch_exceptions=False)
    assert f"`ratchet run {tmp_path / 'mine.yaml'} --until curate`" in str(refused.value)


@pytest.mark.parametrize("pairs", [40, 30, 60])
def test_rows_of_another_kind_are_counted(pairs: int, tmp_path: Path) -> None:
    """Half the rows, or more, are pairs: the recipe learns from these. Fewer: from prompts. What the recipe
    does not use is printed.
    """
    rows = [{"prompt": f"Say {i}", "chosen": f"{i}, of course.", "rejected": f"no {i}"} for i in range(pairs)]
    rows += [{"prompt": f"Tell me {i}"} for i in range(pairs, 80)]
    output = init(tmp_path, rows, "--model", "generate:tiny?seed=0")
    recipe = load(tmp_path / "mine.yaml")[0]
    if pairs >= 40:
        assert recipe.base == "dpo" and f"{pairs} preference pairs" in output
        assert f"{80 - pairs} prompts without answers" in output
    else:
        assert recipe.base == "instruct" and "50 prompts without answers" in output
        assert "30 preference pairs" in output
