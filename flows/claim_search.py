"""Search of learning rates for claim checks: the same search in a recipe and in each of its baselines.

Every arm runs with the learning rate of its last trained section as written, at a third of it and at three
times as much, on seeds that no check uses (100 and up). The results are kept in `docs/searches.json`, and
`docs/claims.md` shows them. Settings are not changed by a search: who changes a recipe after it measures its
claim again.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import field, replace
from pathlib import Path

import numpy as np

from ratchet.components.errors import DataError, RecipeError
from ratchet.components.recipes.conform import conform, record
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.ranges import Finite, Natural, Positive
from ratchet.components.recipes.recipe import load
from ratchet.components.storage.store import write_atomic
from ratchet.flows import claim_values
from ratchet.flows.claim_records import STORED as VERDICTS
from ratchet.flows.claim_records import claim_of, claiming, profile_of
from ratchet.flows.claims import make, node_of
from ratchet.tasks.pipeline import Pipeline

STORED = VERDICTS.with_name("searches.json")
BEGIN, END = "<!-- begin: searches -->", "<!-- end: searches -->"
FIRST_SEED = 100
FACTORS = (1 / 3, 1.0, 3.0)


@record
class Tried:
    """One learning rate of an arm. `values`: the claim's metric by seed."""

    rate: Positive
    values: list[Finite]


@record
class Search:
    """The search in one arm of a claim. `section`: path of the section whose learning rate is tried;
    `used`: the recipe's own rate.
    """

    recipe: str  # that claims
    arm: str
    section: str
    used: Positive
    first_seed: Natural = FIRST_SEED
    tried: list[Tried] = field(default_factory=list)

    @property
    def rates(self) -> list[float]:
        return [float(f"{factor * self.used:.3g}") for factor in FACTORS]


def arms_of(recipe: str) -> list[Search]:
    """What to search in the arms of a claim, the last trained section of each; none if no baseline is a
    recipe, or one of them trains nothing, so that there is nothing to tune on its side.
    """
    baselines = claim_of(recipe).recipes
    found = []
    for arm in (recipe, *baselines) if baselines else ():
        trained = [
            (one.where, fit) for one in sections(load(arm)[0]) if (fit := getattr(one.section, "fit", None))
        ]
        if not trained:
            return []
        section, fit = trained[-1]
        found.append(Search(recipe, arm, section, fit.learning_rate))
    return found


def search(
    recipes: Sequence[str],
    *,
    home: Path,
    seeds: int = 1,
    workers: int = 2,
    progress: Callable[[str], None] = lambda line: None,
) -> list[Search]:
    """Search the arms of the claims of `recipes`, with products in `home`; arms that share stages make them
    once, and what is in the store is not made again. A rate whose training fails or diverges is left out.
    `RecipeError` before anything is started for a recipe without a claim, or with nothing to search.
    """
    arms = [arm for name in recipes for arm in arms_of(name)]
    if not arms:
        raise RecipeError(f"nothing to search: no baseline of {', '.join(recipes)} is a recipe that trains")

    @functools.cache
    def opened(arm: str, section: str, rate: float, seed: int) -> Pipeline:
        changes = [f"seed={seed}", f"{section}.fit.learning_rate={rate!r}"]
        return Pipeline.open(arm, home=home, overrides=changes, profile=profile_of(arm))

    wanted = range(FIRST_SEED, FIRST_SEED + seeds)
    runs = [opened(one.arm, one.section, rate, seed) for seed in wanted for one in arms for rate in one.rates]
    done = make(runs, home=home, workers=workers, progress=progress).done
    found = []
    for one in arms:
        tried = []
        for rate in one.rates:
            own = [opened(one.arm, one.section, rate, seed) for seed in wanted]
            if all(node_of(claim_values.report_of(run)) in done for run in own):
                values, _, _ = claim_values.values(claim_of(one.recipe), own, own)
                tried.append(Tried(rate, values))
        found.append(replace(one, tried=tried))
    return found


def read(path: Path = STORED) -> list[Search]:
    """Stored searches; none if the file does not exist. `DataError` for a wrong format."""
    if not path.exists():
        return []
    try:
        return [conform(Search, row, f"[{index}]") for index, row in enumerate(json.loads(path.read_text()))]
    except (json.JSONDecodeError, RecipeError) as error:
        raise DataError(f"{path}: {error}") from None


def write(searches: Iterable[Search], path: Path = STORED) -> None:
    """Replace the searches of these claims, keep the others, but those of recipes that claim no more, and
    refresh the table of `claims.md` in the folder of the file.
    """
    new = list(searches)
    names = {one.recipe for one in new}
    known = set(claiming())
    kept = [one for one in read(path) if one.recipe not in names and one.recipe in known]
    rows = [plain(one) for one in sorted([*kept, *new], key=lambda one: one.recipe)]
    write_atomic(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    page = path.with_name("claims.md")
    if page.exists():
        page.write_text(filled(page.read_text(), read(path)))


def filled(text: str, searches: Sequence[Search]) -> str:
    """`docs/claims.md` with its table of searches up to date."""
    block = f"{BEGIN}\n{table(searches)}\n{END}"
    return re.sub(f"{BEGIN}.*?{END}", lambda _: block, text, flags=re.DOTALL)


def results(one: Search) -> str:
    """What came out, in one line: the mean of the metric for each rate, the recipe's own in bold."""

    def shown(rate: float) -> str:
        return f"**{rate:g}**" if rate == one.used else f"{rate:g}"

    return ", ".join(f"{shown(tried.rate)}: {np.mean(tried.values):.3g}" for tried in one.tried)


def table(searches: Sequence[Search]) -> str:
    """The searches as a Markdown table: a row for each baseline of a claim, with the difference at the rates
    of the recipes and the difference of the best results of both sides.
    """
    rows = [
        "| claim | baseline | recipe, by rate | baseline, by rate | as written | best − best | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for own in searches:
        others = [one for one in searches if one.recipe == own.recipe and one.arm != own.arm]
        for other in others if own.arm == own.recipe and own.tried else ():
            seeds = len(own.tried[0].values)
            cells = (results(own), results(other), _at_used(own, other), _at_best(own, other), seeds)
            rows.append(f"| `{own.recipe}` | `{other.arm}` | {' | '.join(map(str, cells))} |")
    return "\n".join(rows)


def _at_used(own: Search, other: Search) -> str:
    """Difference of the means at the rates of the recipes."""
    used = [[np.mean(t.values) for t in one.tried if t.rate == one.used] for one in (own, other)]
    return f"{used[0][0] - used[1][0]:+.3g}" if all(used) else "failed"


def _at_best(own: Search, other: Search) -> str:
    """Difference of the best means, each side at its own rate."""
    best = min if claim_of(own.recipe).direction == "lower" else max
    means = [[float(np.mean(t.values)) for t in one.tried] for one in (own, other)]
    return f"{best(means[0]) - best(means[1]):+.3g}" if all(means) else "failed"
