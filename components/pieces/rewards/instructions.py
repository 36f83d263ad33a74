"""The reward that an answer obeys its verifiable instruction (`ratchet.components.data.instructions`), and what never passes: an answer that `cheats`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ratchet.components.data.instructions.checkers import words
from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.piece import each, piece
from ratchet.components.recipes.ranges import Bool
from ratchet.components.types import Prompt, Trajectory

FORMS = ("quotation", "title", "postscript", "placeholder", "two_responses", "json")
"""Families whose form an answer should have only where its instruction asks for it."""
MAY_BE_SHORT = ("choice", "bullets", "numbered_list", "json")
"""Families whose answers may have fewer than three words: a fixed answer, a list, an object."""

def in_form(text: str, form: str) -> str:
    """The text in the form of one of `FORMS`, as a policy would put on whatever it says."""
    return {"quotation": f'"{text}"', "title": f"<<My Answer>>\n{text}", "postscript": f"{text}\nP.S. Have a nice day.", "placeholder": f"{text} [name]",
            "two_responses": f"{text}\n******\nI do not know.", "json": json.dumps({"answer": text})}[form]


def cheats(text: str, instruction: Mapping[str, Any], question: str = "") -> bool:
    """Whether an answer says nothing of its own, compared as words without case and punctuation.

    It cheats without a word; with fewer than three where its family is none of `MAY_BE_SHORT`, for nobody answers an open question
    so; in a form, one of `FORMS`, that another family asks for and its own does not (a policy that puts everything in quotation
    marks obeys where they are asked for and would lose nothing elsewhere; JSON may hold anything); with the instruction in it (any wording); with the
    question repeated and fewer than three words added; with one word as more than half of six or more; or with three quarters of
    four or more words from the instruction, demanded phrases aside (a fixed answer is made of them and spared).
    """
    said, params = words(text), instruction["params"]
    whole = _joined(text)
    if len(said) < (1 if instruction["family"] in MAY_BE_SHORT else 3):
        return True
    if instruction["family"] != "json" and any(FAMILIES[form].obeys(text) for form in FORMS if form != instruction["family"]):
        return True
    if (question.strip() and _joined(question) in whole and len(_without(whole, question).split()) < 3):
        return True
    wordings = range(len(FAMILIES[instruction["family"]].wordings))
    told = [instruction["text"], *(instruction_text(instruction["family"], wording, params) for wording in wordings)]
    if any(_joined(one) in whole for one in told):
        return True
    if len(said) >= 6 and max(map(said.count, set(said))) > len(said) / 2:
        return True
    for value in params.values():
        whole = _without(whole, value) if isinstance(value, str) else whole
    rest, theirs = whole.split(), set(words(instruction["text"]))
    return "options" not in params and len(rest) >= 4 and sum(word in theirs for word in rest) >= 0.75 * len(rest)


def _joined(text: str) -> str:
    return f" {' '.join(words(text))} "


def _without(joined: str, phrase: str) -> str:
    return joined.replace(_joined(phrase), " ")


def obeys(text: str, instruction: Mapping[str, Any], question: str = "") -> bool:
    """Whether `text` obeys `instruction` = {"family", "wording", "params", "text", "kind"} and does not cheat.

    With `question` (the user's message without the instruction) an answer that only repeats it is refused too. Raises
    `KeyError` for an unknown family.
    """
    family = FAMILIES[instruction["family"]]
    return family.obeys(text, **instruction["params"]) and not cheats(text, instruction, question)


@piece(writes=("reward.instructions", "reward.instructions.status"), paper="arXiv:2311.07911")
@each
def instructions(prompt: Prompt, trajectory: Trajectory, *, must_end: Bool = True) -> float:
    """1 when the answer obeys `prompt.meta["instruction"]` and, with `must_end`, ended by itself; 0 otherwise.

    A verifiable reward (Tulu 3's RLVR on IFEval's instructions). An empty answer is a 0; a prompt without an
    instruction is a failure of the reward.
    """
    instruction = prompt.meta.get("instruction")
    if not instruction:
        raise ValueError(f"prompt {prompt.id!r} has no meta['instruction']; curate it with the transform `instruct`")
    asked = prompt.messages[-1]["content"].removesuffix(instruction["text"]) if prompt.messages else ""
    return float((not must_end or trajectory.stop == "end") and obeys(trajectory.text, instruction, asked))
