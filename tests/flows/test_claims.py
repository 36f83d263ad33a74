"""`ratchet claims`: graph of stages, verdicts from stored results, stored verdicts, warm workers."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from ratchet.components.errors import DataError, RecipeError
from ratchet.components.piece import ROOT
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.plan import Stage, our_sources
from ratchet.components.recipes.recipe import load, written
from ratchet.components.recipes.schema_claim import Claim as StatedClaim
from ratchet.components.storage.store import Store, digest
from ratchet.flows import claim_records, claim_values, claims
from ratchet.flows.catalogue import Row, text_bar
from ratchet.flows.claim_records import (
    Comparison,
    Verdict,
    filled,
    key_of,
    read,
    sentence,
    states,
    write,
)
from ratchet.flows.cli import app
from ratchet.tasks.pipeline import Pipeline

STATED = {"testbed": "a list", "budget": "none: a test", "tuning": "neither"}
Claim = functools.partial(StatedClaim, testbed="a list", budget="none: a test", tuning="neither")


def finished(
    publish: Any, home: Path, name: str, results: Mapping[str, Any], *, lines: Any = (), **meta: Any
) -> Any:
    """A run with a learning stage and a report, whose products are in the store."""
    store, key = Store(home), digest([name, "improve"])
    with store.working("improve", key) as work:
        work.metrics.write_text("".join(json.dumps({"metrics": line}) + "\n" for line in lines))
        learned = store.publish(work, "improve", key, "weights", [], {"seconds": 30.0, **meta})
    report = publish("evaluate", {"policy": learned}, kind="report", text=name, results=results)
    stages = {
        "improve": Stage("improve", "improve", "weights", {}, {}, learned.digest),
        "evaluate": Stage("evaluate", "evaluate", "report", {}, {"policy": "improve"}, report.digest),
    }
    run = SimpleNamespace(name=name, path=home / "runs" / name)
    return Pipeline(load("rloo")[0], load("rloo")[1], stages, Store(home), run)  # pyright: ignore[reportArgumentType]


def scored(rows: list[float], **more: Any) -> dict[str, Any]:
    return {
        "recipe": "one",
        "per_prompt": {"final.reward.x": rows, "reward.x_gain_base": [0.5 * v for v in rows]},
        "metrics": {"final.length": sum(rows)},
        "transcripts": [{"prompt": [{"role": "user", "content": "a"}]}],
        **more,
    }


# --- numbers


def test_values_per_prompt_are_paired_and_the_start_is_the_gain(publish: Any, tmp_path: Path) -> None:
    own = [finished(publish, tmp_path, f"own{i}", scored([1.0, 2.0 + i])) for i in range(2)]
    other = [finished(publish, tmp_path, f"other{i}", scored([0.5, 1.0])) for i in range(2)]
    claim = Claim(against="dpo", metric="final.reward.x")
    mine, theirs, gaps = claim_values.values(claim, own, other)
    assert (mine, theirs, gaps.tolist()) == ([1.5, 2.0], [0.75, 0.75], [[0.5, 1.0], [0.5, 2.0]])
    mine, theirs, gaps = claim_values.values(claim, own, None)
    assert (theirs, gaps.tolist()) == ([0.75, 1.0], [[0.5, 1.0], [0.5, 1.5]])


def test_different_prompts_are_not_paired(publish: Any, tmp_path: Path) -> None:
    own = finished(publish, tmp_path, "own", scored([1.0, 2.0]))
    others = {}
    for role, content in (("user", "b"), ("system", "a")):
        prompt = [{"role": role, "content": content}, {"role": "user", "content": content}]
        results = scored([1.0, 2.0], transcripts=[{"prompt": prompt}])
        others[role] = finished(publish, tmp_path, role, results)
    claim = Claim(against="dpo", metric="final.reward.x")
    with pytest.raises(DataError, match="different prompts"):
        claim_values.values(claim, [own], [others["user"]])
    assert claim_values.values(claim, [own], [others["system"]])[2].tolist() == [[0.0, 0.0]]
    with pytest.raises(DataError, match=r"final.reward.y.*'final.reward.x'"):
        claim_values.values(Claim(against="dpo", metric="final.reward.y"), [own], [own])


def test_without_transcripts_the_data_tell_which_prompts_were_asked(publish: Any, tmp_path: Path) -> None:
    """`evaluate.transcripts: 0`, as in the comparison of label selectors."""
    runs = {}
    for name, data, split in (
        ("a", "k1", "evaluate"),
        ("b", "k1", "evaluate"),
        ("c", "k2", "evaluate"),
        ("d", "k1", "x"),
    ):
        run = finished(publish, tmp_path, name, scored([1.0, 2.0], transcripts=[]))
        report = run.stages["evaluate"]
        stages = {
            **run.stages,
            "curated": Stage("curated", "validate", "data", {}, {}, data),
            "evaluate": dataclasses.replace(
                report, options={"arms": {"policy": {"data": split}}}, inputs={"data": "curated"}
            ),
        }
        runs[name] = dataclasses.replace(run, stages=stages)
    claim = Claim(against="dpo", metric="final.reward.x")
    assert claim_values.values(claim, [runs["a"]], [runs["b"]])[2].tolist() == [[0.0, 0.0]]
    for other in ("c", "d"):
        with pytest.raises(DataError, match="different prompts"):
            claim_values.values(claim, [runs["a"]], [runs[other]])


def test_scalars_and_curves_are_one_number_per_seed(publish: Any, tmp_path: Path) -> None:
    fast = finished(publish, tmp_path, "fast", scored([1.0]), lines=[{"r": 0.0}, {"r": 1.0}, {"r": 1.0}])
    slow = finished(publish, tmp_path, "slow", scored([3.0]), lines=[{"r": 0.0}, {"r": 0.0}, {"q": 9.0}])
    length = Claim(against="dpo", metric="final.length", per="seed")
    assert claim_values.values(length, [fast], [slow])[2] == [-2.0]
    area = Claim(against="dpo", metric="r", per="curve")
    assert claim_values.values(area, [fast], [slow])[2] == [pytest.approx(2 / 3)]
    reach = Claim(against="dpo", metric="r", per="curve", level=0.5)
    assert claim_values.values(reach, [fast], [slow])[:2] == ([2.0], [3.0]), "never: one more than logged"


def test_budgets_are_updates_tokens_and_labels(publish: Any, tmp_path: Path) -> None:
    lines = [{"rollout/responses": 4.0, "rollout/length": 10.0}, {"trainable_tokens": 7.0}]
    run = finished(publish, tmp_path, "run", scored([1.0]), lines=lines, steps=3, updates=6)
    assert claim_values.budgets("updates", [run], [run]) == (6.0, 6.0)
    assert (claim_values.tokens(run), claim_values.labels(run)) == (47.0, 4.0)


def test_logged_tokens_are_those_of_the_stage_so_far(publish: Any, tmp_path: Path) -> None:
    """A fit logs a running total in every step: the same tokens in more steps are no larger budget."""
    few = [{"trainable_tokens": 50.0}, {"trainable_tokens": 100.0}]
    many = [{"trainable_tokens": 10.0 * step} for step in range(1, 11)]
    runs = [
        finished(publish, tmp_path, name, scored([1.0]), lines=lines, steps=len(lines))
        for name, lines in (("few", few), ("many", many))
    ]
    assert claim_values.budgets("tokens", [runs[0]], [runs[1]]) == (100.0, 100.0)


def test_labels_of_rounds_are_the_answers_that_were_scored(publish: Any, tmp_path: Path) -> None:
    """Rounds log no answers: each has a stage that sampled them."""
    run = finished(publish, tmp_path, "rounds", scored([1.0]), steps=4)
    for number in (1, 2):
        name = f"rollout_{number}"
        answers = publish(name, kind="groups", counts={"responses": 32})
        run.stages[name] = Stage(name, "rollout", "groups", {}, {}, answers.digest)
    assert claim_values.labels(run) == 64.0


@pytest.mark.parametrize(
    "decision, own, baseline, fair",
    [
        ("holds", 120, 100, False),
        ("holds", 50, 100, True),
        ("does not hold", 50, 100, False),
        ("does not hold", 200, 100, True),
        ("undecided", 1, 100, True),
        ("holds", 105, 100, True),
    ],
)
def test_a_larger_budget_decides_nothing(decision: str, own: float, baseline: float, fair: bool) -> None:
    assert claims._fair(decision, own, baseline) == fair


# --- verdicts


def check_of(publish: Any, home: Path, own: float, other: float, **claim: Any) -> claims.Check:
    made = Claim(against="dpo", metric="final.reward.x", at_least=0.1, **claim)
    check = claims.Check("rloo", made, [3])
    for seed in range(3):
        for arm, value in (("rloo", own), ("dpo", other)):
            shift = 0.05 * (seed - 1) if arm == "rloo" else 0.0
            rows = scored([value + shift, value + shift + 0.02])
            check.pipelines[arm, seed] = finished(publish, home, f"{arm}{seed}", rows, steps=5)
            check.reports[arm, seed] = ("evaluate", f"{arm}{seed}")
    return check


@pytest.mark.parametrize("own, says", [(0.9, "holds"), (0.4, "does not hold"), (0.6, "undecided")])
def test_a_claim_is_settled_from_its_reports(publish: Any, tmp_path: Path, own: float, says: str) -> None:
    check = check_of(publish, tmp_path, own, 0.5, budget="updates")
    graph = claims.Graph(done=set(check.reports.values()))
    found = claims._settle(check, lambda *_: pytest.fail("no more seeds"), graph)  # pyright: ignore[reportArgumentType]
    assert found is not None and (found.verdict, found.seeds) == (says, 3)
    assert found.comparisons["dpo"].own_budget == 5 and found.comparisons["dpo"].mean == pytest.approx(
        own - 0.5
    )


def test_a_failed_stage_leaves_its_claim_undecided(publish: Any, tmp_path: Path) -> None:
    check = check_of(publish, tmp_path, 0.9, 0.5)
    graph = claims.Graph(failed={check.reports["dpo", 1]: "stage sft failed: no memory"})
    found = claims._settle(check, None, graph)  # pyright: ignore[reportArgumentType]
    assert found is not None and (found.verdict, found.why) == ("undecided", "stage sft failed: no memory")


def test_a_claim_waits_for_its_reports(publish: Any, tmp_path: Path) -> None:
    assert claims._settle(check_of(publish, tmp_path, 1, 0), None, claims.Graph()) is None  # pyright: ignore[reportArgumentType]


def test_seeds_are_added_while_undecided(publish: Any, tmp_path: Path) -> None:
    check = check_of(publish, tmp_path, 0.6, 0.5)
    check.counts = [3, 5]
    graph, asked = claims.Graph(done=set(check.reports.values())), []

    def opened(arm: str, seed: int) -> Any:
        asked.append((arm, seed))
        value = 0.9 if arm == "rloo" else 0.5
        run = finished(publish, tmp_path, f"{arm}{seed}", scored([value, value]))
        graph.done.add(("evaluate", run.stages["evaluate"].key))
        return run

    found = claims._settle(check, opened, graph)  # pyright: ignore[reportArgumentType]
    assert asked == [("rloo", 3), ("dpo", 3), ("rloo", 4), ("dpo", 4)]
    assert found is not None and found.seeds == 5 and found.comparisons["dpo"].level == pytest.approx(0.9875)


# --- graph


def graph_run(home: Path, name: str) -> Any:
    """A run whose first two stages all runs share."""
    rows = [("base", ()), ("sft", ("base",)), (f"own_{name}", ("sft",)), (f"report_{name}", (f"own_{name}",))]
    stages = {
        one: Stage(one, one, "report" if "report" in one else "weights", {}, {p: p for p in parents}, one)
        for one, parents in rows
    }
    return SimpleNamespace(stages=stages, store=Store(home), recipe=SimpleNamespace(name=name))


def test_equal_keys_are_one_node_and_a_failure_reaches_its_dependants_only(tmp_path: Path) -> None:
    graph = claims.Graph()
    reports = [graph.want(graph_run(tmp_path, name)) for name in "ab"]
    assert len(graph.waiting) == 6 and [node[0] for node, _ in graph.ready()] == ["base"]
    for name in ("base", "sft"):
        graph.start((name, name))
        graph.finish((name, name), "")
    assert [node[0] for node, _ in graph.ready()] == ["own_a", "own_b"]
    graph.start(("own_a", "own_a"))
    graph.finish(("own_a", "own_a"), "out of memory")
    assert "own_a failed: out of memory" in graph.failed[reports[0]] and reports[1] in graph.waiting


def test_what_needs_a_stage_that_failed_before_fails_at_once(tmp_path: Path) -> None:
    graph = claims.Graph()
    graph.want(graph_run(tmp_path, "a"))
    graph.start(("base", "base"))
    graph.finish(("base", "base"), "out of memory")
    report = graph.want(graph_run(tmp_path, "b"))  # seeds that another claim added later
    assert "base failed: out of memory" in graph.failed[report] and not graph.waiting


def test_recipes_without_a_claim_are_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="dpo_hh claims nothing"):
        claims.check_claims(["dpo_hh"], home=tmp_path)


# --- stored verdicts


def verdict(recipe: str = "rloo", **more: Any) -> Verdict:
    one = Comparison("holds", 0.2, 0.15, 0.25, 0.95, [0.6], [0.4])
    return Verdict(recipe, "a claim", "holds", "beyond 0.1", 3, 1.0, "key", {"start": one}, **more)


def test_verdicts_are_stored_with_their_table_and_keep_a_note(tmp_path: Path) -> None:
    page, path = tmp_path / "claims.md", tmp_path / "claims.json"
    page.write_text("# Claims\n<!-- begin: claims -->\n<!-- end: claims -->\nend\n")
    write([verdict(note="because | so")], path)
    write([verdict()], path)
    stored = read(path)
    assert stored["rloo"].note == "because | so" and "because \\| so" in page.read_text()
    assert filled(page.read_text(), stored) == page.read_text() and page.read_text().endswith("end\n")
    write([dataclasses.replace(verdict(), verdict="undecided")], path)
    assert read(path)["rloo"].note == "", "a note is about one verdict"
    assert "check changed" not in page.read_text()
    for changed, says in ((1, "beyond 0.1 (check changed once)"), (2, "beyond 0.1 (check changed 2 times)")):
        write([verdict(changed=changed)], path)
        assert says in page.read_text()


@pytest.mark.parametrize(
    "text, says",
    [
        ("{}", "expected a list"),
        ("[", "not valid JSON"),
        ('[{"recipe": "rloo"}]', "needs"),
        (
            json.dumps([{**json.loads(json.dumps(dataclasses.asdict(verdict()))), "verdict": "maybe"}]),
            "maybe",
        ),
        (json.dumps([dataclasses.asdict(verdict())] * 2), "two verdicts"),
    ],
)
def test_a_wrong_format_of_stored_verdicts_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "claims.json").write_text(text)
    with pytest.raises(DataError, match=says):
        read(tmp_path / "claims.json")


def test_a_verdict_is_stale_when_its_definitions_change(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of("rloo")
    stored = {"rloo": verdict()}
    assert states(stored, ["rloo", "instruct"]) == {"rloo": "stale", "instruct": "missing"}
    stored = {"rloo": dataclasses.replace(verdict(), key=key)}
    assert states(stored, ["rloo"]) == {"rloo": "current"}
    real = load

    def changed(name: Any, overrides: Any = (), **more: Any) -> Any:
        return real(name, overrides=[*overrides, "online.rounds=7"], **more)

    monkeypatch.setattr("ratchet.flows.claim_records.load", changed)
    assert states(stored, ["rloo"]) == {"rloo": "stale"}


def test_what_a_claim_only_states_changes_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key, real = key_of("spo"), claim_records.claim_of
    for change in (
        {"testbed": "other"},
        {"tuning": "other"},
        {"budget": "none: other"},
        {"budget": "tokens"},
    ):
        monkeypatch.setattr(
            claim_records, "claim_of", lambda name, c=change: dataclasses.replace(real(name), **c)
        )
        assert key_of("spo") == key, change
    monkeypatch.setattr(claim_records, "claim_of", lambda name: dataclasses.replace(real(name), at_least=0.5))
    assert key_of("spo") != key


@pytest.mark.parametrize(
    "change, says",
    [
        ({"testbed": " "}, r"claim\.testbed"),
        ({"tuning": ""}, r"claim\.tuning"),
        ({"budget": "steps"}, r"claim\.budget: expected updates, tokens, labels or `none: WHY`, got 'steps'"),
        ({"budget": "none: "}, r"claim\.budget"),
        ({"budget": "updates", "against": "start"}, r"claim\.budget: start and zero have none"),
    ],
)
def test_a_claim_states_testbed_budget_and_tuning(change: dict[str, str], says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        conform(StatedClaim, {"against": "sft", "metric": "m", **STATED, **change}, "claim")
    with pytest.raises(RecipeError, match="testbed"):
        StatedClaim(against="sft", metric="m")  # pyright: ignore[reportCallIssue]


def test_the_page_has_what_every_claim_states_and_the_counts_of_its_check() -> None:
    rows = {row.split("`")[1]: row for row in claim_records.stated(read()).splitlines()[2:]}
    assert set(rows) == set(claim_records.claiming())
    assert "| updates: 15 and 15 of spo_reward_model |" in rows["spo"]
    searched = "same search on both: a third of the learning rate and three times it, at seed 100"
    assert rows["entropy_bonus"].endswith(f" of sentiment_rloo | {searched} |")


@pytest.mark.parametrize("name", [name for name, one in written().items() if one.claim and one.claim.counted])
def test_a_stored_verdict_with_an_equal_budget_was_not_won_by_a_larger_one(name: str) -> None:
    for row in read()[name].comparisons.values():
        assert claims._fair(row.decision, row.own_budget, row.baseline_budget)


def test_updates_of_other_models_are_no_budget(publish: Any, tmp_path: Path) -> None:
    """The corrector of `seq2seq_reward` is a `learn` phase with `advance: false`."""
    run = finished(publish, tmp_path, "run", scored([1.0]), steps=3)
    assert claim_values.updates(run) == 3
    stages = {"corrector": dataclasses.replace(run.stages["improve"], name="improve"), **run.stages}
    stages["corrector"] = dataclasses.replace(stages["corrector"], name="corrector")
    corrected = dataclasses.replace(run, recipe=load("seq2seq_reward")[0], stages=stages)
    assert claim_values.updates(corrected) == 3


def test_the_words_of_a_recipe_change_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    key, real = key_of("rloo"), load
    monkeypatch.setattr(
        "ratchet.flows.claim_records.load",
        lambda name, overrides=(), **more: real(name, overrides=[*overrides, "about=other words"], **more),
    )
    assert key_of("rloo") == key


@pytest.mark.parametrize(
    ("file", "before", "after", "stale"),
    [("report.py", "parents=True", "parents=False", False), ("bootstrap.py", "0.95", "0.99", True)],
)
def test_only_definitions_that_make_numbers_make_verdicts_stale(
    file: str, before: str, after: str, stale: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, path = key_of("rloo"), ROOT / "evaluation" / file
    edited = path.read_text().replace(before, after)
    assert edited != path.read_text()
    monkeypatch.setattr(
        "ratchet.flows.claim_records.our_sources", lambda changed: our_sources({path: edited, **changed})
    )
    assert (key_of("rloo") != key) == stale


def test_a_claim_in_words() -> None:
    claim = Claim(against=["sft", "start"], metric="m", at_least=0.1, budget="updates")
    assert sentence(claim) == "m higher than sft and its start by more than 0.1, equal updates"
    curve = Claim(against="sft", metric="m", per="curve", level=0.5, direction="lower")
    assert sentence(curve) == "logged steps until m reaches 0.5 lower than sft"


# --- the whole command


class Pool:
    """Workers that publish a product for each stage at once. `most`: stages until the check is killed."""

    def __init__(self, most: int = 99) -> None:
        self.made: list[tuple[str, str]] = []
        self.most, self.jobs = most, []

    def __call__(self, *_: Any) -> Pool:
        return self

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def idle(self) -> int:
        return 2 - len(self.jobs)

    busy = 0

    def start(self, job: Any, pipeline: Any, stage: str) -> None:
        if len(self.made) == self.most:
            raise KeyboardInterrupt
        planned = pipeline.stages[stage]
        with pipeline.store.working(stage, planned.key) as work:
            (work.product / "results.json").write_text(json.dumps(scored(pipeline.rows)))
            inputs = [pipeline.artifact(parent).digest for parent in planned.inputs.values()]
            pipeline.store.publish(work, stage, planned.key, planned.kind, inputs, {"seconds": 6.0})
        self.made.append((stage, planned.key))
        self.jobs.append(job)

    def finished(self) -> list[Any]:
        jobs, self.jobs = self.jobs, []
        return [SimpleNamespace(job=job, error="") for job in jobs]


def test_a_killed_check_continues_and_shared_stages_are_made_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Data shared by all arms and seeds, SFT shared by the arms of a seed."""

    def opened(recipe: str, *, home: Path, overrides: list[str], **_: Any) -> Any:
        seed = overrides[0].removeprefix("seed=")
        keys = {
            "raw": "all",
            "sft": seed,
            "improve": f"{recipe} {seed}",
            "evaluate": f"{recipe} {seed} report",
        }
        before, stages = None, {}
        for name, key in keys.items():
            kind = "report" if name == "evaluate" else "weights"
            stages[name] = Stage(name, name, kind, {}, {"in": before} if before else {}, digest(key))
            before = name
        run = Pipeline(*load("rloo"), stages, Store(home), SimpleNamespace(name=f"{recipe}{seed}"))  # pyright: ignore[reportArgumentType]
        run.rows = [0.9, 0.8] if recipe == "rloo" else [0.5, 0.4]  # pyright: ignore[reportAttributeAccessIssue]
        return run

    claim = Claim(against="dpo", metric="final.reward.x", max_seeds=3)
    monkeypatch.setattr(claims, "Pipeline", SimpleNamespace(open=opened))
    monkeypatch.setattr(claims, "_check", lambda name: claims.Check(name, claim, [3]))
    monkeypatch.setattr(claims, "key_of", lambda name: "key")
    killed, resumed, again = Pool(most=5), Pool(), Pool()
    monkeypatch.setattr(claims, "Workers", killed)
    with pytest.raises(KeyboardInterrupt):
        claims.check_claims(["rloo"], home=tmp_path)
    monkeypatch.setattr(claims, "Workers", resumed)
    (found,) = claims.check_claims(["rloo"], home=tmp_path)
    made = killed.made + resumed.made
    assert len(killed.made) == 5 and len(made) == len(set(made)) == 1 + 3 + 6 + 6
    assert [stage for stage, _ in made].count("sft") == 3
    assert (found.verdict, found.seeds, found.minutes) == ("holds", 3, 1.6)
    assert found.comparisons["dpo"].mean == pytest.approx(0.4)
    monkeypatch.setattr(claims, "Workers", again)
    assert claims.check_claims(["rloo"], home=tmp_path) == [found] and not again.made


def test_a_second_check_uses_other_seeds_and_looks_once() -> None:
    check = claims._check("rloo")
    assert check.claim.first_seed == 8 and check.counts == [16]
    assert list(check.seeds) == list(range(8, 24))


@pytest.mark.slow  # a minute: preloading torch in the fork server and eight stages
def test_claims_run_on_warm_workers_and_again_from_the_store(
    fresh_home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a learning rate nothing is learned; the second run makes nothing."""
    (tmp_path / "none.yaml").write_text(
        "schema: 1\nbase: bandit\nabout: a test\npaper: arXiv:0000.00000\n"
        "online: {rounds: 1, prompts_per_round: 4, fit: {learning_rate: 1.0e-9}}\n"
        "evaluate: {prompts: 8}\n"
        "claim: {against: start, metric: final.reward.payoff, at_least: 0.5, seeds: 3, max_seeds: 3, "
        "testbed: bandit, budget: 'none: its start', tuning: neither}\n"
    )
    home, lines = fresh_home("claims"), list[str]()
    (found,) = claims.check_claims([str(tmp_path / "none.yaml")], home=home, workers=1, progress=lines.append)
    made = [line.split()[0] for line in lines]
    assert made.count("improve") == made.count("evaluate") == 3 and made.count("raw") == 1, lines
    assert (found.verdict, found.seeds) == ("does not hold", 3)
    assert found.comparisons["start"].mean == pytest.approx(0, abs=0.2)
    monkeypatch.setattr(claims.Graph, "start", lambda *_: pytest.fail("made again"))
    assert claims.check_claims([str(tmp_path / "none.yaml")], home=home, workers=1) == [found]


def test_a_failing_stage_is_reported_and_the_worker_goes_on(fresh_home: Any) -> None:
    from ratchet.tasks.process.workers import Workers

    home = fresh_home("failing")
    bad, good = (
        Pipeline.open("bandit", home=home, overrides=more, profile="claims")
        for more in (["data.source=path:/no/such.jsonl"], [])
    )
    with Workers(1, home / "claims") as pool:
        for job, run in (("bad", bad), ("good", good)):
            pool.start(job, run, "raw")
            (ended,) = pool.finished()
            assert ended.job == job and bool(ended.error) == (job == "bad")
            assert "no/such" in ended.error or job == "good"


# --- the catalogue


def test_recipes_are_listed_by_family_with_their_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = {name: verdict(name) for name in ("rloo", "bandit")}
    monkeypatch.setattr("ratchet.flows.claim_records.read", lambda: stored)
    rows = {
        row["recipe"]: row
        for row in json.loads(CliRunner().invoke(app, ["recipes", "list", "--json"]).output)
    }
    assert rows["rloo"]["verdict"] == "holds" and rows["bandit"]["verdict"] == "holds"
    assert rows["dpo_hh"]["verdict"] == "" and rows["instruct"]["verdict"] == "not measured"
    assert rows["rloo"]["family"] == "Online learning, in on-policy steps"
    text = CliRunner().invoke(app, ["recipes", "list"]).output
    assert text.index("Offline preference learning") < text.index("\n  dpo ") < text.index("\n  ppo ")


def test_explain_says_what_a_recipe_is_in_five_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ratchet.flows.claim_records.read", lambda: {"rloo": verdict()})
    text = CliRunner().invoke(app, ["recipes", "explain", "rloo"]).output.partition("rloo: RLOO")[2]
    text = text.partition("\n\nquantity")[0]
    lines, details = text.splitlines()[:5], text.splitlines()[6:]
    expected = (
        ("(REINFORCE",),
        ("Online learning", "arXiv:2402.14740"),
        ("base      steps; its own keys:", "online.fit.updates.policy: [{name: reinforce"),
        ("advantages.leave_one_out (arXiv:2402.14740)", "rewards.exact_answer"),
        (
            "final.reward.exact_answer higher than its start by more than 0.05 (sums",
            "holds (stale",
            "against start: +0.2 [+0.15, +0.25] at 95 %, 3 seeds. beyond 0.1",
        ),
    )
    assert len(lines) == len(expected)
    for line, parts in zip(lines, expected, strict=True):
        assert all(part in line for part in parts), line
    assert details[0] == "equation" and details[1].startswith("  reinforce: -A log pi, one term per step")
    assert (
        "  sample (arXiv:2405.07863): responses_per_prompt 8 (default 4), max_tokens 16 (default 128)" in text
    )
    assert details[-1].strip().startswith("rloo − start  +0 0·") and details[-1].endswith("┤ +0.25")


def test_an_interval_is_drawn_with_zero_and_the_bound() -> None:
    row = Row("a − b", -0.25, -0.15, -0.05, -0.1, "undecided")
    assert text_bar(row) == "-0.25 ├───────────────●───────¦───────┤·······0 +0"


def test_a_report_is_compared_with_zero_by_seed(publish: Any, tmp_path: Path) -> None:
    runs = [
        finished(publish, tmp_path, f"run{value}", scored([], metrics={"gap.mean": value}))
        for value in (0.25, 0.5)
    ]
    claim = Claim(against="zero", metric="gap", per="seed", at_least=0.1)
    assert claim_values.values(claim, runs, None) == ([0.25, 0.5], [0.0, 0.0], [0.25, 0.5])
    assert sentence(claim) == "gap higher than zero by more than 0.1" and claim.recipes == ()
    with pytest.raises(RecipeError, match=r"claim\.per: expected seed with `against: zero`"):
        Claim(against="zero", metric="gap")
