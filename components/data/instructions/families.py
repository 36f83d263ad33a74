"""Families of verifiable instructions (IFEval): wordings, parameter sampling, and checkers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ratchet.components.data.instructions.checkers import (
    BULLET,
    begins,
    begins_with_letter,
    count,
    ends,
    has_placeholder,
    has_postscript,
    has_title,
    highlighted,
    is_json,
    last_mark,
    numbered,
    one_option,
    paragraphs,
    quoted,
    sentences,
    two_responses,
    words,
)

Params = dict[str, Any]
Draw = Callable[[random.Random, str], Params]


@dataclass(frozen=True)
class Family:
    """One kind of instruction. `ifeval`: its IFEval id ("" if none). The last `held_out_wordings` templates,
    and whole families with `held_out`, are for evaluation only. `draw(rng, question)` samples
    JSON-serialisable parameters of template and checker; `obeys(text, **params)` checks an answer.
    """

    name: str
    ifeval: str
    wordings: tuple[str, ...]
    draw: Draw
    obeys: Callable[..., bool]
    held_out: bool = False
    held_out_wordings: int = 2

    @property
    def seen_wordings(self) -> range:
        """Wordings used in training."""
        return range(len(self.wordings) - self.held_out_wordings)

    @property
    def new_wordings(self) -> range:
        """Wordings held out for evaluation."""
        return range(len(self.wordings) - self.held_out_wordings, len(self.wordings))


WORDS = (
    "because",
    "friend",
    "music",
    "today",
    "family",
    "happy",
    "world",
    "always",
    "really",
    "maybe",
    "people",
    "home",
    "learn",
    "interesting",
    "enjoy",
    "favorite",
    "sometimes",
    "different",
)
BEGINNINGS = (
    "Well",
    "Honestly",
    "To be honest",
    "In my opinion",
    "I think",
    "Good question",
    "Sure",
    "Let me think",
)
ENDINGS = (
    "That is my answer.",
    "Have a nice day.",
    "I hope that helps.",
    "Thanks for asking.",
    "That is what I think.",
    "Talk to you soon.",
)
LETTERS = {"b": 3, "k": 2, "v": 3, "w": 4, "x": 1, "j": 1, "z": 1, "q": 1}
AUXILIARY = re.compile(
    r"(?:am|is|are|was|were|do|does|did|have|has|had|can|could|will|would|should|shall|may|might|won't)(?:n'?t)?\b",
    re.IGNORECASE,
)
YES_NO = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
OPEN = ("It depends.", "I have no idea.", "I would rather not say.")


def _one(name: str, values: Sequence[Any]) -> Draw:
    return lambda rng, question: {name: rng.choice(values)}


def _fresh(rng: random.Random, question: str, number: int) -> list[str]:
    """Keywords that do not occur in the question."""
    return rng.sample([w for w in WORDS if w not in words(question)], number)


def _letter(rng: random.Random, question: str) -> Params:
    letter = rng.choice(sorted(LETTERS))
    return {"letter": letter, "n": LETTERS[letter]}


def _between(rng: random.Random, question: str) -> Params:
    low = rng.randint(6, 12)
    return {"low": low, "high": low + 5}


def _options(rng: random.Random, question: str) -> Params:
    closed = AUXILIARY.match(question.strip()) and "or" not in words(question)
    return {"options": list(YES_NO if closed else OPEN)}


def _nothing(rng: random.Random, question: str) -> Params:
    return {}


_TABLE = (
    Family(
        "at_most_words",
        "length_constraints:number_words",
        (
            "Answer in at most {n} words.",
            "Use no more than {n} words.",
            "Keep your answer to {n} words or fewer.",
            "Your answer must not be longer than {n} words.",
            "Limit yourself to {n} words.",
            "Say it in {n} words or less.",
        ),
        _one("n", range(6, 13)),
        lambda text, n: len(words(text)) <= n,
    ),
    Family(
        "at_least_words",
        "length_constraints:number_words",
        (
            "Answer in at least {n} words.",
            "Use at least {n} words.",
            "Your answer must have {n} words or more.",
            "Write no fewer than {n} words.",
            "Make your answer {n} words long or longer.",
            "Do not use fewer than {n} words.",
        ),
        _one("n", range(18, 27)),
        lambda text, n: len(words(text)) >= n,
    ),
    Family(
        "exactly_sentences",
        "length_constraints:number_sentences",
        (
            "Answer in exactly {n} sentence{s}.",
            "Your answer must be exactly {n} sentence{s} long.",
            "Write exactly {n} sentence{s}.",
            "Use exactly {n} sentence{s}, no more and no less.",
            "Respond with {n} sentence{s} exactly.",
            "The number of sentences in your answer must be {n}.",
        ),
        _one("n", (1, 2, 3)),
        lambda text, n: sentences(text) == n,
    ),
    Family(
        "at_most_sentences",
        "length_constraints:number_sentences",
        (
            "Answer in at most {n} sentence{s}.",
            "Use no more than {n} sentence{s}.",
            "Keep your answer to {n} sentence{s} at most.",
            "Your answer must not have more than {n} sentence{s}.",
            "Limit your answer to {n} sentence{s}.",
            "Do not exceed {n} sentence{s}.",
        ),
        _one("n", (1, 2)),
        lambda text, n: sentences(text) <= n,
    ),
    Family(
        "quotation",
        "startend:quotation",
        (
            "Wrap your entire answer in double quotation marks.",
            "Put your whole answer inside double quotation marks.",
            "Your entire answer must be in double quotes.",
            "Start and end your answer with a double quotation mark.",
            "Enclose everything you say in double quotation marks.",
            "Surround the whole response with double quotes.",
        ),
        _nothing,
        quoted,
    ),
    Family(
        "bullets",
        "detectable_format:number_bullet_lists",
        (
            "Answer with exactly {n} bullet points.",
            "Your answer must contain exactly {n} bullet points, each on a line that starts with *.",
            "Use exactly {n} bullet points, one on each line.",
            "Write your answer as a list of exactly {n} bullet points.",
            "Give {n} bullet points, no more and no less.",
            "Format your answer as {n} short markdown bullets.",
        ),
        _one("n", (2, 3)),
        lambda text, n: len(BULLET.findall(text)) == n,
    ),
    Family(
        "no_comma",
        "punctuation:no_comma",
        (
            "Do not use any commas.",
            "Answer without commas.",
            "Your answer must not contain a comma.",
            "Avoid commas in your answer.",
            "Write your answer without a single comma.",
            "No commas are allowed in your answer.",
        ),
        _nothing,
        lambda text: "," not in text,
    ),
    Family(
        "lower_case",
        "change_case:english_lowercase",
        (
            "Answer in all lowercase letters.",
            "Use only lowercase letters.",
            "Your answer must be in lower case, without capital letters.",
            "Do not use any capital letters.",
            "Write everything in lower case.",
            "No capital letters are allowed in your answer.",
        ),
        _nothing,
        str.islower,
        held_out=True,
    ),  # SmolLM2-135M-Instruct never obeys it, of 96 tries
    Family(
        "all_capitals",
        "change_case:english_capital",
        (
            "Answer in all capital letters.",
            "Use only capital letters.",
            "Your answer must be in upper case, without lowercase letters.",
            "Do not use any lowercase letters.",
            "Write everything in upper case.",
            "No lowercase letters are allowed in your answer.",
        ),
        _nothing,
        str.isupper,
        held_out=True,
    ),
    Family(
        "begin_with",
        "",
        (
            'Begin your answer with "{phrase}".',
            'Start your answer with "{phrase}".',
            'Your answer must begin with "{phrase}".',
            'The first thing you say must be "{phrase}".',
            'Open your answer with "{phrase}".',
            'Let your answer start with "{phrase}".',
        ),
        _one("phrase", BEGINNINGS),
        begins,
    ),
    Family(
        "begin_letter",
        "",
        (
            'Begin your answer with the letter "{letter}".',
            'The first letter of your answer must be "{letter}".',
            'Start with a word that begins with "{letter}".',
            'Your first word must start with the letter "{letter}".',
        ),
        _one("letter", tuple("ABHMSTWY")),
        begins_with_letter,
        held_out=True,
    ),
    Family(
        "end_with",
        "startend:end_checker",
        (
            'End your answer with "{phrase}"',
            'Finish your answer with the words "{phrase}"',
            'Your answer must end with "{phrase}"',
            'The last words of your answer must be "{phrase}"',
            'Close your answer with "{phrase}"',
            'Let your last sentence be "{phrase}"',
        ),
        _one("phrase", ENDINGS),
        ends,
    ),
    Family(
        "end_question",
        "",
        (
            "End your answer with a question.",
            "Finish by asking a question.",
            "Your answer must end with a question mark.",
            "The last sentence of your answer must be a question.",
            "Close with a question of your own.",
            "Ask me something at the end.",
        ),
        _nothing,
        lambda text: last_mark(text) == "?",
    ),
    Family(
        "end_exclamation",
        "",
        (
            "End your answer with an exclamation mark.",
            "Finish your answer with an exclamation mark.",
            "Your answer must end with an exclamation mark.",
            "The last character of your answer must be an exclamation mark.",
        ),
        _nothing,
        lambda text: last_mark(text) == "!",
        held_out=True,
    ),
    Family(
        "include_word",
        "keywords:existence",
        (
            'Include the word "{word}" in your answer.',
            'Use the word "{word}".',
            'Your answer must contain the word "{word}".',
            'Make sure to use the word "{word}" somewhere.',
            'The word "{word}" must appear in your answer.',
            'Work the word "{word}" into your answer.',
        ),
        lambda rng, question: {"word": _fresh(rng, question, 1)[0]},
        lambda text, word: count(text, word) >= 1,
    ),
    Family(
        "include_two_words",
        "keywords:existence",
        (
            'Include the words "{one}" and "{two}" in your answer.',
            'Use both the word "{one}" and the word "{two}".',
            'Your answer must contain the words "{one}" and "{two}".',
            'Make sure to use the words "{one}" and "{two}".',
            'The words "{one}" and "{two}" must both appear in your answer.',
            'Work "{one}" and "{two}" into your answer.',
        ),
        lambda rng, question: dict(zip(("one", "two"), _fresh(rng, question, 2), strict=True)),
        lambda text, one, two: count(text, one) >= 1 and count(text, two) >= 1,
    ),
    Family(
        "keyword_frequency",
        "keywords:frequency",
        (
            'Use the word "{word}" at least {n} times.',
            'The word "{word}" must appear at least {n} times in your answer.',
            'Your answer must contain the word "{word}" {n} or more times.',
            'Say the word "{word}" at least {n} times.',
        ),
        lambda rng, question: {"word": _fresh(rng, question, 1)[0], "n": 2},
        lambda text, word, n: count(text, word) >= n,
        held_out=True,
    ),
    Family(
        "exclude_word",
        "keywords:forbidden_words",
        (
            'Do not use the word "{word}".',
            'Answer without the word "{word}".',
            'Your answer must not contain the word "{word}".',
            'Avoid the word "{word}".',
            'The word "{word}" is not allowed in your answer.',
            'Never say the word "{word}".',
        ),
        _one("word", ("I", "the", "and", "to", "you", "a")),
        lambda text, word: count(text, word) == 0,
    ),
    Family(
        "letter_frequency",
        "keywords:letter_frequency",
        (
            'The letter "{letter}" must appear at least {n} time{s} in your answer.',
            'Use the letter "{letter}" at least {n} time{s}.',
            'Your answer must contain the letter "{letter}" {n} or more times.',
            'Include the letter "{letter}" at least {n} time{s}.',
            'Make sure that the letter "{letter}" occurs {n} time{s} or more.',
            'Write an answer that has the letter "{letter}" at least {n} time{s}.',
        ),
        _letter,
        lambda text, letter, n: text.lower().count(letter) >= n,
    ),
    Family(
        "include_number",
        "",
        (
            "Include a number written in digits.",
            "Your answer must contain at least one digit.",
            "Use at least one number in digits.",
            "Mention a number, written with digits.",
            "Put a number in digits somewhere in your answer.",
            "At least one digit must appear in your answer.",
        ),
        _nothing,
        lambda text: re.search(r"\d", text) is not None,
    ),
    Family(
        "title",
        "detectable_format:title",
        (
            "Give your answer a title in double angular brackets, such as <<title>>.",
            "Your answer must have a title, wrapped in double angular brackets, such as <<title>>.",
            "Start with a title in double angular brackets, such as <<title>>.",
            "Add a title in double angular brackets, as in <<title>>.",
            "Put a title inside << and >> above your answer.",
            "Include a short title between << and >>.",
        ),
        _nothing,
        has_title,
    ),
    Family(
        "highlight",
        "detectable_format:number_highlighted_sections",
        (
            "Highlight at least one phrase in asterisks, such as *phrase*.",
            "Put one phrase of your answer in asterisks, such as *phrase*.",
            "Emphasize at least one word with asterisks, *like this*.",
            "Use markdown to highlight a phrase, such as *phrase*.",
            "Mark an important word with asterisks, *like this*.",
            "Place at least one phrase between asterisks.",
        ),
        _nothing,
        highlighted,
    ),
    Family(
        "postscript",
        "detectable_content:postscript",
        (
            "At the end of your answer, add a postscript that starts with P.S.",
            "Add a postscript starting with P.S. at the end.",
            "Your answer must end with a postscript that starts with P.S.",
            "After your answer, write a P.S. with one more thought.",
            "Finish with a P.S. line.",
            "Do not forget to add a P.S. after your answer.",
        ),
        _nothing,
        has_postscript,
    ),
    Family(
        "placeholder",
        "detectable_content:number_placeholders",
        (
            "Include at least one placeholder in square brackets, such as [name].",
            "Use a placeholder in square brackets, such as [place].",
            "Your answer must contain a placeholder in square brackets, such as [date].",
            "Put at least one placeholder like [name] in your answer.",
            "Leave one detail open with a placeholder such as [city].",
            "Write one detail as a placeholder in square brackets.",
        ),
        _nothing,
        has_placeholder,
    ),
    Family(
        "two_responses",
        "combination:two_responses",
        (
            "Give two different answers, separated by ******.",
            "Give two different responses, separated by six asterisks: ******.",
            "Write two different answers and put ****** between them.",
            "Answer twice in different ways, with ****** between the answers.",
            "I want two different answers, divided by ******.",
            "Offer two distinct answers with ****** in the middle.",
        ),
        _nothing,
        two_responses,
    ),
    Family(
        "json",
        "detectable_format:json_format",
        (
            "Give your answer in JSON format.",
            "Your entire answer must be valid JSON.",
            "Answer with a JSON object.",
            "Wrap the entire output in JSON format.",
            "Respond only with valid JSON.",
            "Return your answer as a JSON object.",
        ),
        _nothing,
        is_json,
    ),
    Family(
        "choice",
        "detectable_format:constrained_response",
        (
            "Answer with one of the following options: {options}",
            "Choose one of these answers: {options}",
            "Your answer must be one of these: {options}",
            "Reply with exactly one of these sentences: {options}",
            "Pick your answer from this list: {options}",
            "Only these answers are allowed: {options}",
        ),
        _options,
        one_option,
    ),
    Family(
        "paragraphs",
        "length_constraints:number_paragraphs",
        (
            "Write exactly {n} short paragraphs, separated by a blank line.",
            "Answer in {n} short paragraphs with a blank line between them.",
            "Your answer must have exactly {n} paragraphs, separated by a blank line.",
            "Split your answer into {n} short paragraphs.",
            "Use exactly {n} brief paragraphs.",
            "Divide your answer into {n} paragraphs with an empty line between them.",
        ),
        _one("n", (2,)),
        paragraphs,
        held_out=True,
    ),  # SmolLM2-135M-Instruct never obeys it, of 152 tries
    Family(
        "numbered_list",
        "",
        (
            "Answer with a numbered list of exactly {n} items.",
            "Write your answer as a numbered list with {n} items.",
            "Your answer must be a numbered list of {n} items: 1. and so on.",
            "Give exactly {n} numbered points, one on each line.",
        ),
        _one("n", (2, 3)),
        numbered,
        held_out=True,
    ),
    Family(
        "words_between",
        "length_constraints:number_words",
        (
            "Answer in {low} to {high} words.",
            "Use between {low} and {high} words.",
            "Your answer must have at least {low} and at most {high} words.",
            "Write no fewer than {low} and no more than {high} words.",
        ),
        _between,
        lambda text, low, high: low <= len(words(text)) <= high,
        held_out=True,
    ),
)
FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _TABLE})


def instruction_text(family: str, wording: int, params: Mapping[str, Any]) -> str:
    """Text of the instruction: template `wording` of the family with parameters filled in."""
    values = {name: " ".join(value) if isinstance(value, list) else value for name, value in params.items()}
    return FAMILIES[family].wordings[wording].format(**values, s="" if params.get("n") == 1 else "s")
