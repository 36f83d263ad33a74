"""Published splits: train and test files are never mixed, recipe splits come from the right ones, and
held-out rows are not trained on.
"""

import json
from pathlib import Path

import pytest

from ratchet.components.data.curate import curate
from ratchet.components.data.decontaminate import decontaminate
from ratchet.components.data.groups import read_groups
from ratchet.components.data.parsing import parse
from ratchet.components.data.published import home_of, patterns_of, published
from ratchet.components.data.records import Conversation
from ratchet.components.errors import DataError, RatchetError, RecipeError, SourceError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.recipe import load
from ratchet.components.stages.curate import counted, origins

GSM8K_CARD = """---
language: [en]
configs:
- config_name: main
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: main/test-*
- config_name: socratic
  data_files:
  - split: train
    path: socratic/train-*
  - split: test
    path: socratic/test-*
---
# Grade School Math
"""


def words(messages):
    return sum(1 + len(m["content"].split()) for m in messages)


def write(folder: Path, name: str, *rows: object) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def questions(start: int, stop: int, **more: object) -> list[dict[str, object]]:
    return [
        {
            "question": f"Anna has {i} apples and buys {i + 2} more of them at the market on a sunny day. "
            "How many apples does she have in the evening?",
            "answer": f"{i} + {i + 2} = {2 * i + 2}\n#### {2 * i + 2}",
            **more,
        }
        for i in range(start, stop)
    ]


def gsm8k(folder: Path) -> Path:
    (folder / "README.md").parent.mkdir(parents=True, exist_ok=True)
    (folder / "README.md").write_text(GSM8K_CARD)
    for config in ("main", "socratic"):
        write(folder, f"{config}/train-00000-of-00001.jsonl", *questions(0, 40))
        write(folder, f"{config}/test-00000-of-00001.jsonl", *questions(40, 60))
    return folder


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train.jsonl", "test.jsonl"), ["test", "train"]),
        (
            (
                "data/train-00000-of-00002.jsonl",
                "data/train-00001-of-00002.jsonl",
                "data/validation-00000-of-00001.jsonl",
            ),
            ["train", "train", "validation"],
        ),
        (("train/part-1.jsonl", "test/part-1.jsonl"), ["test", "train"]),
        (("train_sft.jsonl", "test_sft.jsonl"), ["test", "train"]),
        (("gsm8k_test.jsonl", "gsm8k_train.jsonl"), ["test", "train"]),
        (("helpful/train.jsonl", "helpful/test.jsonl", "harmless/train.jsonl"), ["train", "test", "train"]),
        (("conversations.jsonl", "dev.jsonl", "dataset_info.json"), ["train", "validation"]),
        (("trainers.jsonl", "tests.jsonl"), ["", ""]),
        (("train-1.jsonl", "train-2.jsonl"), ["", ""]),
        (("test.jsonl",), [""]),
    ],
)
def test_the_split_of_a_file_is_in_its_name_or_its_folders(tmp_path, names, splits):
    for name in names:
        write(tmp_path, name, {"prompt": "hi", "completion": name})
    assert [split for split, _ in published(tmp_path)] == splits
    assert [record.published for record in parse(tmp_path).kept] == splits


def test_splits_are_read_from_the_dataset_card(tmp_path):
    folder = gsm8k(tmp_path)
    with pytest.raises(SourceError, match=r"main, socratic"):
        published(folder)
    assert [(split, file.relative_to(folder).as_posix()) for split, file in published(folder, "main")] == [
        ("train", "main/train-00000-of-00001.jsonl"),
        ("test", "main/test-00000-of-00001.jsonl"),
    ]
    with pytest.raises(SourceError, match=r"mian.*'main'"):
        published(folder, "mian")
    assert patterns_of("---\nconfigs: [{config_name: default, data_files: 'a/**'}]\n---", None) == {
        "train": ["a/**"]
    }
    for wrong in ("[{path: a.jsonl}]", "[{split: train}]", "[{split: train, path: a.jsonl}, b.jsonl]"):
        with pytest.raises(SourceError, match=r"its card is wrong: .*`split` and `path`"):
            patterns_of(f"---\nconfigs: [{{config_name: default, data_files: {wrong}}}]\n---", None)
    assert patterns_of("no front matter", None) == patterns_of("---\n: [\n---", "x") == {}
    (folder / "README.md").unlink()
    assert [split for split, _ in published(folder, "main")] == ["test", "train"]
    with pytest.raises(SourceError, match=r"'mian'.*'main'"):
        published(folder, "mian")


def test_source_lists_its_published_splits(tmp_path):
    for name in ("a.jsonl", "b1.jsonl", "b2.jsonl", "c.jsonl", "train_sft.jsonl", "train_gen.jsonl"):
        write(tmp_path, name, {"prompt": "hi", "completion": name})
    with pytest.raises(DataError, match=r"train_gen, train_sft"):
        published(tmp_path)
    found = published(tmp_path, splits={"train": ["train_sft", "a.jsonl"], "test": "b*.jsonl"})
    assert [(split, file.name) for split, file in found] == [
        ("train", "train_sft.jsonl"),
        ("train", "a.jsonl"),
        ("test", "b1.jsonl"),
        ("test", "b2.jsonl"),
    ]
    assert published(tmp_path / "a.jsonl", splits={"test": "*"}) == [("test", tmp_path / "a.jsonl")]
    for splits, message in [
        ({"train": "traim_sft"}, "'traim_sft'.* did you mean 'train_sft'"),
        ({"train": "*", "test": "a.jsonl"}, "a.jsonl into both train and test"),
    ]:
        with pytest.raises(DataError, match=message):
            published(tmp_path, splits=splits)


def test_which_published_split_each_split_is_made_from():
    every = {"sft": None, "sft_validation": None, "evaluate": None}
    assert home_of(every, {""}) == dict.fromkeys(every, "")
    assert home_of(every, {"train", "test"}) == {
        "sft": "train",
        "sft_validation": "train",
        "evaluate": "test",
    }
    assert home_of(every, {"train", "validation"}) == {
        "sft": "train",
        "sft_validation": "train",
        "evaluate": "validation",
    }
    assert home_of(every, {"train", "validation", "test"}) == {
        "sft": "train",
        "sft_validation": "validation",
        "evaluate": "test",
    }
    assert home_of({"reward": None, "reward_validation": None}, {"train", "test"}) == {
        "reward": "train",
        "reward_validation": "test",
    }
    assert home_of({**every, "sft_validation": "test"}, {"train", "test"})["sft_validation"] == "test"
    with pytest.raises(RecipeError, match=r"data\.splits\.evaluate: .*'validation'"):
        home_of({"evaluate": "validation"}, {"train", "test"})
    with pytest.raises(RecipeError, match=r"data\.splits\.evaluate\.split"):
        home_of({"evaluate": "test"}, {""})


def test_train_and_test_are_never_mixed(tmp_path):
    folder = gsm8k(tmp_path / "gsm8k")
    section = {
        "config": "main",
        "near_threshold": None,
        "splits": {"sft": 0.9, "sft_validation": 0.1, "evaluate": 0.5},
        "decontaminate": None,
    }
    summary = curate(section, folder, words, tmp_path / "out", 0)
    numbers = {
        name: {
            int(g.prompt.messages[0]["content"].split()[2])
            for g in read_groups(tmp_path / f"out/{name}.parquet")
        }
        for name in summary["splits"]
    }
    assert numbers["sft"] | numbers["sft_validation"] == set(range(40)) and numbers["evaluate"] == set(
        range(40, 60)
    )
    assert {name: split["published"] for name, split in summary["splits"].items()} == {
        "sft": "train",
        "sft_validation": "train",
        "evaluate": "test",
    }
    assert (
        origins(summary) == "sft, sft_validation from the published train; evaluate from the published test"
    )
    assert counted(summary)["groups of evaluate from the published test"] == 20
    summary = curate(
        {**section, "splits": {"sft": 0.9, "sft_validation": 0.1}}, folder, words, tmp_path / "unread", 0
    )
    assert summary["splits"]["sft_validation"]["published"] == "test"
    summary = curate({**section, "splits": {"sft": 1}}, folder, words, tmp_path / "unread", 0)
    assert summary["steps"][1]["dropped"] == {
        "of the published split 'test', from which no split is made": 20
    }


def test_unknown_published_split_is_an_error_before_the_run(tmp_path):
    folder = gsm8k(tmp_path)
    for change, message in [
        ("data.source=path:{}", "data.source: .* its card has the configurations main, socratic"),
        (
            "data.sources=[{{source: 'path:{}', config: main, splits: {{train: tran}}}}]",
            r"data.sources\[0\]: .* names 'tran'",
        ),
        ("data.sources=[{{source: 'path:{}', config: main, splits: {{train: train}}}}]", ""),
        (
            "data={{source: 'path:{}', config: main, splits: {{sft: 1, sft_validation: 1, evaluate: "
            "{{split: validation}}}}}}",
            "data.splits.evaluate: made from the published split 'validation', but the data has test, train",
        ),
        (
            "data={{source: 'path:{}', config: main, splits: {{sft: 1, sft_validation: 1, evaluate: "
            "{{split: test}}}}}}",
            "",
        ),
    ]:
        recipe = load("sft", overrides=[change.format(folder)])[0]
        if message:
            with pytest.raises(RatchetError, match=message):
                check_files(recipe)
        else:
            check_files(recipe)


def record(key: str, prompt: str, reply: str = "Yes.", **more) -> Conversation:
    return Conversation(
        key, ({"role": "user", "content": prompt}, {"role": "assistant", "content": reply}), opening=1, **more
    )


LONG = (
    "A train leaves the station at noon and travels at sixty miles an hour for three hours before it "
    "stops to rest."
)


def test_decontamination_finds_exactly_the_planted_rows():
    held_out = [
        record(f"t{i}", f"Read this. {text}")
        for i, text in enumerate((LONG, "What is 3 + 4?", "Name the capital of France."))
    ]
    parts = {
        "sft": [
            record("copy", "what is  3 + 4"),
            record("other sign", "What is 3 - 4?"),
            record("quoted", "Please help.", f"Someone asked me: {LONG.upper()}"),
            record(
                "rejected",
                "Well?",
                rejected=({"role": "user", "content": "Well?"}, {"role": "assistant", "content": LONG}),
            ),
            record("twelve words", " ".join(LONG.split()[:12])),
            record("the answer", "Which word?", "Yes."),
            Conversation(
                "turns",
                (
                    {"role": "user", "content": "Read this. What is 3 + 4?"},
                    {"role": "assistant", "content": "7"},
                ),
            ),
        ],
        "sft_validation": [
            record("also", f"{LONG} When does it stop?"),
            record("own", "A question of its own, which nobody else has asked so far, with many words in it"),
        ],
        "evaluate": held_out,
    }
    parts["sft"][0] = record("copy", "read this what is  3 + 4")
    kept, dropped = decontaminate(parts, [], 13)
    assert {d.id: d.explained for d in dropped} == {
        "copy": "contaminated, the same prompt as in evaluate: t1",
        "turns": "contaminated, the same prompt as in evaluate: t1",
        "quoted": "contaminated, 13 words of a question in evaluate: t0",
        "rejected": "contaminated, 13 words of a question in evaluate: t0",
        "also": "contaminated, 13 words of a question in evaluate: t0",
    }
    assert (
        [r.id for r in kept["sft"]] == ["other sign", "twelve words", "the answer"]
        and kept["evaluate"] == held_out
        and list(kept) == list(parts)
    )
    kept, dropped = decontaminate(
        {"sft": parts["sft"][1:3], "evaluate": held_out[:1]}, [record("b", LONG)], 13
    )
    assert [d.id for d in dropped] == ["t0", "quoted"]


@pytest.mark.parametrize("split", ["evaluate", "evaluate_shifted", "evaluate_validation"])
def test_every_split_of_the_kind_evaluate_is_held_out(split):
    kept, dropped = decontaminate({"sft": [record("copy", LONG)], split: [record("t", LONG)]}, [], 13)
    assert [d.id for d in dropped] == ["copy"] and len(kept[split]) == 1


def talk(key: str, *turns: str, **more) -> Conversation:
    roles = ("user", "assistant")
    return Conversation(key, tuple({"role": roles[i % 2], "content": t} for i, t in enumerate(turns)), **more)


OTHER = (
    "The museum opens at nine and closes at half past five except on Thursdays when it stays open until eight"
)


@pytest.mark.parametrize(
    "held_out",
    [
        [talk("t", "Hi there!", "Hello.", LONG, "Sixty.", OTHER, "Eight.")],
        [
            talk("t0", "Hello, how are you today?", "Fine.", LONG, "Sixty."),
            talk("t1", "Hello, how are you today?", "Fine.", OTHER, "Eight."),
        ],
    ],
    ids=["after a greeting", "after the same first turn"],
)
def test_questions_in_later_turns_are_held_out(held_out):
    copies = [record("one", f"Tell me. {LONG}"), record("other", f"Tell me. {OTHER}")]
    _, dropped = decontaminate({"sft": copies, "evaluate": held_out}, [], 13)
    assert [d.id for d in dropped] == ["one", "other"]


def test_a_question_is_the_same_on_every_topic_and_the_first_turn_of_a_conversation_is_not():
    text = "What is the capital of Mongolia?"
    topics = {"none": None, "cities": "Cities", "quiz": "Quiz"}
    training = [record(f"question {name}", text, topic=topic) for name, topic in topics.items()]
    training += [talk(f"turn {name}", text, "Ulaanbaatar.", topic=topic) for name, topic in topics.items()]

    def found(held_out):
        return [d.id for d in decontaminate({"sft": training, "evaluate": [held_out]}, [], 13)[1]]

    for topic in topics.values():
        assert found(record("t", text, topic=topic)) == [r.id for r in training]
    assert found(talk("t", text, "Yes.", topic="Cities")) == ["question cities", "turn cities"]
    assert found(talk("t", text, "Yes.")) == ["question none", "turn none"]


def test_task_boilerplate_is_not_contamination():
    task = (
        "Answer the following question step by step and give the final answer alone on the last line please"
    )
    held_out = [record(f"t{i}", f"{task} {i}") for i in range(5)]
    kept, dropped = decontaminate({"sft": [record("own", f"{task} 99")], "evaluate": held_out}, [], 13)
    assert not dropped and len(kept["sft"]) == 1
    kept, dropped = decontaminate({"sft": [record("own", f"{task} 99")], "evaluate": held_out[:1]}, [], 13)
    assert len(dropped) == 1


def test_curation_counts_decontaminated_rows(tmp_path):
    write(
        tmp_path,
        "mine/train.jsonl",
        *questions(0, 30),
        {"question": LONG, "answer": "so #### 1"},
        {"question": "Which fish?", "answer": f"{LONG} #### 2"},
    )
    write(tmp_path, "mine/test.jsonl", *questions(30, 40), {"question": f"Think. {LONG}", "answer": "#### 3"})
    write(tmp_path, "bench.jsonl", {"question": "Which fish?", "answer": "#### 2"})
    section = {
        "near_threshold": None,
        "splits": {"sft": 1, "evaluate": 1},
        "sources": [{"source": "path:mine"}, {"source": "path:bench.jsonl", "splits": {"benchmark": "*"}}],
    }
    summary = curate(section, [tmp_path / "mine", tmp_path / "bench.jsonl"], words, tmp_path / "out", 0)
    step = next(s for s in summary["steps"] if s["step"] == "decontaminate")
    assert step["dropped"] == {
        "contaminated, 13 words of a question in evaluate": 1,
        "contaminated, the same prompt as in a benchmark": 1,
    }
    assert origins(summary).endswith("; 2 contaminated records left out")
    assert summary["splits"]["sft"]["groups"] == 30 and summary["splits"]["evaluate"]["groups"] == 11
    lines = [json.loads(line) for line in (tmp_path / "out/quarantine.jsonl").open()]
    assert {line["id"]: line["reason"].rpartition(": ")[2] for line in lines} == {
        "mine-train-30": "mine-test-10",
        "mine-train-31": "bench.jsonl-bench-0",
    }


@pytest.mark.parametrize("values", [(0, 1), (False, True), ("0", "1")])
def test_a_split_column_of_numbers_keeps_its_zeros(tmp_path: Path, values: tuple[object, object]) -> None:
    """A split 0 is not a row without a split, which would be trained on."""
    file = tmp_path / "rows.jsonl"
    rows = [{"prompt": f"question {i}", "held_in": values[i % 2]} for i in range(4)]
    file.write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "no split", "held_in": None}])
    )
    found = parse(file, columns={"split": "held_in"})
    assert [record.published for record in found.kept] == [str(values[i % 2]) for i in range(4)] + [""]
