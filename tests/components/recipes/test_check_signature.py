"""The function of a piece takes what a run passes to it: checked before the run, without importing it."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.components import piece
from ratchet.components.errors import RecipeError
from ratchet.components.piece import SLOTS, catalogue, describe
from ratchet.components.recipes.check_signature import check_signature

LIFTED = '@piece(writes=("reward.mine", "reward.mine.status"))\n@each\n'
PLAIN = '@piece(writes=("reward.mine", "reward.mine.status"))\n'


def checked(monkeypatch: pytest.MonkeyPatch, root: Path, slot: str, source: str) -> None:
    for folder in SLOTS[slot]:
        (root / "pieces" / folder).mkdir(parents=True, exist_ok=True)
    (root / "pieces" / SLOTS[slot][0] / "mine.py").write_text(source)
    monkeypatch.setattr(piece, "ROOT", root)
    name = next(iter(catalogue(slot)))
    check_signature(describe(slot, name), "here")


@pytest.mark.parametrize(
    "source",
    [
        LIFTED + "def mine(prompt, trajectory, *, words=3): ...",
        LIFTED + "def mine(p, t, seen=()): ...",
        LIFTED + "def mine(*given): ...",
        PLAIN + "def mine(groups, ctx): ...",
        PLAIN + "class Mine:\n    def __call__(self, groups, ctx): ...",
        PLAIN + "class Mine(Base): ...",
    ],
)
def test_signatures_that_fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str) -> None:
    checked(monkeypatch, tmp_path, "annotate", source)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (LIFTED + "def mine(answer): ...", "takes answer"),
        (LIFTED + "def mine(prompt, trajectory, answer): ...", "takes prompt, trajectory, answer"),
        (LIFTED + "def mine(prompts, **columns): ...", "takes prompts"),
        (PLAIN + "def mine(completions, **columns): ...", "takes completions"),
        (PLAIN + "def mine(prompt, trajectory): ...", "@each"),
        (PLAIN + "class Mine:\n    def __call__(self, groups): ...", "takes groups"),
    ],
)
def test_a_reward_with_another_signature_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, source: str, says: str
) -> None:
    """TRL's signature, say: each answer would be a failed reward, after they were sampled."""
    with pytest.raises(RecipeError, match=r"here: '.*mine' is called with .*correct the function") as error:
        checked(monkeypatch, tmp_path, "annotate", source)
    assert says in str(error.value)


def test_an_objective_with_another_signature_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError, match=r"is called with out, batch, but mine.py takes batch"):
        checked(monkeypatch, tmp_path, "objective", '@piece(outputs=("logprobs",))\ndef mine(batch): ...')


def test_every_piece_has_the_signature_of_its_slot() -> None:
    for slot in SLOTS:
        for description in catalogue(slot).values():
            check_signature(description, slot)
