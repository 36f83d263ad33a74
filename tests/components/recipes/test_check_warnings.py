"""Warnings on valid recipes that are hardly meant, and the hint for an inherited parser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import RatchetError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.check_warnings import (
    gates_of_few,
    not_required_accuracy,
    of_the_tiny_model,
    unused_reward_models,
)
from ratchet.components.recipes.recipe import inherited_sizes, load


def mine(folder: Path, base: str, rows: list[Any], **more: Any) -> Path:
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {"schema": 1, "base": base, "about": "mine", "data": {"source": "path:d.jsonl"}, **more}
    (folder / "mine.yaml").write_text(json.dumps(recipe))
    return folder / "mine.yaml"


def test_labels_that_are_all_true_are_a_warning(tmp_path: Path) -> None:
    rows = [{"prompt": f"what is {i}?", "completion": f"it is {i}", "label": True} for i in range(80)]
    (warning,) = check_files(load(mine(tmp_path, "kto", rows))[0]).warnings
    assert "label true" in warning and "'kto'" in warning
    rows[::3] = [{**row, "label": False} for row in rows[::3]]
    assert not check_files(load(mine(tmp_path, "kto", rows))[0]).warnings


@pytest.mark.parametrize(
    ("more", "columns", "unread"),
    [
        ({}, {}, []),
        ({"kto_tag": False, "note": None}, {}, ["kto_tag"]),
        ({"kto_tag": True}, {"label": "kto_tag"}, []),
        ({"id": 7, "system": "Be kind.", "meta": {"day": 1}}, {}, []),
        ({"text": "what is it?", "old": {"label": True}}, {"label": "old.label"}, ["text"]),
    ],
)
def test_columns_that_nothing_reads_are_named(
    tmp_path: Path, more: dict[str, Any], columns: dict[str, str], unread: list[str]
) -> None:
    """A label under another name would be imitated whatever it says."""
    rows = [{"instruction": f"what is {i}?", "output": f"it is {i}", **more} for i in range(80)]
    data = {"source": "path:d.jsonl", "columns": columns, "splits": {"evaluate": 0.2, "sft": 0.8}}
    checked = check_files(load(mine(tmp_path, "sft", rows, data=data, sft={"validation": None}))[0])
    assert checked.unread == unread
    assert any("columns that nothing reads" in line for line in checked.lines()) == bool(unread)


def test_a_gate_on_an_interval_of_few_prompts_is_a_warning() -> None:
    """Six prompts on one side of a bound are no chance at 95 %, five are."""
    gates = "register.gates={reward.exact_answer_gain_vs_base: {over: 0.0, interval: true}}"
    few, many = (
        gates_of_few(load("rlvr_grpo", overrides=[gates, f"evaluate.prompts={count}"])[0]) for count in (5, 6)
    )
    assert len(few) == 1 and "evaluate.prompts" in few[0] and not many


def test_evaluation_prompts_of_one_conversation_are_a_warning(tmp_path: Path) -> None:
    """Of two turns of one conversation, the later prompt contains the earlier."""
    turns = (
        ("user", "where is {}?"),
        ("assistant", "{} is here."),
        ("user", "since when?"),
        ("assistant", "{}."),
    )
    rows = [
        {"messages": [{"role": role, "content": text.format(f"box {i}")} for role, text in turns]}
        for i in range(200)
    ]
    data = {"source": "path:d.jsonl", "parser": "messages", "columns": {}}
    file = mine(tmp_path, "sft", rows, data=data, evaluate={"prompts": 8})
    (warning,) = (one for one in check_files(load(file)[0]).warnings if "conversation" in one)
    assert "data.evaluate.per_conversation: 1" in warning
    alone = load(file, overrides=["data.evaluate.per_conversation=1"])[0]
    assert not [one for one in check_files(alone).warnings if "conversation" in one]


def test_answers_that_begin_with_their_prompt_are_a_warning(tmp_path: Path) -> None:
    """Pairs of whole texts: the prompt would be trained as a part of the answer."""
    asked = [f"what is {i}?" for i in range(200)]
    rows = [{"prompt": q, "chosen": f"{q} it is {q[8:-1]}", "rejected": f"{q} no idea"} for q in asked]
    splits = {"splits": {"reward": 0.5, "reward_validation": 0.5}}
    some = [row if i % 3 else {**row, "rejected": "no idea"} for i, row in enumerate(rows)]
    few = [{**row, "rejected": "no idea"} if i % 3 else row for i, row in enumerate(rows)]
    for given, count in ((rows, 2), (some, 2), (few, 0)):
        file = mine(tmp_path, "reward", given, data={"source": "path:d.jsonl", **splits})
        found = [one for one in check_files(load(file)[0]).warnings if "every answer begins" in one]
        assert len(found) == count


def test_a_reward_model_that_nothing_reads_is_a_warning() -> None:
    asks = (
        "online.annotate=[{name: rewards.people, labels: 12, simulated: [0.1], verifier: rewards.length}]",
        "online.select=[{name: best_worst, reward: reward.people}]",
    )
    (warning,) = unused_reward_models(load("online_dpo", overrides=asks)[0])
    assert warning.startswith("reward: trains 'reward_model'") and "`reward: null`" in warning
    for name in ("online_dpo", "tiny_people", "reward_ensemble", "chat", "instruct", "reward_model"):
        assert not unused_reward_models(load(name)[0])


def test_a_reward_model_optimised_without_a_required_accuracy_is_a_warning() -> None:
    waived = ["reward.certificate.min_accuracy=null"]
    (warning,) = check_files(load("online_dpo", overrides=waived)[0]).warnings
    assert "optimises reward_model without requiring" in warning and "champion" in warning
    assert not not_required_accuracy(load("online_dpo")[0])
    assert not not_required_accuracy(load("reward_model", overrides=waived)[0]), "nothing optimises it"
    assert not not_required_accuracy(load("online_dpo", limit=8)[0]), "a smoke test registers nothing"
    (of_four,) = not_required_accuracy(load("ensemble_mean")[0])
    assert "reward_model_1 and reward_model_2" in of_four


def test_a_parser_of_the_base_that_reads_another_layout_is_named(tmp_path: Path) -> None:
    rows = [{"messages": [{"role": "user", "content": f"What is {i}?"}]} for i in range(30)]
    with pytest.raises(RatchetError, match=r"`data\.parser` is 'chitchat'.*`auto`"):
        check_files(load(mine(tmp_path, "instruct", rows))[0])


def test_sizes_of_the_tiny_model_are_a_warning_for_another_one() -> None:
    tiny = {"policy": {"source": "generate:tiny?seed=0"}}
    base = {"models": tiny, "offline": {"max_tokens": 128, "fit": {"learning_rate": 1e-4, "batch": 16}}}
    own = {"base": "dpo", "models": {"policy": {"source": "hub:org/name"}}}
    (warning,) = of_the_tiny_model(own, base)
    assert "offline.max_tokens 128, offline.fit.learning_rate 0.0001;" in warning
    assert not of_the_tiny_model({"base": "dpo", "models": tiny}, base)
    assert not of_the_tiny_model({**own, "offline": None}, base)
    assert not of_the_tiny_model(
        {**own, "offline": {"max_tokens": 64, "fit": {"learning_rate": 1e-4}}}, base
    ), "written, be it the same value"


def test_a_recipe_for_another_model_is_warned_of_what_its_base_sets(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "schema: 1\nbase: dpo\nabout: mine\nmodels: {policy: {source: 'hub:org/name', format: auto}}\n"
    )
    (warning,) = inherited_sizes(tmp_path / "mine.yaml")
    assert "'dpo' sets offline.max_tokens 128, offline.fit.learning_rate 0.0001" in warning
    changed = ["offline.max_tokens=512", "offline.fit.learning_rate=5.0e-6", "evaluate.max_tokens=128"]
    assert not inherited_sizes(tmp_path / "mine.yaml", changed)
    assert not inherited_sizes("dpo") and not inherited_sizes("instruct")
