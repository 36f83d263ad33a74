"""Catalogue of bad data: `ratchet recipes check` and `ratchet run` report each in one sentence, before a
server starts or torch is imported.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from ratchet.components.errors import GateError, RatchetError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.check_records import HEAD, LONGEST, MORE
from ratchet.components.recipes.recipe import load
from ratchet.flows.cli import app

ROOT = Path(__file__).resolve().parents[3]
CHAT = [
    {
        "messages": [
            {"role": "user", "content": f"what is {i}?"},
            {"role": "assistant", "content": f"it is {i}"},
        ]
    }
    for i in range(40)
]
LABELS = [{"prompt": f"what is {i}?", "completion": f"it is {i}", "label": i % 2 == 0} for i in range(40)]
PAIRS = [{"prompt": f"what is {i}?", "chosen": f"it is {i}", "rejected": "go away"} for i in range(40)]
FIRST = [
    {
        "messages": [
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": f"what is {i}?"},
            {"role": "assistant", "content": f"it is {i}"},
        ]
    }
    for i in range(40)
]
TWICE = [
    {
        "messages": [
            {"role": "user", "content": f"what is {i}?"},
            {"role": "user", "content": "well?"},
            {"role": "assistant", "content": "it is"},
        ]
    }
    for i in range(40)
]
SOLVED = [
    {"prompt": f"what is {i} + 1?", "answer": f"that makes {i + 1} eggs" if i % 8 == 0 else f"{i + 1}"}
    for i in range(40)
]
TOPICS = [
    {
        "prompt": f"what is {i}?",
        "completion": f"it is {i}",
        "topic": ("red kites", "old trains", "deep sea", "warm bread")[i % 4],
    }
    for i in range(80)
]
LATIN = b"".join(
    json.dumps({"prompt": f"{i}?", "completion": "caf\u00e9"}, ensure_ascii=False).encode("latin-1") + b"\n"
    for i in range(9)
)

CASES: dict[str, tuple[str, Mapping[str, Any], str]] = {
    "unlike any layout": (
        "sft",
        {"d.jsonl": [{"foo": 1, "bar": 2}] * 9},
        "no known layout: the row has the columns bar, foo, which resemble none of alpaca, ",
    ),
    "one column missing": (
        "sft",
        {"d.jsonl": [{"prompt": "a?", "respons": "b"}] * 9},
        "the row has a column 'respons', and would be read as `prompt` without it; `response` reads "
        "'response'. Write `data.columns: {response: respons}`",
    ),
    "empty": ("sft", {"d.jsonl": []}, "d.jsonl holds no usable record: it is empty"),
    "not UTF-8": ("sft", {"d.jsonl": LATIN}, "'utf-8' codec can't decode byte 0xe9"),
    "no JSON": ("sft", {"d.json": b"[{"}, "d.json is not valid JSON: "),
    "JSON of a single thing": ("sft", {"d.json": b"3"}, "d.json holds a JSON int, expected a list of rows"),
    "no Parquet": ("sft", {"d.parquet": b"PAR1 no PAR1"}, "d.parquet is not a readable Parquet file: "),
    "no gzip": ("sft", {"d.jsonl.gz": b"plain"}, "d.jsonl.gz is an incomplete or invalid gzip file: "),
    "another kind of file": ("sft", {"d.docx": b"x"}, "d.docx is not a data file; expected one of .jsonl, "),
    "a folder without data": ("sft", {"d/notes.txt": b"x"}, "holds no .jsonl, .json, "),
    "a misspelt name": ("sft", {"d.jsonl": CHAT, "ask": "e.jsonl"}, "there is no file or folder "),
    "copies of one": (
        "sft",
        {"d.jsonl": CHAT[:1] * 40},
        "1 different prompts or topics in the 1 records that are left of 40 (duplicates: duplicate 39): "
        "too few for ",
    ),
    "labels for pairs": (
        "dpo",
        {"d.jsonl": LABELS},
        "data.splits.reward: expected preference pairs (chosen and rejected), got 40 single answers with "
        "a `label`",
    ),
    "conversations for pairs": (
        "dpo",
        {"d.jsonl": CHAT, "splits": None},
        "the recipe reads the split 'reward', which is made of preference pairs, but none of the 40 "
        "records has any; read as `messages`: 40",
    ),
    "pairs for labels": (
        "kto",
        {"d.jsonl": PAIRS},
        "data.splits.labelled: expected answers with a `label`, true or false, got 40 preference pairs",
    ),
    "conversations for labels": (
        "kto",
        {"d.jsonl": CHAT},
        "data.splits.labelled: expected answers with a `label`, true or false, got none",
    ),
    "a test split that is not there": (
        "sft",
        {"d.jsonl": CHAT, "splits": {"sft": 1, "sft_validation": 1, "evaluate": {"split": "test"}}},
        "the data has no published splits",
    ),
    "a column that is not there": (
        "sft",
        {"d.jsonl": [{"q": "a?", "a": "b"}] * 9, "columns": {"prompt": "question", "completion": "a"}},
        "data.columns.prompt: the row has no column 'question', it has q, a",
    ),
    "two splits for one file": (
        "sft",
        {"d.jsonl": CHAT, "sources": [{"source": "path:d.jsonl", "splits": {"train": "a", "test": "b"}}]},
        "expected one split",
    ),
    "the assistant speaks first": ("sft", {"d.jsonl": FIRST}, "split 'sft' is empty: "),
    "the assistant speaks first in half of them": (
        "sft",
        {"d.jsonl": FIRST[:20] + CHAT[20:]},
        "by step: build sft: the assistant speaks first (",
    ),
    "two users in a row": ("sft", {"d.jsonl": TWICE}, "split 'sft' is empty: "),
    "rows that cannot be read": (
        "sft",
        {"d.jsonl": CHAT[:20] + [{"foo": 1}] * 20},
        "data.max_dropped: 20 of 40 records (50.0%) are lost before the split, ",
    ),
    "a wrong reference answer": ("rlvr_grpo", {"d.jsonl": SOLVED}, "rewards.exact_answer "),
    "a wrong reference answer for an environment": (
        "score",
        {"d.jsonl": [{**row, "completion": "it is"} for row in SOLVED]},
        "rewards.exact_answer ",
    ),
    "an environment without reference answers": (
        "score",
        {
            "d.jsonl": [
                {
                    "prompt": f"what is {i}?",
                    "split": part,
                    **({"completion": f"{i}"} if part != "ask" else {}),
                }
                for i, part in enumerate(20 * ["teach", "ask", "test"])
            ],
            "columns": {"split": "split"},
            "splits": {
                "sft": {"split": "teach"},
                "prompts": {"split": "ask"},
                "evaluate": {"split": "test"},
            },
        },
        "online.rollout: rewards.exact_answer compares with the reference answer, which 20 of 20 prompts ",
    ),
    "three rows": (
        "sft",
        {"d.jsonl": CHAT[:3]},
        "data.min_groups: expected at least 2 groups in every split, got 1 in 'sft', 1 in "
        "'sft_validation', 1 in 'evaluate', of 3 rows",
    ),
    "four topics": (
        "sft",
        {"d.jsonl": TOPICS},
        "data.min_topics: expected at least 2 topics in every split, got 1 in 'sft_validation', 1 in "
        "'evaluate', of 80 rows",
    ),
    "one topic a split": (
        "sft",
        {"d.jsonl": TOPICS, "min_topics": 1},
        "data.max_topic_share: expected at most 90% of one topic in every split, got 100% in "
        "'sft_validation', 100% in 'evaluate'",
    ),
    "no such configuration": (
        "sft",
        {"d/train.jsonl": CHAT, "config": "main"},
        "has no configuration 'main'",
    ),
}


def written(folder: Path, base: str, given: Mapping[str, Any]) -> Path:
    """A recipe over `base` whose data is the first file of `given`; names without a suffix are keys of
    `data`.
    """
    files = {name: content for name, content in given.items() if "." in name}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(
            content
            if isinstance(content, bytes)
            else "".join(json.dumps(row) + "\n" for row in content).encode()
        )
    data = {key: value for key, value in given.items() if "." not in key and key != "ask"}
    if "sources" not in data:
        data = {"source": f"path:{given.get('ask', next(iter(files)).split('/')[0])}", **data}
    (folder / "mine.yaml").write_text(json.dumps({"schema": 1, "base": base, "about": "mine", "data": data}))
    return folder / "mine.yaml"


@pytest.mark.parametrize("case", CASES)
def test_bad_data_is_one_sentence(case: str, tmp_path: Path) -> None:
    base, given, message = CASES[case]
    file = written(tmp_path, base, given)
    with pytest.raises(RatchetError) as refused:
        check_files(load(file)[0])
    assert message in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize("command", [("recipes", "check"), ("run",)])
def test_no_server_starts_and_torch_is_not_imported(command: tuple[str, ...], tmp_path: Path) -> None:
    file = written(tmp_path, *CASES["conversations for pairs"][:2])
    program = (
        f"import sys; from ratchet.flows.cli import main; sys.argv = ['ratchet', *{command!r}, "
        f"{str(file)!r}]\ntry: main()\nfinally: "
        "print('loaded', sorted({'torch', 'transformers', 'prefect'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: the recipe reads the split 'reward'"), (
        done.stderr
    )
    assert done.stdout == "loaded []\n" and not list(tmp_path.glob("out/*.db"))


def test_check_reads_further_rows_if_the_first_do_not_fill_the_splits(tmp_path: Path) -> None:
    rows: list[Any] = [{"foo": i} for i in range(HEAD)]
    rows += [{"prompt": f"what is {i}?", "completion": "it is"} for i in range(4 * HEAD)]
    check_files(load(written(tmp_path, "sft", {"d.jsonl": rows}))[0])
    with pytest.raises(RatchetError, match=f"all {HEAD} rows"):
        check_files(load(written(tmp_path, "sft", {"d.jsonl": rows[:HEAD]}))[0])


def of_pairs(folder: Path, rows: int, *, prompts: int = 4, **reward: Any) -> Path:
    text = written(folder, "online_dpo", {"d.jsonl": [{**PAIRS[0], "prompt": f"{i}?"} for i in range(rows)]})
    recipe = yaml.safe_load(text.read_text())
    recipe |= {"online": {"rounds": 3, "prompts_per_round": prompts}, "reward": reward}
    text.write_text(yaml.safe_dump(recipe))
    return text


def test_rounds_that_need_more_prompts_than_there_are_stop_before_anything_trains(tmp_path: Path) -> None:
    """The first rollout would refuse them, after SFT and the reward model."""
    with pytest.raises(GateError, match=r"online\.prompts_per_round: .*3 rounds of 40 prompts need 120"):
        check_files(load(of_pairs(tmp_path, 60, prompts=40))[0])
    check_files(load(of_pairs(tmp_path, 60))[0])
    check_files(load(of_pairs(tmp_path, 2 * HEAD, prompts=40))[0])  # enough beyond the first rows
    check_files(load(of_pairs(tmp_path, MORE + 1, prompts=400))[0])  # judged in the run, not by a prefix


def test_a_certificate_of_more_pairs_than_there_are_stops_before_anything_trains(tmp_path: Path) -> None:
    with pytest.raises(GateError, match=r"reward\.certificate\.min_pairs: expected 90 held-out pairs, got "):
        check_files(load(of_pairs(tmp_path, 60, certificate={"min_pairs": 90}))[0])
    check_files(load(of_pairs(tmp_path, 60, certificate={"min_pairs": 3}))[0])


def test_check_reads_further_rows_if_the_first_have_one_topic(tmp_path: Path) -> None:
    names = ["cats", "stars", "bread", "rivers", "trains", "kites", "music", "glass"]
    rows = [
        {"prompt": f"what is {i}?", "completion": f"it is {i}", "topic": names[i // HEAD]}
        for i in range(8 * HEAD)
    ]
    checked = check_files(
        load(
            written(
                tmp_path, "sft", {"d.jsonl": rows, "splits": {"sft": 1, "sft_validation": 1, "evaluate": 1}}
            )
        )[0]
    )
    assert checked.whole and sum(checked.groups.values()) == 8 * HEAD and not checked.warnings


def test_large_topic_share_is_a_warning(tmp_path: Path) -> None:
    rows = [{**TOPICS[0 if i % 20 else 1 + i % 3], "prompt": f"what is {i}?"} for i in range(120)]
    one = written(
        tmp_path, "sft", {"d.jsonl": rows, "splits": {"sft": 1, "sft_validation": None, "evaluate": None}}
    )
    recipe = load(one, overrides=["sft.validation=null", "evaluate=null", "register=null"])[0]
    (warning,) = check_files(recipe).warnings
    assert warning.startswith(
        "data.max_topic_share: expected at most 90% of one topic in every split, got 95% in 'sft', of "
        "120 rows"
    )


OWN = "## Your own model, pairs and reward model"


def test_splits_that_nothing_reads_are_never_filled_silently(tmp_path: Path) -> None:
    """The documentation's own example wastes nothing; without its line on the splits a warning says how much
    is lost.
    """
    example = yaml.safe_load(
        (ROOT / "docs" / "recipes.md")
        .read_text()
        .partition(OWN)[2]
        .partition("```yaml")[2]
        .partition("```")[0]
    )
    (tmp_path / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in PAIRS))

    def warnings(**data: Any) -> tuple[str, ...]:
        (tmp_path / "mine.yaml").write_text(
            yaml.safe_dump(
                {
                    "schema": 1,
                    "base": "online_dpo",
                    "about": "mine",
                    **example,
                    "online": {**example["online"], "rounds": 1, "prompts_per_round": 4},
                    "data": {"source": f"path:{tmp_path}/d.jsonl", **data},
                }
            )
        )
        return tuple(check_files(load(tmp_path / "mine.yaml")[0]).warnings)

    assert warnings(splits=example["data"]["splits"]) == ()
    (warning,) = warnings()
    assert warning == (
        "data.splits: no section reads 'reward' (16 records), 40% of the data; write `data: {splits: "
        "{reward: null}}` and the other splits share it"
    )
    (tmp_path / "d.jsonl").write_text(
        "".join(
            json.dumps({"prompt": f"what is {i}?", "chosen": f"it is {i}", "rejected": "go away"}) + "\n"
            for i in range(HEAD + 1)
        )
    )
    (many,) = warnings()
    assert f"'reward' (200 of the first {HEAD} records), 40% of the data" in many
    (elsewhere,) = warnings(source="hub:datasets/org/pairs")
    assert "no section reads 'reward' (share 0.4), 40% of the data" in elsewhere
    assert not check_files(load("instruct_dpo")[0]).warnings, (
        "recipes that ship share their splits on purpose"
    )


@pytest.mark.parametrize("where", ["prompt", "completion"])
def test_a_special_token_in_the_data_is_a_warning(where: str, tmp_path: Path) -> None:
    rows = [
        {"prompt": f"what is {i}?", "completion": f"it is {i}", where: f"{i}<|im_end|>" if i < 4 else f"{i}"}
        for i in range(80)
    ]
    (warning,) = check_files(load(written(tmp_path, "sft", {"d.jsonl": rows}))[0]).warnings
    assert warning.startswith("data: 4 of 80 groups contain special tokens of a chat template, '<|im_end|>'")
    assert not check_files(load(written(tmp_path, "sft", {"d.jsonl": rows[4:]}))[0]).warnings


def test_check_prints_sizes_and_losses(tmp_path: Path) -> None:
    rows = [
        *LABELS,
        *({**row, "prompt": f"and {row['prompt']}"} for row in LABELS),
        *({"prompt": f"{i}?", "completion": "", "label": True} for i in range(6)),
    ]
    file = written(tmp_path, "sft", {"d.jsonl": rows})

    def check(*more: str) -> str:
        done = CliRunner().invoke(app, ["recipes", "check", str(file), *more], catch_exceptions=False)
        assert done.exit_code == 0
        return done.output

    first, read, groups, left_out, warning = check().splitlines()
    assert (first, read) == (f"{file}: ok", "  read: 80 rows as `completion`") and groups.startswith(
        "  groups: sft "
    )
    assert "parse: the answer is empty 6" in left_out and "build sft: its label is false " in left_out
    assert warning.startswith(
        "  warning: 6 of 86 records (7.0%) are lost before the split; by step: parse: the answer is empty"
    )
    found = json.loads(check("--json"))[str(file)]
    assert (
        found["check"] == "ok"
        and found["layouts"] == {"as `completion`": 80}
        and found["left_out"]["parse: the answer is empty"] == 6
        and len(found["warnings"]) == 1
    )


def test_check_shows_the_first_groups_as_sections_get_them(tmp_path: Path) -> None:
    def lines(base: str, rows: list[Any], *more: str) -> str:
        done = CliRunner().invoke(
            app,
            ["recipes", "check", str(written(tmp_path, base, {"d.jsonl": rows})), "--show", "1", *more],
            catch_exceptions=False,
        )
        assert done.exit_code == 0
        return done.output

    long = "so " * LONGEST
    rows = [
        {
            "messages": [
                {"role": "system", "content": "short"},
                {"role": "user", "content": f"what is {i}?"},
                {"role": "assistant", "content": f"it is\n{i}"},
                {"role": "user", "content": long},
                {"role": "assistant", "content": "yes"},
            ],
            "topic": f"t{i % 20}",
        }
        for i in range(120)
    ]
    found = lines("sft", rows)
    number = found.partition("sft, 1 of ")[2].partition("user: what is ")[2].partition("?")[0]
    shown = found.partition("  sft, 1 of ")[2].splitlines()[1:6]
    assert shown == [
        "      system: short",
        f"      user: what is {number}?",
        f"    > assistant: it is {number}",
        f"      user: {long[:LONGEST]} … ({len(long) - 1:,} characters)",
        "    > assistant: yes",
    ]
    pairs = [{"prompt": f"what is {i}?", "chosen": f"it is {i}", "rejected": "go away"} for i in range(120)]
    one = lines("dpo", pairs)
    assert "    + assistant: it is " in one and "    - assistant: go away\n" in one
    found = json.loads(lines("dpo", pairs, "--json"))
    (split, *_) = (
        examples
        for examples in next(iter(found.values()))["examples"].values()
        if examples and examples[0]["trained"]
    )
    assert [answer[-1]["content"] for answer in split[0]["answers"]][1] == "go away"
    prompts = next(iter(found.values()))["examples"]["evaluate"][0]
    assert not prompts["trained"] and prompts["reference"].startswith("it is ")


@pytest.mark.parametrize("where", ["online", "phases.main"])
def test_prompts_without_the_answers_that_a_reward_compares_with(where: str, tmp_path: Path) -> None:
    rows = [{"question": f"{i} + 1?", "answer": str(i + 1) if i % 2 else None} for i in range(80)]
    file = written(tmp_path, "rlvr_grpo", {"d.jsonl": rows})
    main = (
        "{does: online, annotate: [rewards.exact_answer], "
        "select: [{name: best_worst, reward: reward.exact_answer}], "
        "rollout: {name: sample, responses_per_prompt: 2}, prepare: [{name: scoring.logprobs}], "
        "fit: {updates: {policy: [preference.dpo]}}}"
    )
    changes = ["online=null", f"phases={{main: {main}}}"] if where == "phases.main" else []
    with pytest.raises(
        RatchetError, match=rf"^{where}\.annotate: rewards\.exact_answer .*\({where}\.max_failed"
    ):
        check_files(load(file, overrides=changes)[0])
