"""Verifiable reward `math_verify`: final number or expression of a solution against the reference."""

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
NUMBER = (
    r"(?<![\w.,/])[-+]?[$€£¥]?[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|(?<=\d)\s?/\s?\d+)?(?<=\d)(?:\s?%)?"
)
RUN = re.compile(
    rf"{NUMBER}(?:(?:\s*[,;]|\s+or|\s+and)?\s+{NUMBER}|[,;]{NUMBER.replace('.,/', '.')})*", re.IGNORECASE
)
MATHS = re.compile(r"\$([^$]*[\\^_][^$]*)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
SINGLE = re.compile(r"\$([-+]?[\d.,/]*\d)\$|\\\(([-+]?[\d.,/]*\d)\\\)")
"""A number between the delimiters of a formula, which would hide that "$70$ or $72$" is an enumeration."""
SEVERAL = re.compile(r"[,;](?!\d{3}\b)|\bor\b|\band\b", re.IGNORECASE)
"""What separates values before an = sign: x = 70 or x = 72 is no number."""
WORDS = {
    r"\$": "$",
    r"\%": "%",
    "−": "-",
    "{,}": ",",
    r"\,": "",
    r"\!": "",
    r"\left": "",
    r"\right": "",
    r"\dfrac": r"\frac",
    r"\tfrac": r"\frac",
}


def plain(text: str) -> str:
    """The text with LaTeX notation of symbols replaced by the symbols."""
    for written, sign in WORDS.items():
        text = text.replace(written, sign)
    return re.sub(r"\*\*(.+?)\*\*", r"\1", text).strip()


def number(text: str) -> tuple[Fraction, bool] | None:
    r"""Value of a single number, and whether it is a percentage: 1,000, 3.50, $5, 50%, 3/4, \frac{3}{4}, 72
    clips, x = 72. None for anything else, several values among it.
    """
    text = re.sub(r"\\(?:text|mathrm)\{([^{}]*)\}", r" \1", plain(text).strip("$ "))
    before, _, text = text.rpartition("=")
    if SEVERAL.search(before):
        return None
    text = text.strip().rstrip(".")
    text = re.sub(r"^([-+]?)\\frac\s*\{\s*(-?\d+)\s*\}\s*\{\s*(\d+)\s*\}$", r"\1\2/\3", text)
    match = re.match(NUMBER, text)
    if not match or not re.fullmatch(r"[A-Za-z°\s]*", text[match.end() :].removeprefix("/")):
        return None
    value = re.sub(r"[\s,$€£¥%]", "", match[0])
    try:
        return Fraction(value), "%" in match[0]
    except (ValueError, ZeroDivisionError):
        return None


def same(one: tuple[Fraction, bool], other: tuple[Fraction, bool]) -> bool:
    """Whether two numbers are equal; 50% equals both 50 and 0.5."""
    (a, percent), (b, also) = one, other
    return a == b or (percent != also and (a / 100 == b if percent else a == b / 100))


def final_part(text: str, numeric: bool) -> str:
    r"""The part of a solution taken as its answer: the last \boxed{...}; else the rest of the sentence after
    the last `####` or "answer is"; else the last number (if `numeric`) or the last formula or line. If a
    number is expected within words, the first after "answer is" (after the last =) is taken. Enumerations
    such as "70, 71 or 72" are taken whole.
    """
    boxed = last_boxed(text)
    if boxed is not None:
        return boxed
    text = SINGLE.sub(lambda found: found[1] or found[2], plain(text))
    if numeric and number(text):
        return text
    *_, mark = (None, *MARK.finditer(text))
    sentence = END.split(text[mark.end() :].lstrip(" :*\n"))[0].strip() if mark else ""
    if not sentence:
        mark, sentence = None, text
    formulas = [next(filter(None, groups)) for groups in MATHS.findall(sentence)]
    if not numeric:
        return (
            formulas[-1] if formulas else sentence if mark else sentence.splitlines()[-1] if sentence else ""
        )
    if mark and (number(sentence) or formulas or "\\" in sentence):
        return sentence if number(sentence) or not formulas else formulas[0]
    runs = [match[0] for match in RUN.finditer(sentence.rpartition("=")[2] if mark else sentence)]
    if formulas and not mark and sentence.rstrip(" .").endswith(("$", "\\)", "\\]")):
        return formulas[-1]
    return (runs[0] if mark else runs[-1]).strip() if runs else sentence


@piece(writes=("reward.math_verify", "reward.math_verify.status"), paper="arXiv:2110.14168", gold=True)
@each
def math_verify(prompt: Prompt, trajectory: Trajectory, *, seconds: Positive = 3.0) -> float:
    """1 if the final part of the answer equals `prompt.answer`, else 0. Numbers are compared exactly: 1,000
    is 1000, 3.50 is 3.5, 3/4 is 0.75, 50% is 50 and 0.5; currency signs and units are ignored. Unevaluated
    sums (48 + 24) are not numbers. Expressions are compared by math-verify within `seconds` of CPU time, else
    they count as wrong. A prompt without an answer is a failed reward, not 0.
    """
    if prompt.answer is None or not prompt.answer.strip():
        raise ValueError(f"prompt {prompt.id!r} has no answer to compare with")
    boxed = last_boxed(prompt.answer)
    gold = plain(prompt.answer if boxed is None else boxed)
    known = number(gold)
    answer = plain(final_part(trajectory.text, known is not None))
    found = number(answer)
    if known is not None and (
        found is not None
        or not re.search(r"\d|\\", answer)
        or re.search(r"[\d)}]\s*(?:[-+*×÷,;]|\\times|\\cdot|\\div|and\b|or\b)\s*[-\d(\\$]", answer)
    ):
        return float(found is not None and same(known, found))
    return float(
        answer.casefold() == gold.casefold()
        # math-verify takes any of several formulas as the answer, so the delimiters between them are left out
        or (bool(answer) and equal(gold.replace("$", ""), answer.replace("$", ""), seconds))
    )
