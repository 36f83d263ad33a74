"""Verdicts carried over a change of code: only if every plan and every output is the same with each seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.carry_claims import differing, unchanged
from benchmarks.stage_outputs import digests, outputs
from ratchet.components.piece import ROOT
from ratchet.components.recipes.plan import our_sources

SAME = {
    "a 0": {"plan": "p"}, "a 1": {"plan": "p"}, "a 0 curated": {"f": "1"}, "a 1 curated": {"f": "2"},
    "ab 0": {"plan": "q"}, "ab 0 curated": {"f": "3"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({}, ["one", "both"]),
        ({"a 1 curated": {"f": "9"}}, []),
        ({"a 1": {"plan": "r"}}, []),
        ({"ab 0 curated": {"f": "3", "g": "4"}}, ["one"]),
    ],
)
def test_a_claim_is_kept_if_all_its_arms_are_the_same(
    change: dict[str, dict[str, str]], kept: list[str]
) -> None:
    arms = {"one": ["a"], "both": ["a", "ab"]}
    assert unchanged(arms, SAME, {**SAME, **change}) == kept
    assert unchanged({"unmade": ["c"]}, SAME, SAME) == [], "nothing was compared"
    assert unchanged(arms, SAME, {k: v for k, v in SAME.items() if k != "a 1"}) == []


def test_stages_that_reach_a_changed_definition_are_found() -> None:
    file = ROOT / "data" / "parsing.py"
    text = file.read_text()
    assert text.count("def unique(") == 1
    other = our_sources({file: text.replace("RENAMED = ", "RENAMED = 'x' + ")})
    beside = our_sources({file: text + "\n\ndef nobody() -> int:\n    return 1\n"})
    assert differing("bandit", our_sources(), other) == ["drafts"]
    assert differing("bandit", our_sources(), beside) == []


def test_outputs_have_the_plan_and_the_files_that_later_stages_read(
    fresh_home: Callable[[str], Path],
) -> None:
    home = fresh_home("home")
    found = outputs(home, {"bandit": (["drafts"], [0, 9], [])})
    assert found.keys() == {"bandit 0", "bandit 0 drafts", "bandit 9", "bandit 9 drafts"}
    files = found["bandit 0 drafts"]
    assert "prompts.parquet" in files and "manifest.json" not in files
    (folder,) = home.glob("store/drafts-*")
    (folder / "prompts.parquet").write_bytes(b"x")
    (folder / "data_docs").mkdir()
    (folder / "data_docs" / "index.html").write_text("a page with a date")
    changed = digests(folder)
    assert changed.keys() == files.keys() and changed["prompts.parquet"] != files["prompts.parquet"]
