"""Measures of answers against hand-computed numbers."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np

from ratchet.components.evaluation.copying import copied
from ratchet.components.evaluation.quality import quality, quality_against, slices, tag
from ratchet.components.piece import build, catalogue
from ratchet.components.pieces.measures.copying import copying
from ratchet.components.pieces.measures.ending import ending
from ratchet.components.pieces.measures.fluency import fluency
from ratchet.components.pieces.measures.relevance import relevance
from ratchet.components.pieces.measures.repetition import repetition
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(question: str, *answers: str, stop: str = "end", **meta: object) -> Group:
    rows = tuple(Trajectory(({"role": "assistant", "content": text},), stop=stop) for text in answers)  # type: ignore[arg-type]
    return Group(Prompt(question, ({"role": "user", "content": question},), meta=meta), rows)


def test_ending_is_1_for_an_answer_that_ends_by_itself() -> None:
    assert ending([group("q", "a", "b"), group("r", "c", stop="length")], Context()) == [[1.0, 1.0], [0.0]]


def test_repetition_is_the_share_of_words_used_before() -> None:
    assert repetition([group("q", "a b a b", "a b c", "")], Context()) == [[0.5, 0.0, 0.0]]


def test_relevance_is_the_cosine_with_the_own_question_less_the_mean_with_the_others() -> None:
    table = {
        "rice?": [1.0, 0.0],
        "cars?": [0.0, 1.0],
        "I like rice": [1.0, 0.0],
        "hm": [math.sqrt(0.5)] * 2,
        "-": [0.0, 0.0],
    }

    def encoder(texts: list[str]) -> np.ndarray:
        return np.array([table[text] for text in texts])

    found = relevance(
        [group("rice?", "I like rice", "hm"), group("cars?", "I like rice", " ")],
        Context(models={"encoder": encoder}),
    )
    assert np.allclose(found, [[1.0, 0.0], [-1.0, 0.0]])


def test_a_copy_is_five_items_in_a_row_that_the_source_has_too() -> None:
    assert copied("abcdeXfgh", "..abcde.fgh") == [True] * 5 + [False] * 4
    assert copied("abcd", "abcd") == [False] * 4, "four are a demanded phrase"


ECHO = "What do you like to eat? Do not use any commas in your answer."


def test_copying_is_the_share_of_words_in_runs_from_the_prompt() -> None:
    assert copying([group(ECHO, "Do not use any commas. I eat rice.", "I eat rice.", "")], Context()) == [
        [5 / 10, 0.0, 0.0]
    ]
    choice = "Choose one of these answers: I have no idea at all. It depends."
    options = {"text": "", "params": {"options": ["I have no idea at all.", "It depends."]}}
    assert copying([group(choice, "I have no idea at all.", instruction=options)], Context()) == [[0.0]], (
        "what is demanded is no copy"
    )


def test_relevance_ignores_copied_text_and_the_instruction() -> None:
    seen: list[str] = []

    def encoder(texts: list[str]) -> np.ndarray:
        seen.extend(texts)
        return np.ones((len(texts), 2))

    found = relevance(
        [
            group(
                ECHO,
                "What do you like to eat? Rice.",
                "What do you like to eat?",
                instruction={"text": "Do not use any commas in your answer."},
            ),
            group("cars?", "x"),
        ],
        Context(models={"encoder": encoder}),
    )
    assert seen == ["What do you like to eat?", "cars?", "Rice.", "-", "x"] and found[0][1] == 0.0


def test_fluency_leaves_out_tokens_that_the_prompt_has_in_a_row() -> None:
    from ratchet.components.pieces.measures.fluency import own_logprobs

    mask = [False] * 5 + [True] * 7
    echoed = Trajectory((), {"tokens": [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 8, 9]}, mask)
    assert own_logprobs(echoed, [0.0] * 5 + [-0.1] * 5 + [-1.0, -2.0]) == [-1.0, -2.0]
    whole = Trajectory((), {"tokens": [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]}, mask[:10])
    assert own_logprobs(whole, [0.0] * 5 + [-0.1] * 5) == [-0.1] * 5, "nothing else"


def test_fluency_is_the_mean_log_prob_of_the_answer_under_the_base_model() -> None:
    def encode(one: Group) -> Group:
        return one.replace(
            [Trajectory(t.messages, {"tokens": [1, 2, 3]}, [False, True, True]) for t in one.trajectories]
        )

    base = SimpleNamespace(
        encode=encode,
        score=lambda groups, outputs: [
            {"logprobs": [[0.0, -1.0, -2.0]] * len(g.trajectories)} for g in groups
        ],
    )
    assert fluency([group("q", "x", "y")], Context(models={"base": base})) == [[-1.5, -1.5]]


def test_personal_data_marks_the_answers_that_give_some() -> None:
    found = build("measure", {"name": "personal_data"})(
        [group("q", "Write to jane.doe@mail.com.", "I like tea.")], Context()
    )
    assert found == [[1.0, 0.0]]


def test_every_measure_is_found_by_its_file() -> None:
    assert {"copying", "ending", "fluency", "personal_data", "relevance", "repetition"} <= set(
        catalogue("measure")
    )


def test_quality_is_a_mean_an_arm_and_a_paired_difference() -> None:
    measured = {"policy": {"x": [[1.0, 1.0], [3.0, 3.0]]}, "base": {"x": [[0.0, 0.0], [2.0, 2.0]]}}
    assert quality(measured)["x"]["policy"]["mean"] == 2.0
    gap = quality_against(measured, "policy", "base")["x"]
    assert (gap["mean"], gap["low"], gap["high"]) == (1.0, 1.0, 1.0), "every prompt gained as much"


def test_slices_are_means_by_a_dotted_name_in_the_prompts_meta() -> None:
    groups = [
        group(name, "a", instruction={"kind": kind})
        for name, kind in (("p", "seen"), ("q", "new"), ("r", "seen"))
    ] + [group("s", "a")]
    found = slices(groups, {"final": [[1.0], [0.0], [0.0], [1.0]]}, ["instruction.kind"])["instruction.kind"]
    assert {kind: row["final"]["mean"] for kind, row in found.items()} == {"seen": 0.5, "new": 0.0}
    assert found["seen"]["final"]["n"] == 2 and tag(groups[3], "instruction.kind") is None


def test_distinct_pairs_interval_contains_one_for_two_draws_of_one_language() -> None:
    from ratchet.components.evaluation.diversity import distinct_n_interval

    rng = np.random.default_rng(0)
    one, other = ([[" ".join(rng.choice(list("abcdefgh"), 6))] for _ in range(60)] for _ in range(2))
    found = distinct_n_interval(one, other, 2)
    assert found["low"] < 1 < found["high"] and found["n"] == 60
    poor = distinct_n_interval([["a b a b"]] * 60, other, 2)
    assert poor["high"] < 1
