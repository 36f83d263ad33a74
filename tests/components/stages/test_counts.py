"""Counts in a stage's meta (read, kept, truncated, dropped, over the limit) against hand counts."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ratchet.components.data.curate import curate
from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError, GateError
from ratchet.components.models.load import load_tokenizer
from ratchet.components.stages.curate import counted
from ratchet.components.stages.job import Job
from ratchet.components.stages.run import as_request, execute
from ratchet.components.stages.train import encoded
from ratchet.components.storage.checkpoints import latest
from ratchet.components.text.chat import encode
from ratchet.components.types import Group, Message, Prompt, Trajectory
from ratchet.tasks.pipeline import Pipeline


def test_curation_counts_by_step_and_reason(tmp_path: Path) -> None:
    """8 records: 2 of one speaker, 1 copy, 1 too long for 6 turns, 1 unrated."""

    def talk(name: str, turns: int, speakers: int = 2, rating: float | None = 8.0) -> dict:
        messages = [
            {"text": f"{name} says {i}, word {name * 2}", "sender": str(i % speakers), "timestamp": ""}
            for i in range(turns)
        ]
        return {
            "messages": [messages],
            "prompt": name,
            "ratings": {} if rating is None else {"witty": rating},
        }

    records = {
        "1": talk("ann", 4),
        "2": talk("ben", 4),
        "3": talk("cid", 4, rating=None),
        "4": talk("dora", 12),
        "5": talk("eve", 4),
        "6": talk("ann", 4),
        "7": talk("fay", 3, speakers=1),
        "8": talk("gus", 2, speakers=1),
    }
    (tmp_path / "source.json").write_text(json.dumps(records))
    section = {
        "parser": "chitchat",
        "transforms": [{"name": "duplicates"}, {"name": "length", "max_turns": 6}],
        "splits": {"sft": 1.0},
        "sft": {"min_rating": 5.0},
        "near_threshold": None,
        "max_dropped": None,
    }
    summary = curate(
        section,
        tmp_path / "source.json",
        lambda messages: sum(len(m["content"].split()) for m in messages),
        tmp_path / "out",
        0,
    )
    assert counted(summary) == {
        "records": 8,
        "groups": 4,
        "parse: has 1 speaker, not two": 2,
        "duplicates: duplicate": 1,
        "length: truncated": 1,
        "build: not rated": 1,
    }


def test_encoding_counts_truncated_dropped_and_over_the_limit(tiny_model: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(tiny_model)

    def talk(*answers: str) -> Group:
        messages: list[Message] = [{"role": "assistant", "content": answers[0]}]
        for answer in answers[1:]:
            messages.append({"role": "user", "content": "and?"})
            messages.append({"role": "assistant", "content": answer})
        return Group(Prompt("p", ({"role": "user", "content": "hello"},)), (Trajectory(tuple(messages)),))

    short, long = talk("hi"), talk("word " * 40)
    bound = len(encode(tokenizer, short.prompt, short.trajectories[0]).mask) + 5
    write_groups(tmp_path / "sft.parquet", [short, long, talk("hi", "word " * 40), short, short, long])

    def encode_with(**options: object) -> tuple[list[Group], dict[str, int], list[str]]:
        given = {"data": "sft", "max_tokens": bound, "max_dropped": None, "limit": None, **options}
        return encoded(cast(Job, SimpleNamespace(options=given, path=lambda _: tmp_path)), "sft", tokenizer)

    groups, counts, _ = encode_with(limit=3)
    assert counts == {"records": 6, "kept": 3, "cut": 1, "dropped": 1, "over the limit": 2}
    assert [len(g.trajectories[0].messages) for g in groups] == [1, 1, 1]
    _, counts, warnings = encode_with()
    assert counts == {"records": 6, "kept": 4, "cut": 1, "dropped": 2, "over the limit": 0}
    length = len(encode(tokenizer, long.prompt, long.trajectories[0]).mask)
    warning = (
        rf"sft.max_tokens: 2 of 6 records of split 'sft' \(33.3%\) are longer than {bound} tokens "
        r"and dropped \(95% have at most \d+\)"
    )
    assert len(warnings) == 1 and re.match(warning + r"; raise sft.max_tokens if they matter", warnings[0])
    with pytest.raises(GateError, match=warning + r".*25\.0%.*sft\.max_dropped"):
        encode_with(max_dropped=0.25)
    assert encode_with(max_dropped=0.0, max_tokens=2 * length)[1:] == (
        {"records": 6, "kept": 6, "cut": 0, "dropped": 0, "over the limit": 0},
        [],
    )
    with pytest.raises(DataError, match=r"no record is left after tokenisation.*raise sft.max_tokens"):
        encode_with(max_tokens=2)
    write_groups(tmp_path / "sft.parquet", [])  # all groups of the phase before were ties
    with pytest.raises(DataError, match=r"split 'sft' is empty.*the stage that made it") as empty:
        encode_with()
    assert "max_tokens" not in str(empty.value)


@pytest.mark.parametrize(
    ("recipe", "stage", "changes"),
    [
        ("sft", "sft", ["sft.limit=48", "sft.limit_validation=7"]),
        (
            "reward_model",
            "reward",
            ["reward.limit=64", "reward.limit_validation=24", "reward.certificate.min_accuracy=null"],
        ),
    ],
)
def test_validation_records_are_counted_as_well(
    recipe: str, stage: str, changes: list[str], tiny_home: Path
) -> None:
    pipeline = Pipeline.open(recipe, home=tiny_home, profile="test", overrides=changes)
    for name in list(pipeline.stages)[: list(pipeline.stages).index(stage) + 1]:
        pipeline.make(name)
    data, limits = (
        pipeline.artifact("curated").path,
        [int(change.partition("=")[2]) for change in changes[:2]],
    )
    there = [len(read_groups(data / f"{stage}{part}.parquet")) for part in ("", "_validation")]
    assert pipeline.artifact(stage).meta["counts"] == {
        f"{part}{what}": number
        for part, records, limit in zip(("", "validation "), there, limits, strict=True)
        for what, number in {
            "records": records,
            "kept": limit,
            "cut": 0,
            "dropped": 0,
            "over the limit": records - limit,
        }.items()
    }
    assert (
        pipeline.artifact("drafts").meta["counts"]["groups"]
        == pipeline.artifact("curated").meta["counts"]["groups"]
    )


def test_offline_training_uses_the_recipes_max_failed(tiny_home: Path) -> None:
    """Pairs have no reference answer, so each reward fails."""
    for rate, percentage in ((None, "10%"), (0.25, "25%")):
        pipeline = Pipeline.open(
            "dpo",
            home=tiny_home,
            profile="test",
            overrides=[
                "offline.limit=32",
                "offline.annotate=[{name: rewards.exact_answer}]",
                *([f"offline.max_failed={rate}"] if rate else []),
            ],
        )
        for name in list(pipeline.stages)[: list(pipeline.stages).index("pairs")]:
            pipeline.make(name)
        with pytest.raises(DataError, match=rf"rewards\.exact_answer: 64 of 64 .*{percentage}"):
            pipeline.make("pairs")


def test_offline_pairs_are_counted(tiny_home: Path) -> None:
    pipeline = Pipeline.open("dpo", home=tiny_home, profile="test", overrides=["offline.limit=32"])
    for name in list(pipeline.stages)[: list(pipeline.stages).index("pairs") + 1]:
        pipeline.make(name)
    there = len(read_groups(pipeline.artifact("curated").path / "reward.parquet"))
    assert pipeline.artifact("pairs").meta["counts"] == {
        "records": there,
        "kept": 32,
        "cut": 0,
        "dropped": 0,
        "over the limit": there - 32,
        "groups": 32,
        "trajectories": 64,
        "groups before": 32,
    }


def test_answers_are_counted(tiny_home: Path) -> None:
    pipeline = Pipeline.open(
        "online_dpo",
        home=tiny_home,
        profile="test",
        overrides=["online.prompts_per_round=6", "online.rollout.max_tokens=1"],
    )
    for name in ("model_policy", "raw", "drafts", "curated", "rollout_1"):
        artifact = pipeline.make(name)
    cut = [t.stop for g in read_groups(artifact.path / "groups.parquet") for t in g.trajectories].count(
        "length"
    )
    assert (
        artifact.meta["counts"]
        == {"prompts": 6, "responses": 24, "responses cut at max_tokens": cut, "responses that failed": 0}
        and cut
    )


def test_steps_are_counted_together_and_across_a_restart(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open(
        "rlvr_grpo",
        home=tiny_home,
        profile="test",
        overrides=[
            "online.rounds=3",
            "online.prompts_per_round=4",
            "online.fit.save_every=2",
            "online.rollout.responses_per_prompt=4",
        ],
    )
    stage = pipeline.stages["improve"]
    for name in list(pipeline.stages)[: list(pipeline.stages).index("improve")]:
        pipeline.make(name)

    def improve(work: Path) -> dict[str, int]:
        return execute(
            as_request(
                "improve", stage.options, {k: pipeline.artifact(v) for k, v in stage.inputs.items()}, work
            )
        )["counts"]

    counts = improve(tmp_path / "whole")
    steps = [
        json.loads(line)["metrics"]
        for line in (tmp_path / "whole" / "product" / "metrics.jsonl").read_text().splitlines()
    ]
    assert counts["groups before"] == 12 and counts["trajectories"] == 48
    equal = [step.get("select/groups of equal rewards", 0.0) for step in steps]
    assert (
        counts.get("groups of equal rewards", 0)
        == sum(equal)
        == 12 - sum(step["select/groups"] for step in steps)
        > 0
    )
    checkpoint = latest(tmp_path / "whole" / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-2"
    shutil.copytree(checkpoint, tmp_path / "killed" / "progress" / checkpoint.name)
    assert improve(tmp_path / "killed") == counts
