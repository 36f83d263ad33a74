"""Does a solution end in the right number or expression?"""

from __future__ import annotations

import re
from fractions import Fraction

from ratchet.components.piece import each, piece
from ratchet.components.pieces.rewards.exact_answer import last_boxed
from ratchet.components.pieces.rewards.expressions import equal
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Prompt, Trajectory

MARK = re.compile(r"####|\banswer(?: to [^.\n]{1,80}?)?\s*(?:is|was|:|=)\s*:?", re.IGNORECASE)
END = re.compile(r"\n|\.(?=\s|$)")
NUMBER = r"(?<![\w.,/])[-+]?[$€£¥]?[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\s?/\s?\d+)?(?<=\d)(?:\s?%)?"
RUN = re.compile(rf"{NUMBER}(?:(?:\s*[,;]|\s+or|\s+and)?\s+{NUMBER}|[,;]{NUMBER.replace('.,/', '.')})*", re.IGNORECASE)
MATHS = re.compile(r"\$([^$]*[\\^_][^$]*)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
WORDS = {r"\$": "$", r"\%": "%", "−": "-", "{,}": ",", r"\,": "", r"\!": "", r"\left": "", r"\right": "", r"\dfrac": r"\frac", r"\tfrac": r"\frac"}


def plain(text: str) -> str:
    """The text with LaTeX's ways of writing signs replaced by the signs."""
    for written, sign in WORDS.items():
        text = text.replace(written, sign)
    return re.sub(r"\*\*(.+?)\*\*", r"\1", text).strip()


def number(text: str) -> tuple[Fraction, bool] | None:
    """The value of one number, and whether it is a percentage: 1,000, 3.50, $5, 50%, 3/4, \\frac{3}{4}, 72 clips, x = 72. None for anything else."""
    text = re.sub(r"\\(?:text|mathrm)\{([^{}]*)\}", r" \1", plain(text).strip("$ ")).rpartition("=")[2].strip().rstrip(".")
    text = re.sub(r"^([-+]?)\\frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}$", r"\1\2/\3", text)
    match = re.match(NUMBER, text)
    if not match or not re.fullmatch(r"[A-Za-z°\s]*", text[match.end():].removeprefix("/")):
        return None
    value = re.sub(r"[\s,$€£¥%]", "", match[0])
    try:
        return Fraction(value), "%" in match[0]
    except (ValueError, ZeroDivisionError):
        return None


def same(one: tuple[Fraction, bool], other: tuple[Fraction, bool]) -> bool:
    """Numbers are equal; 50% is 50 as well as 0.5."""
    (a, percent), (b, also) = one, other
    return a == b or (percent != also and (a / 100 == b if percent else a == b / 100))


def counted(text: str, numeric: bool) -> str:
    """The part of a solution that counts as its answer: the last \\boxed{...}; else what follows the last `####` or "answer is" up to the end
    of the sentence; else, where the answer is a number (`numeric`), the last number, and otherwise the last formula or line. Where a number is due
    and words surround it, the first one after "answer is" (after the last =) counts. Numbers in a row, as "70, 71 or 72", count together.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    text = plain(text)
    if numeric and number(text):
        return text
    *_, mark = (None, *MARK.finditer(text))
    said = END.split(text[mark.end():].lstrip(" :*\n"))[0].strip() if mark else ""
    if not said:
        mark, said = None, text
    formulas = [next(filter(None, groups)) for groups in MATHS.findall(said)]
    if not numeric:
        return formulas[-1] if formulas else said if mark else said.splitlines()[-1] if said else ""
    if mark and (number(said) or formulas or "\\" in said):
        return said if number(said) or not formulas else formulas[0]
    runs = [match[0] for match in RUN.finditer(said.rpartition("=")[2] if mark else said)]
    if formulas and not mark and said.rstrip(" .").endswith(("$", "\\)", "\\]")):
        return formulas[-1]
    return (runs[0] if mark else runs[-1]).strip() if runs else said


@piece(writes=("reward.math_verify", "reward.math_verify.status"), paper="arXiv:2110.14168", gold=True)
@each
def math_verify(prompt: Prompt, trajectory: Trajectory, *, seconds: Positive = 3.0) -> float:
    """1 when the answer that counts (`counted`) equals `prompt.answer`, else 0. Numbers are compared exactly: 1,000 is 1000, 3.50 is 3.5, 3/4
    is 0.75, 50% is 50 and 0.5; a currency sign or a unit does not matter. A sum that is not worked out (48 + 24) is no number. Expressions are
    compared by the library math-verify within `seconds` of the processor; one that takes longer is wrong. A prompt without an answer is a failure of the
    reward, not a 0.
    """
    if prompt.answer is None or not prompt.answer.strip():
        raise ValueError(f"prompt {prompt.id!r} has no answer to compare with")
    boxed = last_boxed(prompt.answer)
    gold = plain(prompt.answer if boxed is None else boxed)
    known = number(gold)
    answer = plain(counted(trajectory.text, known is not None))
    found = number(answer)
    if known is not None and (found is not None or not re.search(r"\d|\\", answer) or re.search(r"[\d)}]\s*(?:[-+*×÷,;]|\\times|\\cdot|\\div|and\b|or\b)\s*[-\d(\\$]", answer)):
        return float(found is not None and same(known, found))
    return float(answer.casefold() == gold.casefold() or (bool(answer) and equal(gold.strip("$"), answer.strip("$"), seconds)))
