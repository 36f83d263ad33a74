"""Splits, group builders and the whole curation on a small synthetic corpus."""

import json
import random
from collections import Counter
from dataclasses import replace

import pyarrow.parquet as pq
import pytest

from ratchet.components.data.builders import conversation_groups, prompt_groups
from ratchet.components.data.building import prompt_digest
from ratchet.components.data.curate import curate
from ratchet.components.data.curation_report import pair_report, rating_report
from ratchet.components.data.digests import digest
from ratchet.components.data.groups import read_groups
from ratchet.components.data.lost_records import check_loss
from ratchet.components.data.pair_builders import preference_pairs
from ratchet.components.data.records import Conversation, Rejected
from ratchet.components.data.sources import fetch
from ratchet.components.data.splits import drop_near_duplicates, split, split_key
from ratchet.components.data.statistics import alternates, statistics
from ratchet.components.errors import DataError, GateError, RecipeError
from ratchet.components.recipes.sections import Contexts, Conversations, Pairs
from ratchet.components.recipes.splits import SHARES
from ratchet.components.types import Group, Prompt, Trajectory
from ratchet.tasks.data.validation import validate_data


def words(messages):
    return sum(1 + len(m["content"].split()) for m in messages)


def talk(key, *turns, **more):
    roles = ("user", "assistant")
    return Conversation(key, tuple({"role": roles[i % 2], "content": t} for i, t in enumerate(turns)), **more)


def corpus(topics=30, each=12, seed=0):
    rng = random.Random(seed)
    return [
        talk(
            f"t{t:02d}c{c:02d}",
            *(" ".join(f"w{rng.randrange(3000)}" for _ in range(6)) for _ in range(rng.randrange(8, 13))),
            topic=f"subject number{t} of interest{t * 7} here{t}",
            rating=float(rng.randrange(1, 11)),
        )
        for t in range(topics)
        for c in range(each)
    ]


def test_split_by_topic_is_stable_disjoint_and_in_proportion():
    records = corpus()
    parts = split(records, SHARES, seed=3)
    assert split(records, SHARES, seed=3) == parts != split(records, SHARES, seed=4)
    assert drop_near_duplicates(parts, 0.8) == (parts, []) and sorted(
        r.id for p in parts.values() for r in p
    ) == sorted(r.id for r in records)
    homes = Counter(key for part in parts.values() for key in {split_key(r) for r in part})
    assert set(homes.values()) == {1}
    for name, share in SHARES.items():
        assert abs(len(parts[name]) / len(records) - share / sum(SHARES.values())) < 0.04, name


def test_near_duplicate_across_splits_leaves_the_later_one():
    long = [" ".join(f"x{i}y{j}" for i in range(10)) for j in range(4)]
    records = [talk("twin a", *long, topic="alpha"), talk("twin b", *long, topic="omega")]
    parts, dropped = drop_near_duplicates(split(records, {"sft": 0.5, "reward": 0.5}, seed=0), 0.8)
    homes = {r.id: name for name, part in parts.items() for r in part}
    (lost,) = dropped
    stays = "twin a" if lost.id == "twin b" else "twin b"
    assert (
        homes[stays] == "sft"
        and lost.explained == f"near duplicate across splits: of {stays} in {homes[stays]}"
        and lost.id not in homes
    )


def test_similar_topics_share_a_split_and_missing_topics_use_the_first_turn():
    records = [
        talk(f"{i}{t}", "hello", "hi", topic=t)
        for i in range(3)
        for t in (
            "what if all the big pigs could fly today",
            "What if all the big pigs could fly, today?",
            "what if all the big pigs could fly",
            "smells",
            "films",
            None,
        )
    ]
    parts = split(records, {"sft": 0.5, "reward": 0.5}, seed=0)
    assert not {r.topic for r in parts["sft"]} & {r.topic for r in parts["reward"]}
    pigs = [{r.topic for r in part if r.topic and "pigs" in r.topic} for part in parts.values()]
    assert sorted(map(len, pigs)) == [0, 3]
    with pytest.raises(DataError, match="no records"):
        split([], SHARES, seed=0)


def test_conversation_groups():
    sifted = conversation_groups(
        [
            talk("a", "hi there", "hello", "how are you", "fine", "bye", topic="greetings", rating=8.0),
            talk("b", "x", "y", rating=5.0),
            talk("c", "x", "y"),
            talk("d", "w " * 90, "y", rating=9.0),
        ],
        words,
        Conversations(max_tokens=12, min_rating=6.0),
    )
    (group,) = sifted.kept  # 1+1 topic, 1+2 user, 1+1 assistant, 1+3 user = 11; the next turn makes 13
    assert [m["role"] for m in group.prompt.messages] == ["system", "user"]
    assert [m["content"] for m in group.trajectories[0].messages] == ["hello"]
    assert sifted.reasons() == {
        "rated below min_rating": 1,
        "not rated": 1,
        "no assistant turn within max_tokens": 1,
    }


def test_prompt_groups():
    record = talk("a", *"abcdefgh", topic="t")
    sifted = prompt_groups(
        [record, talk("b", *"abcdefgh", topic="t"), talk("c", "alone")],
        words,
        Contexts(max_turns=5, per_conversation=9),
    )
    assert [g.prompt.id for g in sifted.kept] == ["a:1", "a:3", "a:5"]
    assert (
        [g.prompt.answer for g in sifted.kept]
        == ["b", "d", "f"]
        == [g.trajectories[0].text for g in sifted.kept]
    )
    assert sifted.changed == {"prompts as before, left out": 3, "over the limit": 0} and sifted.reasons() == {
        "no user turn with a reply": 1
    }
    assert len(prompt_groups([record], words, Contexts(per_conversation=2)).kept) == 2
    assert [
        g.prompt.id for g in prompt_groups([record], words, Contexts(max_tokens=8, per_conversation=9)).kept
    ] == ["a:1", "a:3"]


def test_preference_pairs():
    def rated(key, rating, turns=8, topic="t"):
        return talk(
            key, *(f"{key}{i}" for i in range(turns)), topic=topic, rating=rating, ratings={"witty": rating}
        )

    records = [
        rated("low", 2.0),
        rated("high", 9.0),
        rated("near", 8.0),
        rated("default", 5.0),
        rated("short", 1.0, 3),
        rated("elsewhere", 1.0, topic="u"),
        rated("unrated", None),
    ]
    sifted = preference_pairs(records, words, Pairs(positions=(4,), min_gap=2.0, exclude=(5.0,)))
    pairs = {tuple(t.meta["conversation"] for t in g.trajectories): g for g in sifted.kept}
    assert set(pairs) == {("high", "low"), ("near", "low")}
    group = pairs["high", "low"]
    assert group.prompt.messages == ({"role": "system", "content": "t"},)
    assert group.columns == {"margin": [7.0, 7.0], "rating": [9.0, 2.0]}
    assert all(len(t.messages) == 4 and t.messages[-1]["role"] == "assistant" for t in group.trajectories)
    assert sifted.reasons() == {
        "uninformative rating": 1,
        "not rated": 1,
        "too short or too long for every position": 1,
        "no partner whose rating differs by min_gap": 1,
    }
    assert (
        len(preference_pairs(records, words, Pairs(positions=(4,), per_conversation=1, exclude=(5.0,))).kept)
        == 1
    )
    assert len(preference_pairs(records, words, Pairs(positions=(4,), per_topic=1, exclude=(5.0,))).kept) == 1
    defaults = preference_pairs(records, words, Pairs(positions=(4,), min_gap=2.0))
    assert "uninformative rating" not in defaults.reasons(), "of 1 to 5, 5 is the best rating"
    twins = [rated("x", 2.0), Conversation("y", rated("x", 2.0).messages, "t", 9.0)]
    assert not preference_pairs(twins, words, Pairs(positions=(4,))).kept


def test_pairs_have_ids_of_their_own_though_their_records_begin_alike():
    records = [talk(f"conversation-{i}", f"hi {i}", f"yo {i}", topic="t", rating=float(i)) for i in range(4)]
    pairs = preference_pairs(records, words, Pairs(positions=(2,), min_gap=1.0, exclude=())).kept
    assert len(pairs) == 6 == len({group.prompt.id for group in pairs})
    (pair,) = preference_pairs(
        [replace(records[0], id="0004441d-0390"), replace(records[3], id="000b1804-038f")],
        words,
        Pairs(positions=(2,)),
    ).kept
    assert pair.prompt.id.endswith("-2-000b1804-0004441d")  # eight characters are enough


@pytest.mark.parametrize(("margin", "kept"), [("large", 1), (None, 2), ([1], 1), ("2", 2), (True, 2)])
def test_a_margin_that_is_no_number_drops_its_own_pair_only(margin, kept):
    pair = talk("p", "q?", "yes", opening=1, rejected=talk("", "q?", "no").messages)
    found = preference_pairs([replace(pair, meta={"margin": margin}), pair], words, Pairs())
    assert len(found.kept) == kept and len(found.dropped) == 2 - kept
    if found.dropped:
        assert found.dropped[0].reason.startswith("margin: expected a finite number")
    rated = [
        replace(pair, id=str(i), rejected=(), rating=float(i), meta={"label_weight": margin}) for i in (1, 2)
    ]
    assert len(preference_pairs(rated, words, Pairs()).kept) == kept - 1


def write(records, path):
    path.write_text(
        "".join(
            json.dumps({"id": r.id, "messages": r.messages, "topic": r.topic, "rating": r.rating}) + "\n"
            for r in records
        )
    )
    return path


SECTION = {
    "transforms": ["normalise", {"name": "length", "max_tokens": 90}],
    "reward": {"positions": [8], "exclude": []},
    "gold": {"positions": [8], "exclude": []},
}


def test_curation_is_deterministic_and_valid(tmp_path):
    source = write([*corpus(), talk("bad", "alone", topic="z")], tmp_path / "rows.jsonl")
    summary = curate(SECTION, source, words, tmp_path / "a", 0)
    curate(SECTION, source, words, tmp_path / "b", 0)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")
    assert {p.stem for p in (tmp_path / "a").glob("*.parquet")} == {*SHARES, "statistics"}
    for step in summary["steps"][:4]:
        assert step["in"] == step["out"] + sum(step["dropped"].values()), step
    frame = pq.read_table(tmp_path / "a/statistics.parquet").to_pandas()
    flags = frame[["roles_alternate", "last_is_assistant", "chosen_ne_rejected", "within_token_bound"]]
    leaks = frame[
        ["leaked_prompt", "leaked_topic", "near_duplicate_across_splits", "duplicate", "has_personal_data"]
    ]
    assert flags.all().all() and not leaks.any().any()
    assert len(frame) == sum(len(read_groups(tmp_path / f"a/{name}.parquet")) for name in SHARES)
    lines = [json.loads(line) for line in (tmp_path / "a/quarantine.jsonl").open()]
    assert {"id": "bad", "stage": "length", "reason": "too short"}.items() <= next(
        x for x in lines if x["id"] == "bad"
    ).items()
    assert (
        len(lines) == summary["quarantined"]
        and json.loads((tmp_path / "a/summary.json").read_text()) == summary
    )


@pytest.mark.parametrize(
    ("address", "splits"),
    [
        ("generate:tiny_corpus?size=400", {"sft", "sft_validation", "prompts", "evaluate"}),
        ("generate:tiny_pairs?size=400", set(SHARES)),
        ("generate:chain_sum?size=60", {"prompts", "evaluate"}),
    ],
)
def test_every_generated_source_fills_its_splits(tmp_path, address, splits):
    source = fetch(address, tmp_path / "raw")
    summary = curate({}, source, words, tmp_path / "out", 0)
    assert set(summary["splits"]) == splits
    prompts = {
        name: {prompt_digest(g.prompt.messages) for g in read_groups(tmp_path / f"out/{name}.parquet")}
        for name in splits
    }
    assert sum(map(len, prompts.values())) == len(set().union(*prompts.values()))


def test_a_bad_section_or_empty_outcome_is_one_sentence(tmp_path):
    source = write(corpus(), tmp_path / "rows.jsonl")
    for section, message in [
        ({"transfroms": []}, "unknown key 'transfroms'; did you mean 'transforms'"),
        ({"splits": {"stf": 1.0}}, r"data.splits.stf: unknown split"),
        ({"reward": {"min_gab": 1}}, "data.reward.min_gab: unknown key 'min_gab'; did you mean 'min_gap'"),
        ({"transforms": ["normalize"]}, r"no transform piece named 'normalize'"),
        ({"splits": {"sft": 0}}, "data.splits.sft: expected a number above 0, got 0"),
    ]:
        with pytest.raises(RecipeError, match=message):
            curate(section, source, words, tmp_path / "out", 0)
    with pytest.raises(DataError, match=r"'sft'.*min_rating"):
        curate({"splits": {"sft": 1.0}, "sft": {"min_rating": 11.0}}, source, words, tmp_path / "out", 0)
    with pytest.raises(DataError, match=r"after the transforms.*too short"):
        curate({"transforms": [{"name": "length", "min_turns": 99}]}, source, words, tmp_path / "out", 0)


def test_losing_too_many_records_stops_with_the_step_and_the_share(tmp_path):
    alone = [talk(f"alone {i}", f"nobody answers {i}") for i in range(20)]
    copies = [Conversation(f"copy {r.id}", r.messages, r.topic, r.rating) for r in corpus(topics=10, each=4)]
    section = {"transforms": ["duplicates", "length"], "splits": {"sft": 1.0}}
    rows = write([*corpus(topics=10, each=4), *copies], tmp_path / "copies.jsonl")
    summary = curate(section, rows, words, tmp_path / "out", 0)
    assert summary["steps"][1]["dropped"] == {
        "duplicate": 40
    }  # half of the records, and nothing that was said
    rows = write([*corpus(topics=10, each=4), *alone], tmp_path / "rows.jsonl")
    with pytest.raises(GateError, match=r"data\.max_dropped: 20 of 60 .*33\.3%.*quarantine\.jsonl"):
        curate(section, rows, words, tmp_path / "stopped", 0)
    assert len((tmp_path / "stopped/quarantine.jsonl").read_text().splitlines()) == 20
    for limit in (0.34, None):
        curate({**section, "max_dropped": limit}, rows, words, tmp_path / "out", 0)
    write([*corpus(topics=10, each=4)], rows)
    rows.write_text(rows.read_text() + '{"words": "of no layout"}\n' * 15)
    with pytest.raises(GateError, match=r"15 of 55 records .*27\.3%"):
        curate(section, rows, words, tmp_path / "stopped", 0)


@pytest.mark.parametrize("lost", ["rows", "records"])
def test_every_source_of_a_mixture_may_lose_max_dropped(tmp_path, lost):
    write(corpus(topics=30, each=6), tmp_path / "a.jsonl")
    short = [talk(f"s{i}", f"nobody answers {i}") for i in range(8)]
    write([*corpus(topics=2, each=1, seed=1), *(short if lost == "records" else [])], tmp_path / "b.jsonl")
    if lost == "rows":
        with (tmp_path / "b.jsonl").open("a") as rows:
            rows.write('{"words": "of no layout"}\n' * 8)
    section = {
        "sources": [{"source": "path:a.jsonl"}, {"source": "path:b.jsonl"}],
        "transforms": ["length"],
        "splits": {"sft": 1.0},
    }
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    with pytest.raises(GateError, match=r"8 of 10 records \(80\.0%\) of b\.jsonl are lost"):
        curate(section, paths, words, tmp_path / "stopped", 0)
    summary = curate({**section, "max_dropped": 0.8}, paths, words, tmp_path / "out", 0)
    assert summary["sources"]["b.jsonl"]["groups"] == {"sft": 2} and not summary["warnings"]


@pytest.mark.parametrize("region", ["US", "DE"])
def test_personal_data_is_checked_for_the_region_of_the_recipe(tmp_path, region):
    rows = [talk(f"c{i}", f"question {i}?", f"Call me at 212-555-23{i} tonight.") for i in range(10, 20)]
    section = {
        "transforms": [{"name": "scrub", "region": region}],
        "splits": {"sft": 1.0},
        "near_threshold": None,
    }
    curate(section, write(rows, tmp_path / "rows.jsonl"), words, tmp_path / "out", 0)
    table = pq.read_table(tmp_path / "out/statistics.parquet")
    assert not any(table["has_personal_data"].to_pylist())


def test_statistics_mark_every_planted_fault():
    def one(key, prompt, *completions, **columns):
        messages = tuple({"role": r, "content": c} for r, c in prompt)
        paths = tuple(Trajectory(tuple({"role": r, "content": c} for r, c in path)) for path in completions)
        return Group(Prompt(key, messages, meta={"topic": key[0]}), paths, columns)

    user, reply = ("user", "hi"), ("assistant", "hello")
    long = " ".join(f"w{i}" for i in range(40))
    splits = {
        "sft": [
            one("a1", [user], [reply]),
            one("a2", [("user", "x")], [("assistant", "y"), ("user", "z")]),
            one("a3", [user, user], [reply]),
            one("a4", [("user", long)], [reply]),
            one("a5", [user], [reply]),
        ],
        "gold": [
            one("b1", [("user", "HI ")], [reply], [reply], margin=[1.0, 1.0]),
            one(
                "a9",
                [("user", "q")],
                [("assistant", "mail a@b.org")],
                [("assistant", "")],
                margin=[-2.0, -2.0],
            ),
            one("c1", [("user", long)], [("assistant", "hello")], [("assistant", "other")]),
        ],
    }
    table = {row["id"]: row for row in statistics(splits, words, {"sft": 20, "gold": None}).to_pylist()}
    assert (
        table["sft/0"]["roles_alternate"]
        and not table["sft/0"]["leaked_prompt"]
        and table["sft/0"]["tokens"] == 4
    )

    def rows_with(flag, value):
        return [key for key, row in table.items() if row[flag] is value]

    assert rows_with("last_is_assistant", False) == ["sft/1"] and rows_with("roles_alternate", False) == [
        "sft/2"
    ]
    assert rows_with("within_token_bound", False) == ["sft/3"] and rows_with("duplicate", True) == ["sft/4"]
    assert rows_with("chosen_ne_rejected", False) == ["gold/0"] and rows_with("leaked_topic", True) == [
        "gold/1"
    ]
    assert rows_with("leaked_prompt", True) == ["gold/0", "gold/2"] and rows_with(
        "has_personal_data", True
    ) == ["gold/1"]
    assert rows_with("no_empty_turn", False) == ["gold/1"] and rows_with(
        "near_duplicate_across_splits", True
    ) == ["gold/2"]
    assert table["gold/1"]["rating_gap"] == -2.0


def test_roles_alternate_by_hand():
    roles = lambda text: [  # noqa: E731
        {"role": {"s": "system", "u": "user", "a": "assistant", "t": "tool"}[c], "content": "x"} for c in text
    ]
    assert all(alternates(roles(r)) for r in ("sua", "ua", "uaua", "u", "s", "uata", "uattaua"))
    assert not any(alternates(roles(r)) for r in ("au", "uua", "uaa", "usa"))


def test_reports_by_hand():
    records = [talk(str(i), *["x"] * n, rating=float(n)) for i, n in enumerate((2, 4, 8))]
    report = rating_report(records)  # rating against log turns: 2, 4, 8 against 1, 2, 3 (times log 2)
    assert report["correlation_log_turns"] == pytest.approx(0.9820, abs=1e-4) and report["rated"] == 3
    assistant = lambda text: Trajectory(({"role": "assistant", "content": text},))  # noqa: E731
    groups = [
        Group(Prompt("p", ()), (assistant(a), assistant(b)))
        for a, b in (("long", "s"), ("s", "long"), ("xx", "yy"), ("xx", "y"))
    ]
    assert pair_report(groups)["chosen_is_longer"] == (1 + 0 + 0.5 + 1) / 4


def rows(tmp_path, *written):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in written))
    return path


def test_rows_that_validation_would_refuse_are_dropped_and_counted(tmp_path):
    good = [{"prompt": f"question number {i}", "chosen": "yes indeed", "rejected": "no"} for i in range(40)]
    bad = [
        {"prompt": "too long an answer", "chosen": "word " * 60, "rejected": "no"},
        {"prompt": " ", "chosen": "yes", "rejected": "no"},
        {
            "prompt": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            "chosen": "yes",
            "rejected": "no",
        },
    ]
    section = {"splits": {"pairs": 1.0}, "pairs": {"max_tokens": 20}, "near_threshold": None}
    source = rows(tmp_path, *good, *bad)
    summary = curate(section, source, words, tmp_path / "out", 0)
    assert summary["splits"]["pairs"]["groups"] == 40
    assert summary["steps"][-1]["dropped"] == {
        "a turn is empty": 1,
        "over the max_tokens of its split": 1,
        "user and assistant turns do not alternate": 1,
    }
    assert (
        validate_data(
            tmp_path / "out", {**section, "min_topics": None}, tmp_path / "judged", data_docs=False
        )["quarantined"]
        == 0
    )
    assert summary["warnings"] == [
        "3 of 43 records (7.0%) of split 'pairs' are lost; by step: build pairs: over the max_tokens of "
        "its split (1); build pairs: a turn is empty (1); "
        "build pairs: user and assistant turns do not alternate (1); "
        "raise data.pairs.max_tokens (now 20)"
    ]
    assert curate({**section, "max_dropped": 0.5}, source, words, tmp_path / "known", 0)["warnings"] == []
    with pytest.raises(
        GateError, match=r"data\.max_dropped: 3 of 43 .*'pairs' are lost, at most 2 \(5\.0%\)"
    ):
        curate({**section, "max_dropped": 0.05}, source, words, tmp_path / "stopped", 0)


def test_several_pairs_for_one_prompt_are_valid(tmp_path):
    """The prompt is the same and so is the chosen answer: only a whole copy is a duplicate."""
    pairs = [
        {"prompt": f"question number {i}", "chosen": "yes indeed", "rejected": worse}
        for i in range(10)
        for worse in ("no", "never", "not at all")
    ]
    section = {"splits": {"pairs": 1.0}, "pairs": {"max_tokens": 20}, "near_threshold": None}
    assert (
        curate(section, rows(tmp_path, *pairs), words, tmp_path / "out", 0)["splits"]["pairs"]["groups"] == 30
    )
    assert (
        validate_data(
            tmp_path / "out", {**section, "min_topics": None}, tmp_path / "judged", data_docs=False
        )["quarantined"]
        == 0
    )


def test_too_little_data_is_an_error(tmp_path):
    talks = [{"prompt": f"question {i}", "completion": f"answer {i}"} for i in range(3)]
    with pytest.raises(DataError, match=r"4 splits \(sft, sft_validation, prompts, evaluate\)"):
        curate({}, rows(tmp_path, *talks), words, tmp_path / "out", 0)
    with pytest.raises(DataError, match=r"duplicate 119"):
        curate({"transforms": ["duplicates"]}, rows(tmp_path, *talks[:1] * 120), words, tmp_path / "out", 0)
    first = [
        {
            "messages": [
                {"role": "assistant", "content": f"hello {i}"},
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "well"},
            ]
        }
        for i in range(9)
    ]
    with pytest.raises(DataError, match=r"'sft'.*the assistant speaks first: 9; read as `messages`: 9"):
        curate({"splits": {"sft": 1.0}}, rows(tmp_path, *first), words, tmp_path / "out", 0)


def test_default_splits_are_those_that_stages_read(tmp_path):
    talks = rows(
        tmp_path, *({"prompt": f"question number {i}", "completion": f"answer number {i}"} for i in range(3))
    )
    read = ("sft", "sft_validation", "evaluate")
    assert {
        name: split["groups"]
        for name, split in curate({}, talks, words, tmp_path / "out", 0, read)["splits"].items()
    } == dict.fromkeys(read, 1)
    with pytest.raises(DataError, match=r"'reward'.*`completion`: 3"):
        curate({}, talks, words, tmp_path / "out", 0, ("reward", "reward_validation"))
    with pytest.raises(DataError, match=r"'pairs'"):
        curate({"splits": {"pairs": 1}}, talks, words, tmp_path / "out", 0)


def test_the_warning_of_lost_records_shows_reasons_with_a_colon_whole() -> None:
    reason = "the text has no prompt: set `data.parser: {name: text, prompt: ...}`"
    lost = [("parse", Rejected(str(i), reason, detail=f"rows.jsonl, line {i}")) for i in range(3)]
    (warning,) = check_loss(lost, 30, 0.25, "are lost", None)
    assert f"by step: parse: {reason} (3)" in warning
    with pytest.raises(GateError) as stopped:
        check_loss(lost, 30, 0.05, "are lost", None)
    assert f"parse: {reason} (3)" in str(stopped.value)
    assert f"The first is '0' ({reason}: rows.jsonl, line 0)" in str(stopped.value)
