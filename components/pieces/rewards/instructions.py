"""Verifiable reward for instruction following (`ratchet.components.data.instructions`), with checks against
degenerate answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ratchet.components.data.instructions.checkers import words, words_in_json
from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.piece import each, piece
from ratchet.components.recipes.ranges import Bool
from ratchet.components.types import Prompt, Trajectory

FORMS = ("quotation", "title", "postscript", "placeholder", "two_responses", "json")
"""Instruction families whose format is a reward hack unless the instruction requires it."""
MAY_BE_SHORT = ("choice", "bullets", "numbered_list", "json")
"""Instruction families whose answers may have fewer than three words."""
USED = ("include_word", "include_two_words", "keyword_frequency", "letter_frequency")
"""Instruction families that demand the use of a word or letter; in quotation marks it is mentioned, not
used.
"""


def in_form(text: str, form: str) -> str:
    """The text wrapped in the format of one of `FORMS`."""
    return {
        "quotation": f'"{text}"',
        "title": f"<<My Answer>>\n{text}",
        "postscript": f"{text}\nP.S. Have a nice day.",
        "placeholder": f"{text} [name]",
        "two_responses": f"{text}\n******\nI do not know.",
        "json": json.dumps({"answer": text}),
    }[form]


def cheats(text: str, instruction: Mapping[str, Any], question: str = "") -> bool:
    """Whether an answer is degenerate: it satisfies the instruction without content of its own. Words are
    compared without case and punctuation.

    True for an answer without words; with fewer than three words, unless the family is in `MAY_BE_SHORT`; in
    a format of `FORMS` that belongs to another family (a policy that quotes everything would otherwise lose
    nothing; JSON may contain anything); containing the instruction in any wording; repeating the question
    with fewer than three added words; of a demanded phrase, word or letter and nothing else, however often;
    with a demanded word or letter that stands alone in quotation marks ('The word "family" is a noun.'
    mentions it, families `USED`); with one word as more than half of six or more words; with three quarters
    of four or more words from the instruction, required phrases aside (fixed answers are exempt); or JSON
    whose values have no word but the instruction's ('{"type": "json"}').
    """
    own_words, params = words(text), instruction["params"]
    whole = _joined(text)
    if len(own_words) < (1 if instruction["family"] in MAY_BE_SHORT else 3):
        return True
    if instruction["family"] != "json" and any(
        FAMILIES[form].obeys(text) for form in FORMS if form != instruction["family"]
    ):
        return True
    if question.strip() and _joined(question) in whole and len(_bare(whole, question)) < 3:
        return True
    demanded = [value for value in params.values() if isinstance(value, str)]
    if demanded and not _bare(whole, *demanded):
        return True
    wordings = range(len(FAMILIES[instruction["family"]].wordings))
    wordings_of_instruction = [
        instruction["text"],
        *(instruction_text(instruction["family"], wording, params) for wording in wordings),
    ]
    if any(_joined(one) in whole for one in wordings_of_instruction):
        return True
    used = _unquoted(text, params.values()) if instruction["family"] in USED else text
    if used != text and not FAMILIES[instruction["family"]].obeys(used, **params):
        return True
    if len(own_words) >= 6 and max(map(own_words.count, set(own_words))) > len(own_words) / 2:
        return True
    for value in demanded:
        whole = _without(whole, value)
    rest, theirs = whole.split(), set(words(instruction["text"]))
    if instruction["family"] == "json" and set(words_in_json(text)) <= theirs:
        return True
    return (
        "options" not in params
        and len(rest) >= 4
        and sum(word in theirs for word in rest) >= 0.75 * len(rest)
    )


def _unquoted(text: str, demanded: Iterable[Any]) -> str:
    """The text without demanded words that stand alone in quotation marks."""
    for word in demanded:
        text = (
            re.sub(rf"""["'“”‘’«»`]+{re.escape(word)}[.,!?;:]?["'“”‘’«»`]+""", " ", text, flags=re.IGNORECASE)
            if isinstance(word, str)
            else text
        )
    return text


def _joined(text: str) -> str:
    return f" {' '.join(words(text))} "


def _without(joined: str, phrase: str) -> str:
    return joined.replace(_joined(phrase), " ")


def _bare(joined: str, *phrases: str) -> list[str]:
    """The words without any of the phrases. Neighbours share a space, which the first takes with it."""
    for phrase in phrases:
        while _joined(phrase) in joined:
            joined = _without(joined, phrase)
    return joined.split()


def obeys(text: str, instruction: Mapping[str, Any], question: str = "") -> bool:
    """Whether `text` satisfies `instruction` = {"family", "wording", "params", "text", "kind"} and is not
    degenerate.

    `question`: the user's message without the instruction, to detect answers that only repeat it. `KeyError`
    for an unknown family.
    """
    family = FAMILIES[instruction["family"]]
    return family.obeys(text, **instruction["params"]) and not cheats(text, instruction, question)


@piece(writes=("reward.instructions", "reward.instructions.status"), paper="arXiv:2311.07911")
@each
def instructions(prompt: Prompt, trajectory: Trajectory, *, must_end: Bool = True) -> float:
    """1 if the answer satisfies `prompt.meta["instruction"]` and, with `must_end`, ended with an end-of-turn
    token; else 0.

    A verifiable reward (RLVR on IFEval's instructions, Tulu 3). An empty answer scores 0; a prompt without an
    instruction is a failed reward.
    """
    instruction = prompt.meta.get("instruction")
    if not instruction:
        raise ValueError(
            f"prompt {prompt.id!r} has no meta['instruction']; curate it with the transform `instruct`"
        )
    question = prompt.messages[-1]["content"].removesuffix(instruction["text"]) if prompt.messages else ""
    return float((not must_end or trajectory.stop == "end") and obeys(trajectory.text, instruction, question))
