"""Verifiable reward `exact_answer`: compares the final result with the reference."""

from __future__ import annotations

import re
from fractions import Fraction

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory

GROUPED = r"\d{1,3}(?:,\d{3})+"  # with thousands separators
NUMBER = re.compile(rf"(?<![\w./])-?(?:{GROUPED}(?!\d)|\d+)(?:\.\d+)?(?:/\d+)?")
"""A hyphen after a digit is not a minus sign; a comma is a thousands separator or separates numbers: 3-4 ends
in 4, 1,2 in 2.
"""
THOUSANDS = re.compile(rf"-?{GROUPED}(?:\.\d+)?(?:/\d+)?")
HUGE = re.compile(r"e[-+]?[\d_]{4}", re.IGNORECASE)
"""An exponent of four digits or more: the value takes more memory than the text by any factor."""


def final_answer(text: str) -> str:
    r"""The final result of a text: the last \boxed{...}, else the last number, else the whole text,
    stripped. The Unicode minus sign is a hyphen.
    """
    text = text.replace("−", "-")
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed.strip()
    numbers = NUMBER.findall(text)
    return numbers[-1] if numbers else text.strip()


def last_boxed(text: str) -> str | None:
    r"""Content of the last \boxed{...} with balanced braces, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for i in range(begin - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return text[begin:i]
    return None


def _number(text: str) -> Fraction | None:
    text = text.strip().rstrip(".")
    if HUGE.search(text):
        return None
    if THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return None


@piece(writes=("reward.exact_answer", "reward.exact_answer.status"), paper="arXiv:2411.15124", gold=True)
@each
def exact_answer(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the last boxed answer, or else the last number, equals `prompt.answer`, else 0 (Tulu 3, RLVR).
    Numbers are compared by value (1,000 = 1000.0), other text without case and surrounding whitespace. A
    reference with a number and more ("3 km") equals a boxed answer only. A prompt without an answer is a
    failed reward, not 0.
    """
    if prompt.answer is None:
        raise ValueError(f"prompt {prompt.id!r} has no answer to compare with")
    reference = prompt.answer.replace("−", "-")
    boxed = last_boxed(reference)
    answer, known = final_answer(trajectory.text), (reference if boxed is None else boxed).strip()
    numbers = _number(answer), _number(known)
    if None not in numbers:
        return float(numbers[0] == numbers[1])
    return float(answer.casefold() == known.casefold())
