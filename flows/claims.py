"""Claim checks: every claim's arms (the recipe and its baselines) × seeds, on warm worker processes.

The stages of all arms form one graph whose nodes are store keys, so what arms share (baselines, tiny models,
SFT policies, data) is made once. A stage whose output is in the store is not made again: a check that was
killed continues, and a repeated check re-runs what changed. A failed stage fails the stages that need it, and
the other claims go on. Seeds are added to a claim while it is undecided (`evaluation/verdicts.py`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ratchet.components.errors import RatchetError
from ratchet.components.evaluation.verdicts import (
    Decision,
    crossed,
    decide,
    level_of,
    looks,
    over_seeds,
    together,
)
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.schema_claim import START, ZERO, Claim
from ratchet.components.storage.store import read_manifest
from ratchet.flows import claim_values
from ratchet.flows.claim_records import Comparison, Verdict, claim_of, is_tiny, key_of, profile_of, sentence
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process.workers import Workers

Node = tuple[str, str]  # stage name and store key
Open = Callable[[str, int], Pipeline]  # of a recipe and a seed
SAME_BUDGET = 1.1
"""Largest ratio of two budgets that count as equal."""


def node_of(stage: Stage) -> Node:
    """The stage's node in a graph."""
    return stage.name, stage.key


@dataclass
class Graph:
    """Stages that are still to be made. `waiting`: node -> a pipeline that has it, and the nodes it needs."""

    waiting: dict[Node, tuple[Pipeline, set[Node]]] = field(default_factory=dict)
    running: set[Node] = field(default_factory=set)
    done: set[Node] = field(default_factory=set)
    failed: dict[Node, str] = field(default_factory=dict)

    def want(self, pipeline: Pipeline) -> Node:
        """Add the stages that the pipeline's report needs and the store does not have; returns its node."""
        report = claim_values.report_of(pipeline)
        self._add(pipeline, report)
        return node_of(report)

    def _add(self, pipeline: Pipeline, stage: Stage) -> None:
        node = node_of(stage)
        if node in self.waiting or node in self.running or node in self.done or node in self.failed:
            return
        if pipeline.store.intact(*node):
            self.done.add(node)
            return
        parents = [pipeline.stages[name] for name in stage.inputs.values()]
        self.waiting[node] = (pipeline, {node_of(one) for one in parents})
        for parent in parents:
            self._add(pipeline, parent)
            if (wrong := self.failed.get(node_of(parent))) and self.waiting.pop(node, None):
                self.failed[node] = wrong  # by the check of another claim

    def ready(self) -> Iterator[tuple[Node, Pipeline]]:
        """Nodes whose inputs are made, in the order in which they were wanted."""
        for node, (pipeline, needs) in list(self.waiting.items()):
            if needs <= self.done:
                yield node, pipeline

    def start(self, node: Node) -> None:
        del self.waiting[node]
        self.running.add(node)

    def finish(self, node: Node, error: str) -> None:
        """Record the end of a node; with an error, of everything that needs it too."""
        self.running.discard(node)
        if not error:
            self.done.add(node)
            return
        self.failed[node] = f"stage {node[0]} failed: {error}"
        while lost := {n for n, (_, needs) in self.waiting.items() if needs & self.failed.keys()}:
            for one in lost:
                self.failed[one] = self.failed[next(iter(self.waiting.pop(one)[1] & self.failed.keys()))]


@dataclass
class Check:
    """One claim being checked."""

    recipe: str
    claim: Claim
    counts: list[int]  # seeds of each look
    look: int = 1
    reports: dict[tuple[str, int], Node] = field(default_factory=dict)  # (arm, seed) -> its report
    pipelines: dict[tuple[str, int], Pipeline] = field(default_factory=dict)

    @property
    def seeds(self) -> range:
        first = self.claim.first_seed
        return range(first, first + self.counts[self.look - 1])

    @property
    def arms(self) -> list[str]:
        return [self.recipe, *self.claim.recipes]


def check_claims(
    recipes: Sequence[str],
    *,
    home: Path,
    workers: int = 2,
    profile: str | None = None,
    on_verdict: Callable[[Verdict], None] = lambda verdict: None,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Verdict]:
    """Check the claims of `recipes` with products in `home`. `on_verdict` is called with each verdict as soon
    as it is reached. `RecipeError` before anything is started for an unknown recipe or one without a claim.
    """

    @functools.cache
    def opened(recipe: str, seed: int) -> Pipeline:
        return Pipeline.open(
            recipe, home=home, overrides=[f"seed={seed}"], profile=profile or profile_of(recipe)
        )

    graph = Graph()
    checks = [_check(name) for name in recipes]
    for check in checks:
        _want(check, opened, graph)
    verdicts: list[Verdict] = []
    with Workers(max(1, workers), home / "claims") as pool:
        while checks:
            for check in list(checks):
                if verdict := _settle(check, opened, graph):
                    checks.remove(check)
                    verdicts.append(verdict)
                    on_verdict(verdict)
            if checks:
                _work(graph, pool, progress)
    return verdicts


def make(
    pipelines: Iterable[Pipeline], *, home: Path, workers: int, progress: Callable[[str], None]
) -> Graph:
    """Make the reports of runs and what they need; what is in the store, or shared, once."""
    graph = Graph()
    for pipeline in pipelines:
        graph.want(pipeline)
    with Workers(max(1, workers), home / "claims") as pool:
        while graph.waiting or graph.running:
            _work(graph, pool, progress)
    return graph


def _check(name: str) -> Check:
    claim = claim_of(name)
    return Check(name, claim, looks(claim.seeds, claim.most_seeds))


def _want(check: Check, opened: Open, graph: Graph) -> None:
    for seed in check.seeds:
        for arm in check.arms:
            if (arm, seed) not in check.reports:
                check.pipelines[arm, seed] = opened(arm, seed)
                check.reports[arm, seed] = graph.want(check.pipelines[arm, seed])


def _work(graph: Graph, pool: Workers, progress: Callable[[str], None]) -> None:
    """Start what can be started and wait for a stage to end. A stage of a large model runs alone."""
    alone = False
    for node, pipeline in graph.ready():
        large = not is_tiny(pipeline.recipe)
        if alone or not pool.idle or (large and pool.busy):
            break
        graph.start(node)
        pool.start(node, pipeline, node[0])
        alone = large
    for ended in pool.finished():
        graph.finish(ended.job, ended.error)
        left = len(graph.waiting) + len(graph.running)
        progress(f"{ended.job[0]} {'failed: ' + ended.error if ended.error else 'done'}, {left} stages left")


def _settle(check: Check, opened: Open, graph: Graph) -> Verdict | None:
    """The verdict if every report of this look is there; None while some are being made, or if the claim is
    undecided and more seeds were added.
    """
    nodes = list(check.reports.values())
    comparisons = {one: Comparison("undecided") for one in check.claim.baselines}
    if lost := [graph.failed[node] for node in nodes if node in graph.failed]:
        return _verdict(check, "undecided", lost[0], comparisons)
    if not all(node in graph.done for node in nodes):
        return None
    try:
        comparisons = {one: compared(check, one) for one in check.claim.baselines}
    except (RatchetError, KeyError) as error:
        return _verdict(check, "undecided", f"not comparable: {error}", comparisons)
    decision = together([one.decision for one in comparisons.values()])
    if decision == "undecided" and check.look < len(check.counts):
        check.look += 1
        _want(check, opened, graph)
        return _settle(check, opened, graph)
    return _verdict(check, decision, reason(check, comparisons, decision), comparisons)


def compared(check: Check, baseline: str) -> Comparison:
    """The recipe against one baseline over the seeds of the present look."""
    claim, level = check.claim, level_of(check.look, len(check.counts))
    own = [check.pipelines[check.recipe, seed] for seed in check.seeds]
    recipes = baseline not in (START, ZERO)
    theirs = [check.pipelines[baseline, seed] for seed in check.seeds] if recipes else None
    values, others, differences = claim_values.values(claim, own, theirs)
    effect = over_seeds(differences, level) if claim.per != "prompt" else crossed(differences, level)
    budgets = claim_values.budgets(claim.counted, own, theirs) if claim.counted and theirs else (None, None)
    decision = decide(effect, claim.direction, claim.at_least)
    if not _fair(decision, *budgets):
        decision = "undecided"
    return Comparison(decision, effect.mean, effect.low, effect.high, effect.level, values, others, *budgets)


def _fair(decision: str, own: float | None, baseline: float | None) -> bool:
    """Whether a decision stands with these budgets: a method that used more may not win by it, nor a baseline
    that used more.
    """
    if own is None or baseline is None:
        return True
    if decision == "holds":
        return own <= SAME_BUDGET * baseline
    return decision != "does not hold" or baseline <= SAME_BUDGET * own


def reason(check: Check, comparisons: dict[str, Comparison], decision: str) -> str:
    """One line: what decided the claim."""
    claim, bound = check.claim, f"{check.claim.at_least:g}"
    for name, one in comparisons.items():
        if one.own_budget is not None and one.baseline_budget is not None:
            ratio = one.own_budget / max(one.baseline_budget, 1e-9)
            if one.decision == "undecided" and not 1 / SAME_BUDGET <= ratio <= SAME_BUDGET:
                return f"unequal {claim.budget}: {one.own_budget:g} against {one.baseline_budget:g} of {name}"
    name, one = next((n, o) for n, o in comparisons.items() if o.decision == decision)
    against = f" against {name}" if len(comparisons) > 1 else ""
    if decision == "holds":
        return f"the whole interval lies beyond {bound} in the claimed direction"
    if decision == "undecided" and one.low == one.high:
        return f"all {len(check.seeds)} seeds gave the same difference{against}: its spread is unknown"
    if decision == "undecided":
        return f"the interval contains {bound} at {len(check.seeds)} seeds{against}"
    assert one.low is not None and one.high is not None
    opposite = one.high < 0 if claim.direction == "higher" else one.low > 0
    return (
        f"the difference has the opposite sign{against}"
        if opposite
        else f"the whole interval lies short of {bound}{against}"
    )


def _verdict(check: Check, decision: Decision, why: str, comparisons: dict[str, Comparison]) -> Verdict:
    return Verdict(
        recipe=check.recipe,
        claim=sentence(check.claim),
        verdict=decision,
        why=" ".join(why.split()),
        seeds=len(check.seeds),
        minutes=round(_seconds(check.pipelines.values()) / 60, 2),
        key=key_of(check.recipe),
        comparisons=comparisons,
        changed=check.claim.changed,
    )


def _seconds(pipelines: Iterable[Pipeline]) -> float:
    """Seconds of all stages of the arms, shared ones once, whether made now or before."""
    nodes = {(s.name, s.key): p.store.path(s.name, s.key) for p in pipelines for s in p.stages.values()}
    return sum((read_manifest(path) or {"meta": {}})["meta"].get("seconds", 0.0) for path in nodes.values())
