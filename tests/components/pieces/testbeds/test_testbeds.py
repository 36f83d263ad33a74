"""Testbeds: one file each, documented, deterministic, with the properties that claims rely on."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

import ratchet.components.piece as pieces
import ratchet.components.pieces.testbeds as folder
from ratchet.components.data.generate import check_name, generate
from ratchet.components.data.parsing import parse
from ratchet.components.errors import SourceError
from ratchet.components.piece import build, catalogue
from ratchet.components.pieces.rewards.payoff import payoff
from ratchet.components.recipes.plan import source_digest
from ratchet.components.types import Context, Group, Prompt, Trajectory


def rows(address: str, tmp_path: Path) -> list[dict]:
    return [json.loads(line) for line in generate(address, tmp_path).read_text().splitlines()]


@pytest.mark.parametrize("name", list(catalogue("testbed")))
def test_a_testbed_says_what_it_shows_and_its_rows_are_readable(name: str, tmp_path: Path) -> None:
    doc = catalogue("testbed")[name].doc
    assert "Shows:" in doc and ("Does not show:" in doc or "does not show" in doc.lower())
    sized = "size" in catalogue("testbed")[name].options  # others have each of their prompts once
    first, second = (f"{name}?seed={seed}{'&size=12' if sized else ''}" for seed in (3, 4))
    file = generate(first, tmp_path)
    text = file.read_text()
    assert len(parse(file).kept) == len(text.splitlines()) >= 12
    assert not sized or len(rows(f"{name}?seed=3&size=20", tmp_path)) == len(text.splitlines()) + 8
    assert generate(first, tmp_path).read_text() == text != generate(second, tmp_path).read_text()


def test_code_pairs_need_the_prompt_only_where_both_answers_are_codes(tmp_path: Path) -> None:
    made = rows("code_pairs?seed=3&size=200&boxes=5&length=1", tmp_path)
    found, days = dict[str, set[str]](), dict[str, list[str]]()
    for row in made:
        box, day = row["prompt"][0]["content"].removesuffix(": code?").split(", day ")
        found.setdefault(box, set()).add(row["chosen"][0]["content"])
        days.setdefault(f"{row['split']} {day}", []).append(box)
    assert len(found) == 5 and all(len(codes) == 1 for codes in found.values()), "a box has one code"
    codes = set.union(*found.values())
    assert len(codes) == 5 and not codes & {row["rejected"][0]["content"] for row in made}
    assert all(len(set(boxes)) == 2 for boxes in days.values()), "the most similar question is the other box"
    assert len({row["prompt"][0]["content"] for row in made}) == len(made)


def test_shipped_testbeds_generate_the_bytes_of_earlier_versions(tmp_path: Path) -> None:
    def digest(address: str) -> str:
        return hashlib.sha256(generate(address, tmp_path).read_bytes()).hexdigest()[:12]

    assert digest("tiny_openers?seed=1") == "b88147f81d26"
    assert {
        name: digest(f"{name}?size=50&seed=1")
        for name in ("tiny_corpus", "tiny_pairs", "tiny_labels", "tiny_sources")
    } == {
        "tiny_corpus": "0434bcda8bac",
        "tiny_pairs": "50d617b53371",
        "tiny_labels": "7f5674f3ff1a",
        "tiny_sources": "fc0cbd862f23",
    }


def test_wrong_options_are_refused_before_anything_is_generated(tmp_path: Path) -> None:
    for address, says in {
        "tiny_pairs?sise=3": "tiny_pairs has no option 'sise'; did you mean 'size'",
        "tiny_pairs?size=0": "expected 1 or more, got 0",
        "tiny_sources?expert=1.5": "expected at most 1, got 1.5",
        "tiny_pear": "no such data set",
        "factory": "no such data set",  # a module of reasoning-gym that is no data set
    }.items():
        for use in (check_name, lambda what: generate(what, tmp_path)):
            with pytest.raises(SourceError, match=says):
                use(address)


def test_an_assertion_without_a_message_is_a_source_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rows(name: str, options: dict[str, object]) -> list[dict[str, object]]:
        raise AssertionError

    monkeypatch.setattr("ratchet.components.data.generate._rows", rows)
    with pytest.raises(SourceError, match="AssertionError without a message; check the options"):
        generate("tiny_pairs?size=3", tmp_path)


def test_a_new_testbed_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by its file name, checked, generated, and part of the store key of the stage that reads it."""
    root = tmp_path / "components"
    shutil.copytree(pieces.ROOT / "pieces", root / "pieces")
    file = root / "pieces" / "testbeds" / "squares.py"
    file.write_text('''"""Squares of numbers."""
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count


@piece()
def squares(*, size: Count = 3):
    """Shows: nothing. Does not show: anything."""
    for number in range(size):
        yield {"id": str(number), "prompt": f"{number} squared?", "answer": str(number**2)}
''')
    monkeypatch.setattr(pieces, "ROOT", root)
    monkeypatch.setattr(folder, "__path__", [*folder.__path__, str(file.parent)])
    try:
        check_name("squares?size=2")
        with pytest.raises(SourceError, match="no option 'sides'"):
            check_name("squares?sides=2")
        made = parse(generate("squares?size=4", tmp_path)).kept
    finally:
        sys.modules.pop("ratchet.components.pieces.testbeds.squares", None)
    assert [one.answer for one in made] == ["0", "1", "4", "9"]


def test_the_store_key_of_the_data_follows_the_testbed() -> None:
    def reached(address: str) -> str:
        return source_digest("fetch_data", {"source": address, "sha256": None})

    assert reached("generate:bandit?size=3") == reached("generate:bandit?size=4")
    assert len({reached(f"generate:{name}") for name in ("bandit", "tiny_pairs", "chain_sum")}) == 3


def test_a_bandit_has_one_best_action_in_each_context(tmp_path: Path) -> None:
    found = rows("bandit?size=24&seed=5&contexts=4", tmp_path)
    tables = [row["meta"]["payoff"] for row in found]
    assert tables[0] == tables[4] != tables[1] and len(tables[0]) == 10
    assert all(sorted(table.values())[-1] == 1.0 > 0.5 >= sorted(table.values())[-2] for table in tables)
    row = found[0]
    best = max(row["meta"]["payoff"], key=row["meta"]["payoff"].__getitem__)
    answers = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in (f" {best}", "12", ""))
    group = Group(Prompt("a", ({"role": "user", "content": row["prompt"]},), meta=row["meta"]), answers)
    assert payoff([group], Context())["reward.payoff"] == [[1.0, 0.0, 0.0]]
    assert build("testbed", {"name": "bandit"}) is not None


def test_guess_is_a_hidden_number_with_stubborn_demonstrations(tmp_path: Path) -> None:
    """As in the docstring: with r = 1/2 the answer is among three attempts in 1 - 2/3 (5/6)^2 of the rows."""
    found = rows("guess?size=3000&seed=2", tmp_path)
    tries = [[m["content"] for m in row["completion"] if m["role"] == "assistant"] for row in found]
    assert {m["content"] for row in found for m in row["completion"] if m["role"] == "user"} == {"No."}
    assert {len(t) for t in tries} == {3} and {row["answer"] for row in found} == {"1", "2", "3"}
    for count, expected in ((1, 1 / 3), (3, 1 - 2 / 3 * (5 / 6) ** 2)):
        hits = [row["answer"] in t[:count] for row, t in zip(found, tries, strict=True)]
        assert sum(hits) / 3000 == pytest.approx(expected, abs=0.03)


def test_codes_are_demonstrated_with_the_declared_shares_of_right_digits(tmp_path: Path) -> None:
    """A drawn digit is right in q + (1 - q) / 10; the code depends on the box only."""
    drawn = rows("codes?size=3000&seed=2&expert=0.5", tmp_path)
    codes = {(row["prompt"][0]["content"].split(",")[0], row["answer"]) for row in drawn}
    assert len(codes) == 12 and len({row["prompt"][0]["content"] for row in drawn}) == 3000
    for label, share in ((True, 0.8), (False, 0.4)):
        own = [row for row in drawn if row["label"] is label]
        hits = [
            a == b for row in own for a, b in zip(row["completion"][0]["content"], row["answer"], strict=True)
        ]
        assert sum(hits) / len(hits) == pytest.approx(share + (1 - share) / 10, abs=0.03)


def test_styled_sums_are_right_and_in_the_style(tmp_path: Path) -> None:
    drawn = rows("styled_sums?size=300&seed=2&largest=19", tmp_path)
    assert len({row["prompt"][0]["content"] for row in drawn}) == 300
    for row in drawn:
        a, b = map(int, re.findall(r"\d+", row["prompt"][0]["content"]))
        assert row["answer"] == str(a + b) and row["completion"][0]["content"] == f"{a + b}, thank you."
        assert a <= 19 and b <= 9


def test_sort_digits_demonstrates_right_attempts_and_exchanged_neighbours(tmp_path: Path) -> None:
    found = rows("sort_digits?size=2000&seed=2&digits=5&first=0.3&second=0.8", tmp_path)
    right = [0, 0]
    assert len({row["prompt"][0]["content"] for row in found}) == 2000
    for row in found:
        drawn = row["prompt"][0]["content"].removeprefix("Sort ")
        assert row["answer"] == "".join(sorted(drawn))
        attempts = [m["content"] for m in row["completion"] if m["role"] == "assistant"]
        for k, attempt in enumerate(attempts):
            right[k] += attempt == row["answer"]
            differ = [i for i, (a, b) in enumerate(zip(attempt, row["answer"], strict=True)) if a != b]
            assert sorted(attempt) == sorted(drawn) and len(differ) in (0, 2)
            assert not differ or differ[1] - differ[0] == 1, "two neighbours"
    assert right[0] / 2000 == pytest.approx(0.3, abs=0.04) and right[1] / 2000 == pytest.approx(0.8, abs=0.04)


def test_formats_differ_in_share_and_accuracy(tmp_path: Path) -> None:
    drawn = rows("formats?size=2000&seed=2", tmp_path)
    exact = [row for row in drawn if row["completion"][0]["content"].endswith(", exactly.")]
    assert len(exact) / 2000 == pytest.approx(0.3, abs=0.03)
    for own, share in ((exact, 0.9), ([row for row in drawn if row not in exact], 0.5)):
        hits = [re.search(r"-?\d+", row["completion"][0]["content"]) for row in own]
        right = [hit is not None and hit[0] == row["answer"] for hit, row in zip(hits, own, strict=True)]
        assert sum(right) / len(right) == pytest.approx(share, abs=0.03)
