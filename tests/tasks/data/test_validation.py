"""Validation of curated data: every planted fault is caught and quarantined with its reason; too many stop
the run.
"""

import contextlib
import json
import shutil

import pandas as pd
import pytest

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.data.parquet import save_table
from ratchet.components.data.statistics import statistics
from ratchet.components.errors import DataError, GateError, SourceError
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.sections import Data
from ratchet.components.types import Group, Prompt, Trajectory
from ratchet.tasks.data.expectations import expectations
from ratchet.tasks.data.validation import run_checks, validate_data


def words(messages):
    return sum(1 + len(m["content"].split()) for m in messages)


def group(key, question, *completions, topic=None, **columns):
    paths = tuple(Trajectory(tuple({"role": r, "content": c} for r, c in path)) for path in completions)
    meta = {"topic": topic} if topic else {}
    return Group(
        Prompt(key, tuple({"role": r, "content": c} for r, c in question), meta=meta), paths, columns
    )


def sft(key, topic="kites", reply="hello"):
    return group(key, [("user", f"question {key}")], [("assistant", f"{reply} {key}")], topic=topic)


def pair(key, topic="boats", worse=None, gap=3.0):
    worse = f"bad {key}" if worse is None else worse
    return group(
        key,
        [("user", f"ask {key}")],
        [("assistant", f"good {key}")],
        [("assistant", worse)],
        topic=topic,
        margin=[gap, gap],
        rating=[8.0, 8.0 - gap],
    )


def write(folder, splits, bound=30):
    folder.mkdir(exist_ok=True)
    for name, groups in splits.items():
        write_groups(folder / f"{name}.parquet", groups)
    save_table(statistics(splits, words, dict.fromkeys(splits, bound)), folder / "statistics.parquet")
    return folder


LONG = " ".join(f"w{i}" for i in range(24))
PLANTED = {
    "no assistant turn": (
        "sft",
        group("x1", [("user", "x1")], [("assistant", "y"), ("user", "z")], topic="kites"),
        ["the last turn is the assistant's"],
    ),
    "roles": (
        "sft",
        group("x2", [("user", "a"), ("user", "b")], [("assistant", "c")], topic="kites"),
        ["roles alternate, user first"],
    ),
    "too long": (
        "sft",
        group("x3", [("user", "long " * 40)], [("assistant", "c")], topic="kites"),
        ["length is within the bound of its split, in tokens of the policy"],
    ),
    "same": ("reward", pair("x4", worse="good x4"), ["chosen and rejected differ"]),
    "reversed": ("reward", pair("x5", gap=-1.0), ["the chosen side is rated higher"]),
    "rating": (
        "reward",
        group(
            "x11",
            [("user", "x11")],
            [("assistant", "g")],
            [("assistant", "b")],
            topic="boats",
            margin=[3.0, 3.0],
            rating=[11.0, 8.0],
        ),
        ["ratings are in their range"],
    ),
    "leaked": (
        "reward",
        group("x6", [("user", "question s1")], [("assistant", "g")], [("assistant", "b")], topic="boats"),
        ["the prompt is in no earlier split"],
    ),
    "topic": ("reward", pair("x7", topic="kites"), ["the topic is in no earlier split"]),
    "rejected rating": (
        "reward",
        group(
            "x12",
            [("user", "x12")],
            [("assistant", "g")],
            [("assistant", "b")],
            topic="boats",
            margin=[3.0, 3.0],
            rating=[3.0, 0.0],
        ),
        ["the rejected side's rating is in its range"],
    ),
    "leaked but for its marks": (
        "reward",
        group("x13", [("user", "Question, s2!")], [("assistant", "g")], [("assistant", "b")], topic="boats"),
        ["the prompt is in no earlier split"],
    ),
    "same short text": (
        "reward",
        group(
            "x14",
            [("system", "boats"), ("user", "question s3")],
            [("assistant", "Hello, s3!")],
            [("assistant", "b")],
            topic="boats",
        ),
        ["no earlier split has nearly the same text"],
    ),
    "near": (
        "reward",
        group(
            "x8", [("user", "oh dear")], [("assistant", f"{LONG} w25")], [("assistant", "b")], topic="boats"
        ),
        ["no earlier split has nearly the same text"],
    ),
    "personal": ("reward", pair("x9", worse="mail me at a@b.org"), ["no personal data is left"]),
    "empty": ("reward", pair("x10", worse=" "), ["no turn is empty"]),
}
SECTION = {"transforms": ["scrub"], "max_quarantined": 0.5, "rating_range": [1, 10]}


def good():
    near = group("near", [("user", "oh")], [("assistant", LONG)], topic="kites")
    greeted = [
        group("g1", [("user", "hey you")], [("assistant", "hello")], topic="kites"),
        group(
            "g2",
            [("system", "boats"), ("user", "Hey you!")],
            [("assistant", "Hello.")],
            [("assistant", "go")],
            topic="boats",
        ),
    ]
    return {
        "sft": [*(sft(f"s{i}", topic=("kites", "trains")[i % 2]) for i in range(7)), near, greeted[0]],
        "reward": [*(pair(f"r{i}", topic=("boats", "lamps")[i % 2]) for i in range(7)), greeted[1]],
    }


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation")
    splits = good()
    for split, bad, _ in PLANTED.values():
        splits[split].insert(1, bad)
    report = validate_data(write(folder / "in", splits), SECTION, folder / "out")
    return folder / "out", report


def test_every_planted_fault_is_caught_and_named(planted):
    out, report = planted
    lines = [json.loads(line) for line in (out / "quarantined.jsonl").open()]
    found = {line["prompt_id"]: line["broke"] for line in lines}
    wanted = {bad.prompt.id: broke for _, bad, broke in PLANTED.values()}
    assert found == wanted
    assert report["quarantined"] == len(PLANTED) and report["success"]


def test_valid_rows_are_kept_in_order(planted):
    out, report = planted
    assert {name: read_groups(out / f"{name}.parquet") for name in ("sft", "reward")} == good()
    assert report["splits"]["sft"] == {"groups": 9, "quarantined": 3}
    assert json.loads((out / "validation.json").read_text()) == report
    assert "chosen and rejected differ" in "".join(p.read_text() for p in (out / "data_docs").rglob("*.html"))


def test_too_many_failures_stop_the_run_and_leave_the_evidence(tmp_path):
    splits = good()
    splits["reward"][:3] = [pair(f"r{i}", worse=f"good r{i}") for i in range(3)]
    with pytest.raises(GateError, match=r"3 of 17 groups \(17\.6%\).*2\.0%.*\(3\)"):
        validate_data(write(tmp_path / "in", splits), {}, tmp_path / "out", data_docs=False)
    assert len((tmp_path / "out/quarantined.jsonl").read_text().splitlines()) == 3
    assert not json.loads((tmp_path / "out/validation.json").read_text())["success"]


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"min_groups": 9},
            r"every split has enough groups \(data.min_groups\): expected at least 9, got 8 in 'reward'",
        ),
        (
            {"max_topic_share": 0.65},
            r"no topic fills a split \(data.max_topic_share\): expected at most 0.65, got 0.667 in 'sft'",
        ),
        (
            {"min_topics": 3},
            r"enough topics \(data.min_topics\): expected at least 3, got 2 in 'reward', 2 in 'sft'",
        ),
        ({"splits": {"sft": 1, "gold": 1}}, "split 'gold' of the recipe is not in"),
    ],
)
def test_expectations_of_whole_splits_stop(tmp_path, section, message):
    with pytest.raises(GateError, match=message):
        validate_data(write(tmp_path / "in", good()), section, tmp_path / "out", data_docs=False)


@pytest.mark.parametrize(
    ("topics", "message"),
    [
        (["kites"] * 20, r"enough topics \(data.min_topics\): expected at least 2, got 1 in 'sft'"),
        (
            ["kites"] * 19 + ["trains"],
            r"no topic fills a split \(data.max_topic_share\): expected at most 0.9, got 0.95 in 'sft'",
        ),
        (["kites"] * 18 + ["trains"] * 2, None),
        ([None] * 20, None),
    ],
)
def test_default_limits_refuse_unbalanced_topics(tmp_path, topics, message):
    folder = write(tmp_path / "in", {"sft": [sft(f"s{i}", topic=topic) for i, topic in enumerate(topics)]})
    with pytest.raises(GateError, match=message) if message else contextlib.nullcontext():
        validate_data(folder, {}, tmp_path / "out", data_docs=False)


def test_chat_recipe_refuses_small_and_unbalanced_splits():
    """Its splits as they are pass; a split of one topic, of one topic mostly, or of a few groups does not."""
    checks = [c for c in expectations(load("chat")[0].data) if c.of == "splits"]

    def failed(**split):
        table = pd.DataFrame(
            [{"id": "sft_validation", "groups": 82, "topics": 2.0, "max_topic_share": 0.5366} | split]
        )
        return [r["column"] for r in run_checks({"splits": table}, checks)["splits"] if not r["success"]]

    assert failed() == []
    assert (
        failed(groups=39) == ["groups"]
        and failed(topics=1.0) == ["topics"]
        and failed(max_topic_share=0.61) == ["max_topic_share"]
    )


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(SourceError, match="curat"):
        validate_data(tmp_path, {}, tmp_path / "out")
    folder = write(tmp_path / "in", good())
    write_groups(folder / "sft.parquet", good()["sft"][1:])
    with pytest.raises(DataError, match=r"8 groups.*9"):
        validate_data(folder, {}, tmp_path / "out")
    raw = bytearray((folder / "reward.parquet").read_bytes())
    raw[200] ^= 0xFF
    (folder / "reward.parquet").write_bytes(raw)
    write_groups(folder / "sft.parquet", good()["sft"])
    with pytest.raises(DataError, match=r"reward\.parquet, rows 0 to 15"):
        validate_data(folder, {}, tmp_path / "out")
    shutil.rmtree(folder)
    save_table(statistics({}, words, {}), write(folder, good()) / "statistics.parquet")
    with pytest.raises(DataError, match="no group"):
        validate_data(folder, {}, tmp_path / "out")


def test_expectation_suite_follows_the_data_section():
    descriptions = {check.says for check in expectations(Data())}
    assert "no personal data is left" not in descriptions
    assert {
        c.says for c in expectations(Data(transforms=[{"name": "scrub"}], languages=["en"]))
    } - descriptions == {"no personal data is left", "the language is one of the recipe's"}


def test_data_docs_contain_no_user_text(tmp_path):
    """The data docs are HTML; failures are named by split and index, so there is no user text to escape."""
    evil = "<script>alert(1)</script>"
    splits = {
        "sft": [sft(f"s{i}") for i in range(8)]
        + [group(evil, [("user", evil)], [("assistant", evil), ("user", evil)], topic=evil)]
    }
    validate_data(write(tmp_path / "curated", splits), {"max_quarantined": 1.0}, tmp_path / "out")
    assert evil in (tmp_path / "out" / "quarantined.jsonl").read_text()
    pages = list((tmp_path / "out" / "data_docs").rglob("*.html"))
    assert (
        pages
        and any("sft/8" in page.read_text() for page in pages)
        and not any("alert(1)" in page.read_text() for page in pages)
    )
