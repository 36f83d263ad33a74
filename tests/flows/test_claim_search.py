"""`ratchet claims --search`: the same learning rates in every arm of a claim, on seeds that no check uses."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.components.errors import DataError, RecipeError
from ratchet.components.recipes.phases import section_at
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.recipe import load
from ratchet.flows import claim_search
from ratchet.flows.claim_records import claim_of, read
from ratchet.flows.claim_search import Search, Tried


def test_every_arm_is_searched_at_its_own_rate() -> None:
    """`vpl` trains a phase, its baseline a section of another name and with another rate."""
    arms = claim_search.arms_of("vpl")
    assert [(one.arm, one.section, one.used) for one in arms] == [
        ("vpl", "phases.personal", 5e-4),
        ("vpl_plain", "reward", 1e-3),
    ]
    assert arms[1].rates == pytest.approx([1e-3 / 3, 1e-3, 3e-3], rel=1e-3)
    assert {one.section for one in claim_search.arms_of("musicrl")} == {"phases.second"}, "the last of four"


@pytest.mark.parametrize("recipe", ["rloo", "across_input", "transfer_q"])
def test_a_baseline_that_trains_nothing_has_nothing_to_search(recipe: str) -> None:
    assert claim_search.arms_of(recipe) == []
    with pytest.raises(RecipeError, match="nothing to search"):
        claim_search.search([recipe], home=Path("none"))


def test_each_rate_is_measured_on_seeds_from_100_and_a_failed_one_is_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The metric of a run is its rate times its seed; one run of the baseline at 3e-4 fails."""
    opened: list[tuple[str, float, int]] = []

    def fake_open(recipe: str, *, overrides: Sequence[str], **_: Any) -> Any:
        changes = dict(one.split("=") for one in overrides)
        rate = float(changes["online.fit.learning_rate"])
        opened.append((recipe, rate, int(changes["seed"])))
        stage = Stage("evaluate", "evaluate", "report", {}, {}, "/".join([recipe, *overrides]))
        return SimpleNamespace(stages={"evaluate": stage}, value=rate * int(changes["seed"]))

    def fake_make(pipelines: Sequence[Any], **_: Any) -> Any:
        keys = [one.stages["evaluate"].key for one in pipelines]
        failed = "fine_grained_at_end", "rate=0.0003", "seed=101"
        return SimpleNamespace(done={("evaluate", k) for k in keys if not all(part in k for part in failed)})

    monkeypatch.setattr(claim_search, "Pipeline", SimpleNamespace(open=fake_open))
    monkeypatch.setattr(claim_search, "make", fake_make)
    monkeypatch.setattr(
        claim_search.claim_values, "values", lambda claim, own, _: ([one.value for one in own], [], [])
    )
    own, baseline = claim_search.search(["fine_grained"], home=tmp_path, seeds=2)
    assert (own.arm, baseline.arm, own.used) == ("fine_grained", "fine_grained_at_end", 1e-4)
    assert [(one.rate, one.values) for one in own.tried] == [
        (3.33e-5, [3.33e-5 * 100, 3.33e-5 * 101]),
        (1e-4, [1e-4 * 100, 1e-4 * 101]),
        (3e-4, [3e-4 * 100, 3e-4 * 101]),
    ]
    assert [one.rate for one in baseline.tried] == [3.33e-5, 1e-4]
    assert len(opened) == len(set(opened)) == 12


def test_searches_are_stored_and_those_of_a_claim_replaced(tmp_path: Path) -> None:
    path = tmp_path / "searches.json"
    one = Search("heron", "heron", "online", 1e-4, 100, [Tried(1e-4, [0.25, 0.75]), Tried(3e-4, [0.2])])
    claim_search.write([one, dataclasses.replace(one, recipe="gone")], path)
    claim_search.write([dataclasses.replace(one, recipe="dapo", arm="dapo")], path)
    newer = dataclasses.replace(one, tried=one.tried[:1])
    claim_search.write([newer], path)
    found = claim_search.read(path)
    assert [one.recipe for one in found] == ["dapo", "heron"] and found[1] == newer
    path.write_text(json.dumps([{"recipe": "heron"}]))
    with pytest.raises(DataError, match="searches"):
        claim_search.read(path)


def test_the_table_compares_as_written_and_at_the_best_of_both() -> None:
    """The recipe is best at 3e-4 (0.9), its baseline at the rate it has (0.6)."""
    own = Search("heron", "heron", "online", 1e-4, 100, [Tried(1e-4, [0.5, 0.7]), Tried(3e-4, [0.9, 0.9])])
    other = dataclasses.replace(
        own, arm="heron_sum", tried=[Tried(1e-4, [0.6, 0.6]), Tried(3e-4, [0.2, 0.2])]
    )
    (row,) = claim_search.table([own, other]).splitlines()[2:]
    assert row == (
        "| `heron` | `heron_sum` | **0.0001**: 0.6, 0.0003: 0.9 | **0.0001**: 0.6, 0.0003: 0.2 "
        "| +0 | +0.3 | 2 |"
    )
    failed = dataclasses.replace(other, tried=other.tried[1:])
    assert "| failed | +0.7 |" in claim_search.table([own, failed])
    lower = [dataclasses.replace(one, recipe="length_penalty") for one in (own, other)]
    lower = [dataclasses.replace(lower[0], arm="length_penalty"), lower[1]]
    assert "| +0 | +0.4 |" in claim_search.table(lower), "the claim wants less: 0.6 against 0.2"


def test_the_page_has_the_stored_searches() -> None:
    page = (claim_search.STORED.with_name("claims.md")).read_text()
    assert claim_search.filled(page, claim_search.read()) == page


def test_no_decided_claim_changes_side_at_the_best_rates() -> None:
    """As docs/claims.md says: the difference of the best results is on the side of each verdict."""
    gains: dict[str, list[float]] = {}
    for row in claim_search.table(claim_search.read()).splitlines()[2:]:
        name, best = row.split("`")[1], float(row.split("|")[6])
        gains.setdefault(name, []).append(-best if claim_of(name).direction == "lower" else best)
    decided = {name for name in gains if read()[name].verdict != "undecided"}
    for name in decided:  # a claim does not hold if it fails against one of its baselines
        holds, least = read()[name].verdict == "holds", min(gains[name])
        assert least > 0 if holds else least < claim_of(name).at_least, name
    page = claim_search.STORED.with_name("claims.md").read_text()
    assert f"So it is for all {len(decided)} decided claims of the table" in page


@pytest.mark.parametrize("one", claim_search.read(), ids=lambda one: f"{one.recipe}-{one.arm}")
def test_a_stored_search_belongs_to_the_present_recipes(one: Search) -> None:
    """Who changes a learning rate searches again."""
    assert one.arm in (one.recipe, *claim_of(one.recipe).recipes)
    assert section_at(load(one.arm)[0], one.section).fit.learning_rate == one.used
    assert one.first_seed >= claim_of(one.recipe).first_seed + claim_of(one.recipe).most_seeds
