"""Token rewards by a corrector, on one that knows what it would write."""

from __future__ import annotations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.card import card, fillers
from ratchet.components.types import Context, Group, Prompt, Sample, Trajectory

END = 0


class Corrector:
    """Writes `wanted`, a token a character and then the end of the turn, whatever it is given before: its
    likeliest token at place t is that of `wanted` there. Counts its passes.
    """

    weights = "w"

    def __init__(self, wanted: str) -> None:
        self.wanted, self.passes, self.prompts = [*map(ord, wanted), END], 0, []

    def encode_prompt(self, prompt):
        self.prompts.append([(m["role"], m["content"]) for m in prompt.messages])
        return [1, 2, 3]

    def generate(self, requests):
        self.passes += 1
        answers = []
        for request in requests:
            assert request.temperature == 0 and request.max_tokens >= 1
            rest = self.wanted[len(request.tokens) - 3 :][: request.max_tokens]
            rest = rest or [END]
            answers.append([Sample(tuple(rest), (-0.1,) * len(rest), "end")])
        return answers


def answer(text: str, *, ended: bool = True) -> Trajectory:
    own = [*map(ord, text), *([END] if ended else [])]
    return Trajectory(
        ({"role": "assistant", "content": text},),
        {"tokens": [7, 8, *own]},
        [False, False, *[True] * len(own)],
        [0.0] * (2 + len(own)),
    )


def scored(corrector: Corrector, *answers: Trajectory, **options: object) -> dict:
    group = Group(Prompt("p", ({"role": "user", "content": "q"},)), answers)
    spec = {"name": "rewards.correction", "corrector": "c", **options}
    return build("annotate", spec)([group], Context(models={"c": corrector}))


def test_tokens_before_the_first_difference_are_positive_and_later_differences_negative() -> None:
    """ "abXdY" and its end against "abcde": a b are equal, X differs, d agrees again but is past the first
    difference, Y differs, the end agrees: 1 1 -1 0 -1 0, mean 0.
    """
    corrector = Corrector("abcde")
    found = scored(corrector, answer("abXdY"))
    assert found["dense"] == [[[0.0, 0.0, 1.0, 1.0, -1.0, 0.0, -1.0, 0.0]]]
    assert found["reward.correction"] == [[0.0]] and found["reward.correction.status"] == [["ok"]]
    assert corrector.passes == 3, "two differences: three passes, not one a token"
    assert corrector.prompts == [[("user", "q"), ("assistant", "abXdY"), ("user", "Correct it.")]]


def test_later_agreement_may_be_positive() -> None:
    found = scored(Corrector("abcde"), answer("abXdY"), after_divergence="positive", scale=0.5)
    assert found["dense"] == [[[0.0, 0.0, 0.5, 0.5, -0.5, 0.5, -0.5, 0.5]]]
    assert found["reward.correction"] == [[pytest.approx(0.5 * 2 / 6)]]


def test_an_unchanged_answer_is_positive_everywhere_in_one_pass() -> None:
    corrector = Corrector("abc")
    found = scored(corrector, answer("abc"))
    assert found["dense"] == [[[0.0, 0.0, 1.0, 1.0, 1.0, 1.0]]] and found["reward.correction"] == [[1.0]]
    assert corrector.passes == 1


def test_the_end_of_the_turn_is_a_token_like_any_other() -> None:
    """ "ab" ends where the corrector goes on: a b are equal, the end differs. "abc" ends after its limit."""
    found = scored(Corrector("abc"), answer("ab"), answer("abc", ended=False), answer("abcx"))
    assert [row[2:] for row in found["dense"][0]] == [
        [1.0, 1.0, -1.0],
        [1.0, 1.0, 1.0],
        [1.0, 1.0, 1.0, -1.0, 0.0],
    ]


def test_by_length_the_sum_is_the_mean() -> None:
    """Four equal tokens of 1/4, against twelve of 1/12: both sum to 1."""
    found = scored(Corrector("a" * 11), answer("a" * 11), by_length=True)
    assert found["dense"][0][0][2:] == [pytest.approx(1 / 12)] * 12
    assert found["reward.correction"] == [[1.0]]
    mixed = scored(Corrector("abc"), answer("aXc"), by_length=True)
    assert mixed["dense"][0][0][2:] == [0.25, -0.25, 0.0, 0.0] and mixed["reward.correction"] == [[0.0]]


def test_an_answer_without_tokens_is_skipped() -> None:
    found = scored(Corrector("abc"), answer("", ended=False), answer("abc"))
    assert found["reward.correction"] == [[None, 1.0]]
    assert found["reward.correction.status"][0][0].startswith("skipped")


def pair(*texts: str) -> Group:
    return Group(
        Prompt("p", ({"role": "user", "content": "q"},)),
        tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts),
    )


def test_pairs_become_corrections_and_identities() -> None:
    made = build("select", {"name": "corrections"})([pair("good", "bad")], Context())
    asked = [[m["content"] for m in group.prompt.messages] for group in made]
    assert asked == [["q", "bad", "Correct it."], ["q", "good", "Correct it."]]
    assert [[t.text for t in group.trajectories] for group in made] == [["good"], ["good"]]
    assert [m["role"] for m in made[0].prompt.messages] == ["user", "assistant", "user"]
    assert len({group.prompt.id for group in made}) == 2
    (alone,) = build("select", {"name": "corrections", "identity": False})([pair("good", "bad")], Context())
    assert [m["content"] for m in alone.prompt.messages] == asked[0]


def test_groups_that_are_no_pairs_are_refused() -> None:
    with pytest.raises(DataError, match="'p' has 3 answers"):
        build("select", {"name": "corrections"})([pair("a", "b", "c")], Context())


def test_the_share_of_right_digits_and_the_fillers() -> None:
    texts = {
        "a4b7c2d9": (1.0, 0.0),
        "a4b7c2d8 thank you thank you": (0.75, 2.0),
        "a4b7": (0.5, 0.0),
        "a4b7c2d9a4": (0.75, 0.0),  # a twice
        "d9c2b7a4 thank": (1.0, 0.0),
        "4729": (0.0, 0.0),
    }
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    task = Group(Prompt("p", (), "4729"), rows)
    assert card([task], Context())["reward.card"] == [[share for share, _ in texts.values()]]
    assert fillers([task], Context())["reward.fillers"] == [[count for _, count in texts.values()]]
    failed = card([Group(Prompt("p", (), "x"), rows[:1])], Context())
    assert failed["reward.card"] == [[None]] and "four digits" in failed["reward.card.status"][0][0]
