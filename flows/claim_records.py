"""Stored verdicts on the recipes' claims: `docs/claims.json`, its table in `docs/claims.md`, and which are
stale.

A verdict carries a key of what it was measured with: the claim, and the store keys of all stages of its arms
(recipe slices, data, source code), without the words and pictures of the report page. A verdict whose key
differs from the present one is stale: the definitions changed since, and `ratchet claims --record` measures
it again.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from ratchet.components.errors import DataError, RecipeError, nearest
from ratchet.components.evaluation.verdicts import Decision
from ratchet.components.piece import ROOT
from ratchet.components.recipes.conform import conform, record
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.plan import Stage, our_sources, plan, source_digest
from ratchet.components.recipes.ranges import Finite, Natural, NotNegative
from ratchet.components.recipes.recipe import load, written
from ratchet.components.recipes.schema import Recipe
from ratchet.components.recipes.schema_claim import START, ZERO, Claim
from ratchet.components.storage.definitions import Sources
from ratchet.components.storage.store import digest, write_atomic

STORED = Path(__file__).resolve().parent.parent / "docs" / "claims.json"
PROFILE = "claims"
State = Literal["current", "stale", "missing"]
REPORTED = ("resolved", "about", "recipe", "gates")
"""Options of a report that change none of its numbers."""
PAGE = ROOT / "evaluation" / "report.py"
"""Writes a page from numbers that are there already."""
BEGIN, END = "<!-- begin: claims -->", "<!-- end: claims -->"


@record
class Comparison:
    """The method against one baseline: mean difference with its interval, and what each used of the budget
    that is held equal (mean over seeds; null: not measured).
    """

    decision: Decision
    mean: Finite | None = None
    low: Finite | None = None
    high: Finite | None = None
    level: Finite | None = None
    own: list[Finite] = field(default_factory=list)  # by seed; empty with `start`
    baseline: list[Finite] = field(default_factory=list)  # by seed
    own_budget: NotNegative | None = None
    baseline_budget: NotNegative | None = None


@record
class Verdict:
    """A stored verdict. `note`: a reason written by hand, kept while the verdict stays the same."""

    recipe: str
    claim: str
    verdict: Decision
    why: str
    seeds: Natural
    minutes: NotNegative
    key: str
    comparisons: Annotated[dict[str, Comparison], Field(min_length=1)]  # by baseline
    changed: Natural = 0
    note: str = ""


def sentence(claim: Claim) -> str:
    """The claim in words."""
    what = {
        "prompt": claim.metric,
        "seed": claim.metric,
        "curve": f"logged steps until {claim.metric} reaches {claim.level:g}"
        if claim.level is not None
        else f"mean of {claim.metric} over the steps",
    }[claim.per]
    margin = f" by more than {claim.at_least:g}" if claim.at_least else ""
    words = {START: "its start", ZERO: "zero"}
    named = " and ".join(words.get(one, one) for one in claim.baselines)
    equal = f", equal {claim.counted}" if claim.counted else ""
    return f"{what} {claim.direction} than {named}{margin}{equal}"


def is_tiny(recipe: Recipe) -> bool:
    """Whether the policy is the model of a million parameters, whose stages take seconds on one thread."""
    return recipe.models["policy"].format == "tiny"


def profile_of(recipe: str) -> str | None:
    """Profile of a claim check: `claims` for the tiny model, else the recipe's own (None)."""
    return PROFILE if is_tiny(load(recipe)[0]) else None


def claiming() -> list[str]:
    """Shipped recipes with a claim."""
    return [name for name, recipe in written().items() if recipe.claim]


def claim_of(name: str) -> Claim:
    """The claim of a recipe. `RecipeError` for an unknown recipe or one without a claim."""
    claim = load(name)[0].claim
    if claim is None:
        raise RecipeError(f"{name} claims nothing{nearest(name, claiming())}; add a section `claim`")
    return claim


@dataclass
class Arms:
    """Keys of the stages of recipes at seed 0, each recipe planned once. The source code is read once."""

    sources: Sources = field(default_factory=lambda: our_sources({PAGE: ""}))
    known: dict[str, list[str]] = field(default_factory=dict)

    def __getitem__(self, recipe: str) -> list[str]:
        if recipe not in self.known:
            loaded, profile = load(recipe, overrides=["seed=0"], profile=profile_of(recipe))
            stages = plan(loaded, profile)
            self.known[recipe] = [
                self._report(stage, stages) if stage.kind == "report" else stage.key
                for stage in stages.values()
            ]
        return self.known[recipe]

    def _report(self, stage: Stage, stages: Mapping[str, Stage]) -> str:
        """Key of a report's numbers."""
        options = {name: value for name, value in stage.options.items() if name not in REPORTED}
        inputs = {
            role: stages[name].key for role, name in stage.inputs.items() if stages[name].kind != "report"
        }
        return digest([stage.does, options, inputs, source_digest(stage.does, stage.options, self.sources)])


def key_of(recipe: str, arms: Arms | None = None) -> str:
    """Key of the present definitions of a claim: the claim and every stage of its arms at seed 0, without
    what it only states (testbed, budget, tuning). `arms`: shared between the keys of several claims.
    """
    arms = arms or Arms()
    claim = claim_of(recipe)
    unused = {"testbed", "budget", "tuning", "changed", "max_seeds"} | (
        set() if claim.first_seed else {"first_seed"}
    )
    wanted = {name: value for name, value in plain(claim).items() if name not in unused}
    compared = [recipe, *claim.recipes]
    wanted["budget"] = None  # as in the keys of verdicts from before every claim stated its budget
    return digest([wanted, [arms[one] for one in compared]])[:16]


def read(path: Path = STORED) -> dict[str, Verdict]:
    """Stored verdicts by recipe; none if the file does not exist. `DataError` for a wrong format."""
    try:
        rows = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(rows, list):
        raise DataError(f"{path}: expected a list of verdicts, got {type(rows).__name__}")
    verdicts = {}
    for index, row in enumerate(rows):
        try:
            verdict = conform(Verdict, row, f"[{index}]")
        except RecipeError as error:
            raise DataError(f"{path}: {error}") from None
        if verdict.recipe in verdicts:
            raise DataError(f"{path}: two verdicts on {verdict.recipe!r}; remove one")
        verdicts[verdict.recipe] = verdict
    return verdicts


def write(verdicts: Iterable[Verdict], path: Path = STORED) -> None:
    """Replace the verdicts on these recipes, keep the others, and refresh the table of `claims.md` beside the
    file. Verdicts on recipes that no longer claim anything are removed.
    """
    stored = read(path)
    for verdict in verdicts:
        before = stored.get(verdict.recipe)
        note = (
            before.note if before and before.verdict == verdict.verdict and not verdict.note else verdict.note
        )
        stored[verdict.recipe] = dataclasses.replace(verdict, note=note)
    known = set(claiming())
    rows = [plain(verdict) for name, verdict in sorted(stored.items()) if name in known]
    write_atomic(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    page = path.with_suffix(".md")
    if page.exists():
        page.write_text(filled(page.read_text(), read(path)))


def states(stored: Mapping[str, Verdict], recipes: Iterable[str]) -> dict[str, State]:
    """Whether the stored verdict on each recipe is current, stale (its definitions changed since it was
    measured) or missing.
    """
    arms = Arms()
    return {
        name: "missing"
        if name not in stored
        else "current"
        if stored[name].key == key_of(name, arms)
        else "stale"
        for name in recipes
    }


def table(stored: Mapping[str, Verdict]) -> str:
    """The verdicts as a Markdown table."""
    rows = ["| recipe | claim | effect | verdict | seeds | minutes | why |", "|---|---|---|---|---|---|---|"]
    for name, one in sorted(stored.items()):
        effects = "<br>".join(effect(comparison) for comparison in one.comparisons.values())
        cells = (
            f"`{name}`",
            one.claim,
            effects,
            f"**{one.verdict}**" if one.verdict == "holds" else one.verdict,
            str(one.seeds),
            f"{one.minutes:.1f}",
            f"{one.note or one.why}{_changes(one)}",
        )
        rows.append(_row(cells))
    return "\n".join(rows)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def stated(stored: Mapping[str, Verdict]) -> str:
    """What every claim states before its check, as a Markdown table: testbed, budget and tuning; of a budget
    that is held equal, what recipe and baselines used in the stored check.
    """
    rows = ["| recipe | testbed | budget | tuning |", "|---|---|---|---|"]
    for name, recipe in sorted(written().items()):
        if claim := recipe.claim:
            used = _used(stored[name]) if claim.counted and name in stored else []
            budget = f"{claim.budget}: {', '.join(used)}" if used else claim.budget
            rows.append(_row((f"`{name}`", claim.testbed, budget, claim.tuning)))
    return "\n".join(rows)


def _used(one: Verdict) -> list[str]:
    """What a recipe and each of its baselines used of the budget, where it was counted."""
    return [
        f"{row.own_budget:g} and {row.baseline_budget:g} of {name}"
        for name, row in one.comparisons.items()
        if row.own_budget is not None and row.baseline_budget is not None
    ]


def _changes(one: Verdict) -> str:
    """How often the check was changed after its first result, where it was."""
    return f" (check changed {'once' if one.changed == 1 else f'{one.changed} times'})" if one.changed else ""


def effect(one: Comparison) -> str:
    """Mean difference with its interval and confidence level."""
    if one.mean is None or one.low is None or one.high is None or one.level is None:
        return "not measured"
    return f"{one.mean:+.3g} [{one.low:+.3g}, {one.high:+.3g}] at {100 * one.level:.3g} %"


def filled(text: str, stored: Mapping[str, Verdict]) -> str:
    """`docs/claims.md` with its tables up to date."""
    decided = sum(one.verdict != "undecided" for one in stored.values())
    counts = (
        f"{len(stored)} claims measured, {decided} decided: "
        f"{sum(one.verdict == 'holds' for one in stored.values())} hold, "
        f"{sum(one.verdict == 'does not hold' for one in stored.values())} do not."
    )
    blocks = {
        (BEGIN, END): f"{counts}\n\n{table(stored)}",
        ("<!-- begin: stated -->", "<!-- end: stated -->"): stated(stored),
    }
    for (begin, end), block in blocks.items():
        whole = f"{begin}\n{block}\n{end}"
        text = re.sub(f"{begin}.*?{end}", lambda _, whole=whole: whole, text, flags=re.DOTALL)
    return text
