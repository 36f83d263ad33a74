"""Budget forcing, on an engine that writes a script, a character a token."""

from __future__ import annotations

import itertools

import pytest

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Sample

PROMPTS = [Prompt("p", ({"role": "user", "content": "go"},), "A")]
END = 0


class Script:
    """Writes the next text of its script, a token a character ("\0" ends the turn), log-prob -0.5 each, to
    a stop string or the limit; two characters in brackets are one token.
    """

    weights = "w"

    def __init__(self, *texts: str) -> None:
        self.texts, self.asked, self.seeds = list(texts), [], []

    def encode_prompt(self, prompt):
        return [1, 2]

    def encode_text(self, text):
        return [ord(c) for c in text]

    def decode(self, tokens):
        return "".join(PAIRS.get(t, chr(t)) for t in tokens if t > 2)

    def offsets(self, tokens):
        ends = [len(self.decode(tokens[:i])) for i in range(len(tokens) + 1)]
        return list(itertools.pairwise(ends))

    def generate(self, requests):
        return [[self.answer(request) for _ in range(request.count)] for request in requests]

    def answer(self, request):
        self.asked.append(self.decode(request.tokens))
        self.seeds.append(request.seed)
        written, tokens = self.texts.pop(0), []
        stop = "length"
        for c in written[: request.max_tokens]:
            tokens.append(MERGED.get(c, ord(c)))
            if tokens[-1] == END or any(self.decode(tokens).endswith(s) for s in request.stop_strings):
                stop = "end"
                break
        return Sample(tuple(tokens), (-0.5,) * len(tokens), stop)


MERGED = {"@": 900}
PAIRS = {900: ".S"}
"""One token for the end of a sentence and the beginning of the marker "So"."""


def forced(script: Script, **options) -> list[Group]:
    spec = {"name": "budget_forced", "cue": "Oh,", "responses_per_prompt": 1, "max_tokens": 20, **options}
    return build("rollout", spec)(PROMPTS, Context(models={"policy": script}, seed=3, round=1))


def only(groups: list[Group]):
    ((trajectory,),) = (group.trajectories for group in groups)
    return trajectory


def shown(t) -> str:
    """Text with the tokens in brackets that the policy did not sample."""
    return "".join(
        (chr(token) if own else f"[{chr(token)}]") if token != END else "$"
        for token, own in zip(t.inputs["tokens"][2:], t.mask[2:], strict=True)
    )


def test_the_end_marker_is_replaced_by_the_cue_and_the_verdict_follows_the_last() -> None:
    script = Script("x.So", "y.So", "B\0")
    t = only(forced(script, continuations=1))
    assert script.asked == ["", "x.Oh,", "x.Oh,y.So"]
    assert shown(t) == "x.[O][h][,]y.SoB$" and t.text == "x.Oh,y.SoB"
    assert t.mask[:2] == [False, False] and t.stop == "end" and t.actor == "policy" and t.weights == "w"
    assert t.logprobs == [-0.5 if own else 0.0 for own in t.mask]
    assert t.meta["continuations"] == t.meta["forced"] == 1 and t.meta["verdicts"] == ["SoB"]
    assert len(set(script.seeds)) == 3


def test_a_cue_that_the_policy_writes_counts_and_is_its_own() -> None:
    t = only(forced(Script("x.Oh,", "y.So", "B\0"), continuations=1))
    assert shown(t) == "x.Oh,y.SoB$" and t.meta["forced"] == 0


def test_a_policy_that_would_go_on_is_made_to_close() -> None:
    t = only(forced(Script("x.Oh,", "B\0"), continuations=0))
    assert shown(t) == "x.[S][o]B$"


def test_the_end_of_the_turn_and_the_limit_are_ends_too() -> None:
    t = only(forced(Script("x.\0", "abcdefgh", "B\0"), continuations=1, max_tokens=5))
    assert shown(t) == "x.[O][h][,]abcde[S][o]B$"


def test_a_verdict_that_does_not_end_is_cut() -> None:
    t = only(forced(Script("So", "Bxxxx"), continuations=0, verdict_tokens=3))
    assert shown(t) == "SoBxx" and t.stop == "length"


def test_a_token_with_the_beginning_of_a_marker_is_removed_whole() -> None:
    """The token ".S" of "x.So" goes, and with it the full stop."""
    script = Script("x@o", "y.So", "B\0")
    assert only(forced(script, continuations=1)).text == "xOh,y.SoB"


def test_a_marker_earlier_in_the_passage_is_no_end() -> None:
    """The scripted engine does not stop at the first marker here: the limit cuts the second one."""

    class Deaf(Script):
        def answer(self, request):
            from dataclasses import replace

            return super().answer(replace(request, stop_strings=()))

    t = only(forced(Deaf("xSoyS", "z", "B\0"), continuations=1, max_tokens=5))
    assert shown(t) == "xSoyS[O][h][,]z[S][o]B$"


def test_verdicts_after_every_passage_are_not_part_of_the_answer() -> None:
    script = Script("x.So", "A\0", "y.Oh,", "C\0", "z.So", "B\0")
    t = only(forced(script, continuations=2, verdicts=True))
    assert script.asked == ["", "x.So", "x.Oh,", "x.Oh,y.So", "x.Oh,y.Oh,", "x.Oh,y.Oh,z.So"]
    assert t.meta["verdicts"] == ["SoA", "SoC", "SoB"] and t.meta["forced"] == 1
    assert shown(t) == "x.[O][h][,]y.Oh,z.SoB$"


def test_answers_vary_in_their_continuations() -> None:
    script = Script("0.So", "1.So", "2.So", "A\0", "C\0", "3.So", "B\0")
    (group,) = forced(script, continuations=1, vary=True, responses_per_prompt=3)
    assert [t.meta["continuations"] for t in group.trajectories] == [0, 1, 0]
    assert [t.text for t in group.trajectories] == ["0.SoA", "1.Oh,3.SoB", "2.SoC"]


@pytest.mark.parametrize("given", [{"round": 2}, {"seed": 4}])
def test_random_numbers_depend_on_seed_and_round(given: dict) -> None:
    def seeds(seed: int = 3, round: int = 1) -> list[int]:
        script = Script("So", "A")
        build("rollout", {"name": "budget_forced", "continuations": 0, "responses_per_prompt": 1})(
            PROMPTS, Context(models={"policy": script}, seed=seed, round=round)
        )
        return script.seeds

    assert seeds() == seeds() and not set(seeds()) & set(seeds(**given))
