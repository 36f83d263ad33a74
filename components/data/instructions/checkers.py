r"""Checkers of verifiable instructions: one function per convention.

The conventions are those of IFEval (google-research, instruction_following_eval): words are runs of `\w`,
bullets are lines that start with `*` or `-`, an end phrase is compared without case, surrounding whitespace
and quotation marks.
Differences: keywords match whole words only; final punctuation after an end phrase is ignored; no language
detection; sentence and paragraph counts are exact; paragraphs are separated by blank lines; JSON is an object
or a list; a fixed answer contains exactly one option; a format without content (an empty title, bullet or
placeholder) does not count. A sentence ends at a run of . ! ? before whitespace or the end, or at a line end,
except after common abbreviations and initials.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence


def words(text: str) -> list[str]:
    r"""Lower-case words of a text: runs of `\w`, as in IFEval."""
    return re.findall(r"\w+", text.lower())


ABBREVIATION = re.compile(
    r"\b(?:mr|mrs|ms|dr|st|vs|etc|e\.g|i\.e|p\.s|a\.m|p\.m|u\.s|[a-z])\.(?=\s+\S)", re.IGNORECASE
)
BULLET = re.compile(r"^\s*(?:\*(?!\*)|-).*\w.*$", re.MULTILINE)
NUMBERED = re.compile(r"^\s*(\d+)[.)]\s+\S.*$", re.MULTILINE)


def sentences(text: str) -> int:
    """Number of sentences, as defined in the module docstring; parts without a word do not count."""
    text = re.sub(r"\bI\.(?=\s)", "I!", text)
    text = ABBREVIATION.sub(lambda found: found.group().replace(".", ""), text)
    return sum(bool(words(part)) for part in re.split(r"[.!?]+[\"')\]*]*(?=\s|$)|\n", text))


def count(text: str, word: str) -> int:
    """Number of whole-word occurrences of `word`, ignoring case."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def begins(text: str, phrase: str) -> bool:
    found = re.match(rf"{re.escape(phrase)}(?!\w)", text.strip(), re.IGNORECASE)
    return found is not None and bool(words(text.strip()[found.end() :]))


def ends(text: str, phrase: str) -> bool:
    answer, wanted = (s.strip().strip('"').rstrip('.!? "').lower() for s in (text, phrase))
    return re.search(rf"(?<!\w){re.escape(wanted)}$", answer) is not None and len(words(answer)) > len(
        words(wanted)
    )


def last_mark(text: str) -> str:
    return text.strip().rstrip("\"*)' ")[-1:]


def quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def has_title(text: str) -> bool:
    titles = [words(title) for title in re.findall(r"<<([^\n]+?)>>", text)]
    rest = words(re.sub(r"<<[^\n]+?>>", "", text))
    return bool(rest) and any(title not in ([], ["title"], ["your", "title"]) for title in titles)


def highlighted(text: str) -> bool:
    phrases = re.findall(r"\*{1,2}([^\n*]+)\*{1,2}", text)
    return any(
        words(p) and words(p) not in (["phrase"], ["like", "this"]) and p == p.strip() for p in phrases
    )


def has_postscript(text: str) -> bool:
    found = re.search(r"(?<![\w.])p\.\s?s\.(.*)\Z", text, re.IGNORECASE | re.DOTALL)
    return found is not None and bool(words(found.group(1))) and bool(words(text[: found.start()]))


def has_placeholder(text: str) -> bool:
    marks = re.findall(r"\[([^\[\]\n]*)\]", text)
    return any(words(m) for m in marks) and bool(words(re.sub(r"\[[^\[\]\n]*\]", "", text)))


def two_responses(text: str) -> bool:
    parts = [words(part) for part in text.split("******")]
    while parts and not parts[0]:
        parts = parts[1:]
    while parts and not parts[-1]:
        parts = parts[:-1]
    return len(parts) == 2 and parts[0] != parts[1]


def is_json(text: str) -> bool:
    return bool(words_in_json(text))


def words_in_json(text: str) -> list[str]:
    """The words in the values of a JSON object or array, the names of an object's own values left out; [] for
    other text.
    """
    text = re.sub(r"^```(?:json)?|```$", "", text.strip(), flags=re.IGNORECASE).strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return []
    values = list(value.values()) if isinstance(value, dict) else value
    return words(json.dumps(values, ensure_ascii=False)) if isinstance(values, list) else []


def paragraphs(text: str, n: int) -> bool:
    return sum(bool(words(part)) for part in re.split(r"\n\s*\n", text)) == n


def one_option(text: str, options: Sequence[str]) -> bool:
    answer = " ".join(words(text))
    return sum(f" {' '.join(words(option))} " in f" {answer} " for option in options) == 1


def begins_with_letter(text: str, letter: str) -> bool:
    spoken = words(text)
    return bool(spoken) and spoken[0].startswith(letter.lower())


def numbered(text: str, n: int) -> bool:
    return [int(number) for number in NUMBERED.findall(text)] == list(range(1, n + 1))
