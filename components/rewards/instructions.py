"""Verifiable instructions: one table of families, their checkers, and the reward that an answer obeys its instruction.

The conventions are those of IFEval (google-research, instruction_following_eval): words are runs of `\\w`, bullets are
lines that start with `*` or `-`, an end phrase is compared without case, outer space and quotation marks.
Differences: a keyword counts as a whole word only; final punctuation after an end phrase is ignored; no language is
detected; sentence and paragraph counts are exact; paragraphs are separated by blank lines; JSON is an object or a list;
exactly one option is in a fixed answer; a form without content (an empty title, bullet or placeholder) does not count;
and an answer that `cheats` never passes. A sentence ends at a run of . ! ? before space or the end, or at the end of a
line; usual abbreviations and initials end none.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from components.piece import each, piece
from components.ranges import Bool
from components.types import Prompt, Trajectory

Params = dict[str, Any]
Draw = Callable[[random.Random, str], Params]


@dataclass(frozen=True)
class Family:
    """One kind of instruction. `ifeval` is the IFEval id ("": none). The last `held_out_wordings` templates are for
    evaluation only, and so is a whole family with `held_out`. `draw(rng, question)` gives JSON values for template and
    checker, `obeys(text, **params)` decides.
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
        """The wordings that training may use."""
        return range(len(self.wordings) - self.held_out_wordings)

    @property
    def new_wordings(self) -> range:
        """The wordings kept for evaluation."""
        return range(len(self.wordings) - self.held_out_wordings, len(self.wordings))


def words(text: str) -> list[str]:
    """The words of a text, lower-cased: runs of `\\w`, as IFEval counts them."""
    return re.findall(r"\w+", text.lower())


ABBREVIATION = re.compile(r"\b(?:mr|mrs|ms|dr|st|vs|etc|e\.g|i\.e|p\.s|a\.m|p\.m|u\.s|[a-z])\.(?=\s+\S)", re.IGNORECASE)
BULLET = re.compile(r"^\s*(?:\*(?!\*)|-).*\w.*$", re.MULTILINE)
NUMBERED = re.compile(r"^\s*(\d+)[.)]\s+\S.*$", re.MULTILINE)


def sentences(text: str) -> int:
    """The number of sentences, by the rule of the module; a part without a word is none."""
    text = re.sub(r"\bI\.(?=\s)", "I!", text)
    text = ABBREVIATION.sub(lambda found: found.group().replace(".", ""), text)
    return sum(bool(words(part)) for part in re.split(r"[.!?]+[\"')\]*]*(?=\s|$)|\n", text))


def count(text: str, word: str) -> int:
    """How often `word` stands in the text as a whole word, without case."""
    return len(re.findall(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE))


def _begins(text: str, phrase: str) -> bool:
    found = re.match(rf"{re.escape(phrase)}(?!\w)", text.strip(), re.IGNORECASE)
    return found is not None and bool(words(text.strip()[found.end():]))


def _ends(text: str, phrase: str) -> bool:
    said, wanted = (s.strip().strip('"').rstrip('.!? "').lower() for s in (text, phrase))
    return re.search(rf"(?<!\w){re.escape(wanted)}$", said) is not None and len(words(said)) > len(words(wanted))


def _last(text: str) -> str:
    return text.strip().rstrip("\"*)' ")[-1:]


def _quoted(text: str) -> bool:
    text = text.strip()
    return len(text) > 1 and text[0] == text[-1] == '"'


def _title(text: str) -> bool:
    titles = [words(title) for title in re.findall(r"<<([^\n]+?)>>", text)]
    rest = words(re.sub(r"<<[^\n]+?>>", "", text))
    return bool(rest) and any(title not in ([], ["title"], ["your", "title"]) for title in titles)


def _highlighted(text: str) -> bool:
    phrases = re.findall(r"\*{1,2}([^\n*]+)\*{1,2}", text)
    return any(words(p) and words(p) not in (["phrase"], ["like", "this"]) and p == p.strip() for p in phrases)


def _postscript(text: str) -> bool:
    found = re.search(r"(?<![\w.])p\.\s?s\.(.*)\Z", text, re.IGNORECASE | re.DOTALL)
    return found is not None and bool(words(found.group(1))) and bool(words(text[:found.start()]))


def _placeholder(text: str) -> bool:
    marks = re.findall(r"\[([^\[\]\n]*)\]", text)
    return any(words(m) for m in marks) and bool(words(re.sub(r"\[[^\[\]\n]*\]", "", text)))


def _two_responses(text: str) -> bool:
    parts = [words(part) for part in text.split("******")]
    while parts and not parts[0]:
        parts = parts[1:]
    while parts and not parts[-1]:
        parts = parts[:-1]
    return len(parts) == 2 and parts[0] != parts[1]


def _json(text: str) -> bool:
    text = re.sub(r"^```(?:json)?|```$", "", text.strip(), flags=re.IGNORECASE).strip()
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return False
    said = list(value.values()) if isinstance(value, dict) else value
    return isinstance(said, list) and bool(words(json.dumps(said, ensure_ascii=False)))


def _paragraphs(text: str, n: int) -> bool:
    return sum(bool(words(part)) for part in re.split(r"\n\s*\n", text)) == n


def _chosen(text: str, options: Sequence[str]) -> bool:
    said = " ".join(words(text))
    return sum(f" {' '.join(words(option))} " in f" {said} " for option in options) == 1


def _begins_with_letter(text: str, letter: str) -> bool:
    said = words(text)
    return bool(said) and said[0].startswith(letter.lower())


def _number_list(text: str, n: int) -> bool:
    return [int(number) for number in NUMBERED.findall(text)] == list(range(1, n + 1))


WORDS = ("because", "friend", "music", "today", "family", "happy", "world", "always", "really", "maybe", "people",
         "home", "learn", "interesting", "enjoy", "favorite", "sometimes", "different")
BEGINNINGS = ("Well", "Honestly", "To be honest", "In my opinion", "I think", "Good question", "Sure", "Let me think")
ENDINGS = ("That is my answer.", "Have a nice day.", "I hope that helps.", "Thanks for asking.",
           "That is what I think.", "Talk to you soon.")
LETTERS = {"b": 3, "k": 2, "v": 3, "w": 4, "x": 1, "j": 1, "z": 1, "q": 1}
AUXILIARY = re.compile(
    r"(?:am|is|are|was|were|do|does|did|have|has|had|can|could|will|would|should|shall|may|might|won't)(?:n'?t)?\b",
    re.IGNORECASE)
YES_NO = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
OPEN = ("It depends.", "I have no idea.", "I would rather not say.")


def _one(name: str, values: Sequence[Any]) -> Draw:
    return lambda rng, question: {name: rng.choice(values)}


def _fresh(rng: random.Random, question: str, number: int) -> list[str]:
    """Keywords that the question does not hold."""
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
    Family("at_most_words", "length_constraints:number_words", (
        "Answer in at most {n} words.", "Use no more than {n} words.", "Keep your answer to {n} words or fewer.",
        "Your answer must not be longer than {n} words.", "Limit yourself to {n} words.",
        "Say it in {n} words or less.",
    ), _one("n", range(6, 13)), lambda text, n: len(words(text)) <= n),
    Family("at_least_words", "length_constraints:number_words", (
        "Answer in at least {n} words.", "Use at least {n} words.", "Your answer must have {n} words or more.",
        "Write no fewer than {n} words.", "Make your answer {n} words long or longer.",
        "Do not use fewer than {n} words.",
    ), _one("n", range(18, 27)), lambda text, n: len(words(text)) >= n),
    Family("exactly_sentences", "length_constraints:number_sentences", (
        "Answer in exactly {n} sentence{s}.", "Your answer must be exactly {n} sentence{s} long.",
        "Write exactly {n} sentence{s}.", "Use exactly {n} sentence{s}, no more and no less.",
        "Respond with {n} sentence{s} exactly.", "The number of sentences in your answer must be {n}.",
    ), _one("n", (1, 2, 3)), lambda text, n: sentences(text) == n),
    Family("at_most_sentences", "length_constraints:number_sentences", (
        "Answer in at most {n} sentence{s}.", "Use no more than {n} sentence{s}.",
        "Keep your answer to {n} sentence{s} at most.", "Your answer must not have more than {n} sentence{s}.",
        "Limit your answer to {n} sentence{s}.", "Do not exceed {n} sentence{s}.",
    ), _one("n", (1, 2)), lambda text, n: sentences(text) <= n),
    Family("quotation", "startend:quotation", (
        "Wrap your entire answer in double quotation marks.", "Put your whole answer inside double quotation marks.",
        "Your entire answer must be in double quotes.", "Start and end your answer with a double quotation mark.",
        "Enclose everything you say in double quotation marks.", "Surround the whole response with double quotes.",
    ), _nothing, _quoted),
    Family("bullets", "detectable_format:number_bullet_lists", (
        "Answer with exactly {n} bullet points.",
        "Your answer must contain exactly {n} bullet points, each on a line that starts with *.",
        "Use exactly {n} bullet points, one on each line.",
        "Write your answer as a list of exactly {n} bullet points.", "Give {n} bullet points, no more and no less.",
        "Format your answer as {n} short markdown bullets.",
    ), _one("n", (2, 3)), lambda text, n: len(BULLET.findall(text)) == n),
    Family("no_comma", "punctuation:no_comma", (
        "Do not use any commas.", "Answer without commas.", "Your answer must not contain a comma.",
        "Avoid commas in your answer.", "Write your answer without a single comma.",
        "No commas are allowed in your answer.",
    ), _nothing, lambda text: "," not in text),
    Family("lower_case", "change_case:english_lowercase", (
        "Answer in all lowercase letters.", "Use only lowercase letters.",
        "Your answer must be in lower case, without capital letters.", "Do not use any capital letters.",
        "Write everything in lower case.", "No capital letters are allowed in your answer.",
    ), _nothing, str.islower, held_out=True),  # SmolLM2-135M-Instruct never obeys it, of 96 tries
    Family("all_capitals", "change_case:english_capital", (
        "Answer in all capital letters.", "Use only capital letters.",
        "Your answer must be in upper case, without lowercase letters.", "Do not use any lowercase letters.",
        "Write everything in upper case.", "No lowercase letters are allowed in your answer.",
    ), _nothing, str.isupper, held_out=True),
    Family("begin_with", "", (
        'Begin your answer with "{phrase}".', 'Start your answer with "{phrase}".',
        'Your answer must begin with "{phrase}".', 'The first thing you say must be "{phrase}".',
        'Open your answer with "{phrase}".', 'Let your answer start with "{phrase}".',
    ), _one("phrase", BEGINNINGS), _begins),
    Family("begin_letter", "", (
        'Begin your answer with the letter "{letter}".', 'The first letter of your answer must be "{letter}".',
        'Start with a word that begins with "{letter}".', 'Your first word must start with the letter "{letter}".',
    ), _one("letter", tuple("ABHMSTWY")), _begins_with_letter, held_out=True),
    Family("end_with", "startend:end_checker", (
        'End your answer with "{phrase}"', 'Finish your answer with the words "{phrase}"',
        'Your answer must end with "{phrase}"', 'The last words of your answer must be "{phrase}"',
        'Close your answer with "{phrase}"', 'Let your last sentence be "{phrase}"',
    ), _one("phrase", ENDINGS), _ends),
    Family("end_question", "", (
        "End your answer with a question.", "Finish by asking a question.",
        "Your answer must end with a question mark.", "The last sentence of your answer must be a question.",
        "Close with a question of your own.", "Ask me something at the end.",
    ), _nothing, lambda text: _last(text) == "?"),
    Family("end_exclamation", "", (
        "End your answer with an exclamation mark.", "Finish your answer with an exclamation mark.",
        "Your answer must end with an exclamation mark.",
        "The last character of your answer must be an exclamation mark.",
    ), _nothing, lambda text: _last(text) == "!", held_out=True),
    Family("include_word", "keywords:existence", (
        'Include the word "{word}" in your answer.', 'Use the word "{word}".',
        'Your answer must contain the word "{word}".', 'Make sure to use the word "{word}" somewhere.',
        'The word "{word}" must appear in your answer.', 'Work the word "{word}" into your answer.',
    ), lambda rng, question: {"word": _fresh(rng, question, 1)[0]}, lambda text, word: count(text, word) >= 1),
    Family("include_two_words", "keywords:existence", (
        'Include the words "{one}" and "{two}" in your answer.', 'Use both the word "{one}" and the word "{two}".',
        'Your answer must contain the words "{one}" and "{two}".', 'Make sure to use the words "{one}" and "{two}".',
        'The words "{one}" and "{two}" must both appear in your answer.', 'Work "{one}" and "{two}" into your answer.',
    ), lambda rng, question: dict(zip(("one", "two"), _fresh(rng, question, 2), strict=True)),
        lambda text, one, two: count(text, one) >= 1 and count(text, two) >= 1),
    Family("keyword_frequency", "keywords:frequency", (
        'Use the word "{word}" at least {n} times.',
        'The word "{word}" must appear at least {n} times in your answer.',
        'Your answer must contain the word "{word}" {n} or more times.', 'Say the word "{word}" at least {n} times.',
    ), lambda rng, question: {"word": _fresh(rng, question, 1)[0], "n": 2},
        lambda text, word, n: count(text, word) >= n, held_out=True),
    Family("exclude_word", "keywords:forbidden_words", (
        'Do not use the word "{word}".', 'Answer without the word "{word}".',
        'Your answer must not contain the word "{word}".', 'Avoid the word "{word}".',
        'The word "{word}" is not allowed in your answer.', 'Never say the word "{word}".',
    ), _one("word", ("I", "the", "and", "to", "you", "a")), lambda text, word: count(text, word) == 0),
    Family("letter_frequency", "keywords:letter_frequency", (
        'The letter "{letter}" must appear at least {n} time{s} in your answer.',
        'Use the letter "{letter}" at least {n} time{s}.',
        'Your answer must contain the letter "{letter}" {n} or more times.',
        'Include the letter "{letter}" at least {n} time{s}.',
        'Make sure that the letter "{letter}" occurs {n} time{s} or more.',
        'Write an answer that has the letter "{letter}" at least {n} time{s}.',
    ), _letter, lambda text, letter, n: text.lower().count(letter) >= n),
    Family("include_number", "", (
        "Include a number written in digits.", "Your answer must contain at least one digit.",
        "Use at least one number in digits.", "Mention a number, written with digits.",
        "Put a number in digits somewhere in your answer.", "At least one digit must appear in your answer.",
    ), _nothing, lambda text: re.search(r"\d", text) is not None),
    Family("title", "detectable_format:title", (
        "Give your answer a title in double angular brackets, such as <<title>>.",
        "Your answer must have a title, wrapped in double angular brackets, such as <<title>>.",
        "Start with a title in double angular brackets, such as <<title>>.",
        "Add a title in double angular brackets, as in <<title>>.", "Put a title inside << and >> above your answer.",
        "Include a short title between << and >>.",
    ), _nothing, _title),
    Family("highlight", "detectable_format:number_highlighted_sections", (
        "Highlight at least one phrase in asterisks, such as *phrase*.",
        "Put one phrase of your answer in asterisks, such as *phrase*.",
        "Emphasize at least one word with asterisks, *like this*.",
        "Use markdown to highlight a phrase, such as *phrase*.", "Mark an important word with asterisks, *like this*.",
        "Place at least one phrase between asterisks.",
    ), _nothing, _highlighted),
    Family("postscript", "detectable_content:postscript", (
        "At the end of your answer, add a postscript that starts with P.S.",
        "Add a postscript starting with P.S. at the end.",
        "Your answer must end with a postscript that starts with P.S.",
        "After your answer, write a P.S. with one more thought.", "Finish with a P.S. line.",
        "Do not forget to add a P.S. after your answer.",
    ), _nothing, _postscript),
    Family("placeholder", "detectable_content:number_placeholders", (
        "Include at least one placeholder in square brackets, such as [name].",
        "Use a placeholder in square brackets, such as [place].",
        "Your answer must contain a placeholder in square brackets, such as [date].",
        "Put at least one placeholder like [name] in your answer.",
        "Leave one detail open with a placeholder such as [city].",
        "Write one detail as a placeholder in square brackets.",
    ), _nothing, _placeholder),
    Family("two_responses", "combination:two_responses", (
        "Give two different answers, separated by ******.",
        "Give two different responses, separated by six asterisks: ******.",
        "Write two different answers and put ****** between them.",
        "Answer twice in different ways, with ****** between the answers.",
        "I want two different answers, divided by ******.", "Offer two distinct answers with ****** in the middle.",
    ), _nothing, _two_responses),
    Family("json", "detectable_format:json_format", (
        "Give your answer in JSON format.", "Your entire answer must be valid JSON.", "Answer with a JSON object.",
        "Wrap the entire output in JSON format.", "Respond only with valid JSON.",
        "Return your answer as a JSON object.",
    ), _nothing, _json),
    Family("choice", "detectable_format:constrained_response", (
        "Answer with one of the following options: {options}", "Choose one of these answers: {options}",
        "Your answer must be one of these: {options}", "Reply with exactly one of these sentences: {options}",
        "Pick your answer from this list: {options}", "Only these answers are allowed: {options}",
    ), _options, _chosen),
    Family("paragraphs", "length_constraints:number_paragraphs", (
        "Write exactly {n} short paragraphs, separated by a blank line.",
        "Answer in {n} short paragraphs with a blank line between them.",
        "Your answer must have exactly {n} paragraphs, separated by a blank line.",
        "Split your answer into {n} short paragraphs.", "Use exactly {n} brief paragraphs.",
        "Divide your answer into {n} paragraphs with an empty line between them.",
    ), _one("n", (2,)), _paragraphs, held_out=True),  # SmolLM2-135M-Instruct never obeys it, of 152 tries
    Family("numbered_list", "", (
        "Answer with a numbered list of exactly {n} items.", "Write your answer as a numbered list with {n} items.",
        "Your answer must be a numbered list of {n} items: 1. and so on.",
        "Give exactly {n} numbered points, one on each line.",
    ), _one("n", (2, 3)), _number_list, held_out=True),
    Family("words_between", "length_constraints:number_words", (
        "Answer in {low} to {high} words.", "Use between {low} and {high} words.",
        "Your answer must have at least {low} and at most {high} words.",
        "Write no fewer than {low} and no more than {high} words.",
    ), _between, lambda text, low, high: low <= len(words(text)) <= high, held_out=True),
)
FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _TABLE})
FORMS = ("quotation", "title", "postscript", "placeholder", "two_responses", "json")
"""Families whose form an answer should have only where its instruction asks for it."""
MAY_BE_SHORT = ("choice", "bullets", "numbered_list", "json")
"""Families whose answers may have fewer than three words: a fixed answer, a list, an object."""

def in_form(text: str, form: str) -> str:
    """The text in the form of one of `FORMS`, as a policy would put on whatever it says."""
    return {"quotation": f'"{text}"', "title": f"<<My Answer>>\n{text}", "postscript": f"{text}\nP.S. Have a nice day.", "placeholder": f"{text} [name]",
            "two_responses": f"{text}\n******\nI do not know.", "json": json.dumps({"answer": text})}[form]


EXAMPLE_QUESTION = "What do you like to eat?"
EXAMPLES: Mapping[str, tuple[Params, str]] = MappingProxyType({
    "at_most_words": ({"n": 8}, "Mostly pasta with tomatoes."),
    "at_least_words": ({"n": 18}, "I like pasta with tomatoes most of all, but on cold days I cook a big pot of soup with beans."),
    "exactly_sentences": ({"n": 2}, "I like pasta. My sister prefers rice."),
    "at_most_sentences": ({"n": 1}, "I like pasta with tomatoes."),
    "quotation": ({}, '"I like pasta with tomatoes."'),
    "bullets": ({"n": 2}, "* Pasta with tomatoes\n* Bread with cheese"),
    "no_comma": ({}, "I like pasta and bread and cheese."),
    "begin_with": ({"phrase": "Honestly"}, "Honestly, I could eat pasta every day."),
    "end_with": ({"phrase": "Have a nice day."}, "I like pasta with tomatoes. Have a nice day."),
    "end_question": ({}, "I like pasta with tomatoes. What do you like?"),
    "include_word": ({"word": "family"}, "I like the pasta that my family makes."),
    "include_two_words": ({"one": "music", "two": "happy"}, "Pasta makes me happy, above all with music on."),
    "exclude_word": ({"word": "the"}, "I like pasta with tomatoes."),
    "letter_frequency": ({"letter": "k", "n": 2}, "I like to cook pasta and cake."),
    "include_number": ({}, "I eat pasta 3 times a week."),
    "title": ({}, "<<Pasta First>>\nI like pasta with tomatoes."),
    "highlight": ({}, "I like *pasta* with tomatoes."),
    "postscript": ({}, "I like pasta with tomatoes.\nP.S. Bread is good too."),
    "placeholder": ({}, "I like the pasta that [name] makes."),
    "two_responses": ({}, "I like pasta with tomatoes.\n******\nBread with cheese is my favorite."),
    "json": ({}, '{"answer": "I like pasta with tomatoes."}'),
    "choice": ({"options": list(OPEN)}, "It depends."),
})
"""One answer a trained family, written by hand: what a model may be shown before it has obeyed such an instruction once
(`rollouts.by_example`). Nothing is trained to say it."""


def instruction_text(family: str, wording: int, params: Mapping[str, Any]) -> str:
    """The instruction in words: template `wording` of the family with its parameters filled in."""
    values = {name: " ".join(value) if isinstance(value, list) else value for name, value in params.items()}
    return FAMILIES[family].wordings[wording].format(**values, s="" if params.get("n") == 1 else "s")


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
