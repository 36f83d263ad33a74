"""Comparisons from groups, preference pairs from labels, and a recipe that reads them."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.data.pair_builders import preference_pairs
from ratchet.components.data.parsing import parse
from ratchet.components.errors import DataError
from ratchet.components.labels.datasets import export, items_of, pairs_of, planted_items, repeated
from ratchet.components.labels.labels import Item, Label
from ratchet.components.labels.simulate import Annotator, simulate
from ratchet.components.recipes.sections import Pairs
from ratchet.components.types import Group, Prompt, Trajectory


def group(name: str, *answers: str) -> Group:
    prompt = Prompt(name, ({"role": "user", "content": f"{name}?"},), "right", "src")
    made = tuple(
        Trajectory(({"role": "assistant", "content": one},), actor="policy", weights="w1") for one in answers
    )
    return Group(prompt, made)


GROUPS = [group("p", "a", "b", "a", ""), group("q", "c", "d", "e"), group("r", "same", "same")]
ITEM = Item("i", [{"role": "user", "content": "?"}], ["x", "y", "z"], round=3, policy="w1", prompt_id="p")


def test_items_compare_different_answers_one_pair_a_prompt_first() -> None:
    one = items_of(GROUPS, round=2, policy="w0")
    assert {item.prompt_id for item in one} == {"p", "q"}
    assert all(len(set(item.answers)) == 2 for item in one)
    assert all(
        (item.round, item.policy, item.source, item.answer) == (2, "w1", "src", "right") for item in one
    )
    every = items_of(GROUPS, 10)
    assert sorted(item.prompt_id for item in every) == ["p", "q", "q", "q"]
    assert len({item.id for item in every}) == 4
    assert [item.id for item in items_of(GROUPS, 3)] == [item.id for item in every[:3]]
    assert items_of(GROUPS, 10, seed=1) != every


def test_a_repetition_has_the_answers_of_its_item_and_another_id() -> None:
    items = items_of(GROUPS, 4)
    (again,) = repeated(items, 0.25)
    original = next(item for item in items if item.id == again.repeat_of)
    assert again.answers == original.answers and again.id != original.id


def test_planted_items_are_read_from_preference_pairs(tmp_path: Path) -> None:
    file = tmp_path / "known.jsonl"
    file.write_text(json.dumps({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}) + "\n")
    (item,) = planted_items(file)
    assert item.planted == 0 and list(item.answers) == ["4", "5"]
    file.write_text(json.dumps({"prompt": "2 + 2?"}) + "\n")
    with pytest.raises(DataError):
        planted_items(file)


def test_equal_comparisons_are_one_item(tmp_path: Path) -> None:
    pairs = [group("p", *pair) for pair in (("yes", "no"), ("no", "yes"), ("yes", "no"), ("yes", "so"))]
    items = items_of(pairs, 2)
    assert len({item.id for item in items}) == 2 == len(items), "two comparisons although one is there thrice"
    file = tmp_path / "known.jsonl"
    row = {"prompt": "2 + 2?", "chosen": "4", "rejected": "5"}
    file.write_text(f"{json.dumps(row)}\n{json.dumps(row)}\n")
    assert len(planted_items(file)) == 1
    file.write_text(f"{json.dumps(row)}\n{json.dumps({**row, 'chosen': '5', 'rejected': '4'})}\n")
    with pytest.raises(DataError, match="'5' and '4'"):
        planted_items(file)


def test_planted_pairs_of_several_turns_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def turns(*texts: str) -> list[dict[str, str]]:
        return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]

    several = {
        "chosen": turns("Book a table", "How many?", "Four", "Done."),
        "rejected": turns("Book a table", "Where?", "Luigi's", "It is full."),
    }
    shared = {"chosen": turns("hi", "yes?", "2 + 2?", "4"), "rejected": turns("hi", "yes?", "2 + 2?", "5")}
    file = tmp_path / "known.jsonl"
    file.write_text(f"{json.dumps(several)}\n{json.dumps(shared)}\n")
    (item,) = planted_items(file)
    assert list(item.prompt) == shared["chosen"][:3] and list(item.answers) == ["4", "5"]
    assert "1 of 2 pairs" in caplog.text
    file.write_text(json.dumps(several) + "\n")
    with pytest.raises(DataError, match="one message a side"):
        planted_items(file)


def test_pairs_have_the_chosen_answer_first_and_the_annotator() -> None:
    groups, counts = pairs_of(
        [ITEM, Item("k", ITEM.prompt, ["x", "y"], planted=1)],
        [
            Label("i", "ann", 1, "choice", [2, 0, 1], 4.5, "shorter"),
            Label("i", "ben", None, "tie", [0, 1, 2], 2.0),
            Label("k", "ann", 1, "choice", [0, 1], 2.0),
        ],
    )
    assert [[t.text for t in one.trajectories] for one in groups] == [["y", "x"], ["y", "z"]]
    about = {"annotator": ["ann"] * 2, "seconds": [4.5] * 2, "reason": ["shorter"] * 2}
    assert groups[0].columns == {**about, "label_weight": [pytest.approx(1.0)] * 2}
    assert groups[0].prompt.meta == {
        "annotator": "ann", "item": "i", "round": 3, "label_weight": pytest.approx(1.0)
    }  # fmt: skip
    assert groups[0].trajectories[0].weights == "w1"
    assert counts == {
        "labels": 1,
        "labels with the verdict tie": 1,
        "labels of planted, repeated or removed items": 1,
    }


def test_weights_of_exported_pairs_have_mean_1_also_with_repeated_items() -> None:
    people = [Annotator("a", 0.02), Annotator("b", 0.02), Annotator("c", 0.45)]
    session = simulate(people, each=60, planted=0.1, repeats=0.3, overlap=0.5, seed=1)
    groups, _ = pairs_of(session.items, session.labels)
    assert fmean(one.columns["label_weight"][0] for one in groups) == pytest.approx(1.0)


def test_an_export_is_read_as_preference_pairs(tmp_path: Path) -> None:
    file = tmp_path / "labels.parquet"
    counts = export([ITEM], [Label("i", "ann", 1, "choice", [0, 1, 2], 1.0)], file)
    assert counts["pairs"] == 2 == len(read_groups(file))
    records = parse(file).kept
    assert [(r.messages[-1]["content"], r.rejected[-1]["content"]) for r in records] == [
        ("y", "x"),
        ("y", "z"),
    ]
    assert records[0].meta["annotator"] == "ann"
    (pair, _) = preference_pairs(records, lambda messages: 1, Pairs()).kept
    assert pair.columns["label_weight"] == [pytest.approx(1.0)] * 2, "for the key `weight_column`"
    with pytest.raises(DataError):
        export([ITEM], [], file)
    with pytest.raises(DataError):
        export([ITEM], [Label("i", "ann", 1, "choice", [0, 1, 2], 1.0)], tmp_path / "labels.csv")
