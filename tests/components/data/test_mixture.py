"""Mixtures of several sources: caps, weights, the source of each row, determinism by seed."""

import json

import pytest

from ratchet.components.data import pins
from ratchet.components.data.curate import curate
from ratchet.components.data.groups import read_groups
from ratchet.components.errors import DataError, GateError, RecipeError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.sections import Data
from ratchet.components.stages.curate import counted, origins


def words(messages):
    return sum(1 + len(m["content"].split()) for m in messages)


def source(folder, name, count, **more):
    path = folder / f"{name}.jsonl"
    path.write_text(
        "".join(
            json.dumps({"prompt": f"question {i} of {name}", "completion": f"answer {i} of {name}", **more})
            + "\n"
            for i in range(count)
        )
    )
    return path


def curated(tmp_path, out, paths, seed=0, **each):
    section = {
        "sources": [{"source": f"path:{path}", **each.get(path.stem, {})} for path in paths],
        "near_threshold": None,
        "splits": {"sft": 0.8, "evaluate": 0.2},
    }
    summary = curate(section, paths, words, tmp_path / out, seed)
    return summary, {name: read_groups(tmp_path / out / f"{name}.parquet") for name in summary["splits"]}


@pytest.mark.parametrize("count", [1, 2])
def test_quarantine_does_not_depend_on_the_folder(tmp_path, count):
    """It is versioned, and a reproduction in another folder compares it."""
    found = []
    for home in ("here", "there"):
        (tmp_path / home).mkdir()
        copies = [source(tmp_path / home, f"copy{number}", 20) for number in range(count)]
        for copy in copies:
            copy.write_text(copy.read_text() + '{"prompt": "no answer"\n[1, 2]\n')
        sources = [{"source": f"path:data/mine{number}.jsonl"} for number in range(count)]
        section = {"sources": sources, "near_threshold": None, "splits": {"sft": 0.8, "evaluate": 0.2}}
        curate(section, copies, words, tmp_path / home / "out", 0)
        found.append((tmp_path / home / "out" / "quarantine.jsonl").read_text())
    assert found[0] == found[1] and found[0].count("mine0.jsonl, ") == 2


def test_weights_are_proportions_and_each_row_knows_its_source(tmp_path):
    paths = [
        source(tmp_path, "chat", 90),
        source(tmp_path, "code", 60, source="github"),
        source(tmp_path, "math", 60),
    ]
    weights = {"chat": {"weight": 3}, "code": {"weight": 1}, "math": {"weight": 0.5}}
    summary, splits = curated(tmp_path, "out", paths, **weights)
    rows = [group.prompt for groups in splits.values() for group in groups]
    count = {
        label: sum(prompt.source == label for prompt in rows)
        for label in ("chat.jsonl", "code.jsonl", "math.jsonl")
    }
    assert count == {
        "chat.jsonl": 90,
        "code.jsonl": 30,
        "math.jsonl": 15,
    }  # chat runs out first: 30 records a unit of weight
    assert next(p for p in rows if p.source == "code.jsonl").meta["source"] == "github" and all(
        p.id.startswith(p.source) for p in rows
    )
    assert {label: sum(one["groups"].values()) for label, one in summary["sources"].items()} == count
    assert counted(summary)["groups of code.jsonl"] == 30 and "60 records of code.jsonl" in origins(summary)
    assert summary["steps"][1]["dropped"] == {
        "over the weight of code.jsonl": 30,
        "over the weight of math.jsonl": 45,
    }


def test_mixture_is_determined_by_the_seed(tmp_path):
    paths = [source(tmp_path, "chat", 40), source(tmp_path, "code", 60)]
    (_, first), (_, again), (_, other) = (
        curated(tmp_path, out, paths, seed, code={"limit": 10})
        for out, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    ids = [
        {
            group.prompt.id
            for groups in splits.values()
            for group in groups
            if group.prompt.source == "code.jsonl"
        }
        for splits in (first, again, other)
    ]
    assert ids[0] == ids[1] != ids[2] and all(len(one) == 10 for one in ids)
    assert (tmp_path / "a/sft.parquet").read_bytes() == (tmp_path / "b/sft.parquet").read_bytes()


def test_one_source_is_held_out_and_not_capped(tmp_path):
    paths = [source(tmp_path, "chat", 40), source(tmp_path, "held", 20)]
    summary, splits = curated(
        tmp_path, "out", paths, chat={"limit": 12, "weight": 1}, held={"splits": {"test": "*"}, "limit": 5}
    )
    assert (
        {p.prompt.source for p in splits["evaluate"]} == {"held.jsonl"}
        and len(splits["evaluate"]) == 20
        and len(splits["sft"]) == 12
    )
    assert summary["splits"]["sft"]["published"] == "train"


def folder(tmp_path, name, **files):
    for split, count in files.items():
        (tmp_path / name).mkdir(exist_ok=True)
        path = parts(tmp_path, name, **{split: count})
        path.rename(tmp_path / name / f"{split}-00000-of-00001.jsonl")
    return tmp_path / name


@pytest.mark.parametrize(
    ("other", "groups"),
    [
        ({"train": 20, "test": 10}, {"sft": 20, "evaluate": 16}),  # the six rows of exam are held out
        ({"part": 20}, {"sft": 20, "evaluate": 6}),
        ({"test": 20}, {"sft": 21, "evaluate": 5}),  # one split in all: 26 rows by the shares
    ],
)
def test_a_test_split_is_held_out_though_its_source_has_no_other(tmp_path, other, groups):
    paths = [folder(tmp_path, "chat", **other), folder(tmp_path, "exam", test=6)]
    summary, splits = curated(tmp_path, "out", paths)
    assert {name: split["groups"] for name, split in summary["splits"].items()} == groups
    if len(splits["sft"]) == 20:
        assert not any(group.prompt.source == "exam" for group in splits["sft"])


def test_the_check_of_a_recipe_knows_the_splits_of_a_mixture(tmp_path):
    chat, exam = folder(tmp_path, "chat", part=20), folder(tmp_path, "exam", test=6)
    change = (
        "data={{near_threshold: null, sources: [{{source: 'path:{}'}}, {{source: 'path:{}'}}], "
        "splits: {{sft: 1, sft_validation: 0.2, evaluate: {{split: test}}}}}}"
    )
    check_files(load("sft", overrides=[change.format(chat, exam)])[0])
    with pytest.raises(RecipeError, match="no published splits"):
        check_files(load("sft", overrides=[change.format(exam, exam)])[0])


def parts(tmp_path, name, **counts):
    path = tmp_path / f"{name}.jsonl"
    rows = [
        {"prompt": f"question {i} of {name} {part}", "completion": f"answer {i}", "part": part}
        for part, count in counts.items()
        for i in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize(
    ("options", "counts"),
    [
        ({"limit": 5}, {"chat": {"sft": 5, "evaluate": 10}, "code": {"sft": 5, "evaluate": 6}}),
        ({"weight": 1}, {"chat": {"sft": 20, "evaluate": 10}, "code": {"sft": 20, "evaluate": 6}}),
    ],
)
def test_splits_of_a_column_are_capped_and_weighted_where_they_are_for_training(tmp_path, options, counts):
    paths = [
        parts(tmp_path, "chat", pretrain=40, held=10),
        parts(tmp_path, "code", pretrain=20, held=6),
    ]
    section = {
        "sources": [{"source": f"path:{p}", "columns": {"split": "part"}, **options} for p in paths],
        "near_threshold": None,
        "splits": {"sft": {"split": "pretrain"}, "evaluate": {"split": "held"}},
    }
    summary = curate(section, paths, words, tmp_path / "out", 0)
    assert {
        label.removesuffix(".jsonl"): one["groups"] for label, one in summary["sources"].items()
    } == counts


@pytest.mark.parametrize("limit", [None, 10])
def test_a_source_that_loses_all_that_its_limit_leaves_is_an_error(tmp_path, limit):
    good, bad = source(tmp_path, "good", 40), source(tmp_path, "bad", 100)
    bad.write_text(bad.read_text().replace("question", "Bitte erzähle mir etwas Neues über die Zahl"))
    section = {
        "sources": [{"source": f"path:{good}"}, {"source": f"path:{bad}", "limit": limit}],
        "near_threshold": None,
        "transforms": [{"name": "language"}],
        "splits": {"sft": 0.8, "evaluate": 0.2},
    }
    with pytest.raises(GateError, match="bad"):
        curate(section, [good, bad], words, tmp_path / "out", 0)


def test_weights_without_a_record_for_training_are_an_error(tmp_path):
    paths = [parts(tmp_path, "chat", pretrain=40), parts(tmp_path, "code", pretrain=20)]
    section = {
        "sources": [{"source": f"path:{p}", "columns": {"split": "part"}, "weight": 1} for p in paths],
        "splits": {"sft": 1, "evaluate": {"split": "pretrain"}},
    }
    with pytest.raises(DataError, match=r"no source with a `weight` .*'pretrain'.*'train'"):
        curate(section, paths, words, tmp_path / "out", 0)


def test_sources_in_recipes(tmp_path):
    chat = source(tmp_path, "chat", 3)
    mine = tmp_path / "mine.yaml"
    mine.write_text(
        "schema: 1\nabout: mine\nbase: sft\ndata:\n  sources:\n    - {source: 'path:chat.jsonl', limit: "
        "2}\n    - {source: 'generate:tiny_corpus', parser: messages}\n"
    )
    recipe, profile = load(mine)
    assert (
        recipe.data.source == ""
        and recipe.data.sources[0].source == f"path:{chat}"
        and recipe.data.labels == ["chat.jsonl", "tiny_corpus"]
    )
    fixed = pins.pinned(recipe, tmp_path)
    assert (
        fixed.data.sources[0].sha256 and plan(recipe, profile)["raw"].key != plan(fixed, profile)["raw"].key
    )
    assert load(mine, overrides=["data.source=generate:tiny_corpus"])[0].data.sources == []
    assert load(mine, overrides=["data.sources.0.limit=9"])[0].data.sources[0].limit == 9
    assert load(
        mine,
        overrides=[
            "data.sources.1.source=generate:tiny_corpus?seed=4",
            "data.sources.0.source=generate:tiny_corpus?seed=5",
        ],
    )[0].data.labels == ["tiny_corpus-1", "tiny_corpus-2"]
    alike = [{"source": f"path:{name}"} for name in ("p/x", "q/x", "r/x-1", "s/y")]
    assert conform(Data, {"sources": alike}, "data").labels == ["x-2", "x-3", "x-1", "y"]
    for change, message in [
        ("data.sources.0.weight=1", "only some sources have a `weight`"),
        ("data.sources.0.wieght=1", "did you mean 'weight'"),
        ("data.sources.0.weight=0", r"data.sources\[0\].weight: expected a number above 0, got 0"),
        ("data.sources=[]", "data: needs 'source'"),
        ("data={source: a, sources: [{source: b}]}", "got both `source` and `sources`"),
        ("data.sources.1.parser=mesages", "did you mean 'messages'"),
        ("data.sources.0.splits={tset: x}", "unknown key 'tset'; did you mean 'test'"),
    ]:
        with pytest.raises(RecipeError, match=message):
            load(mine, overrides=[change])
