"""Instruction families and their checkers: obeying answers, near misses, cheats; then the reward."""

import json
import random
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.components.data.instructions.checkers import sentences, words
from ratchet.components.data.instructions.examples import EXAMPLE_QUESTION, EXAMPLES
from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.piece import build, catalogue
from ratchet.components.pieces.rewards.instructions import cheats, obeys
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory

QUESTIONS = [
    "What is your favorite food?",
    "Do you like music and people, because of your family?",
    "Are you in Rome or Paris?",
]
OPTIONS = ["My answer is yes.", "My answer is no.", "My answer is maybe."]
Case = tuple[dict[str, Any], list[str], list[str]]
"""Parameters, answers that obey, answers that nearly do."""

CASES: dict[str, Case] = {
    "at_most_words": (
        {"n": 6},
        ["I love pizza, pasta and rice.", "Yes, I do."],
        ["I love pizza and pasta and rice."],
    ),
    "at_least_words": (
        {"n": 8},
        ["I love pizza and pasta more than rice."],
        ["I love pizza and pasta over rice."],
    ),
    "exactly_sentences": (
        {"n": 2},
        ["I like it. Dr. Who paid $3.50 for it!", "One thing\nAnother thing"],
        ["I like it.", "One thing. Two things! Three things?", "I like it, Dr. Who."],
    ),
    "at_most_sentences": (
        {"n": 2},
        ["Pizza it is.", "Pizza, e.g. with ham. Or rice?!"],
        ["Pizza. Pasta. Rice."],
    ),
    "quotation": (
        {},
        ['"I like pizza."', ' "I said "yes" to pizza." \n'],
        ['"I like pizza.', 'I like "pizza"', "'I like pizza.'", '"'],
    ),
    "bullets": (
        {"n": 2},
        ["* pizza\n* pasta", "I like:\n- pizza\n- pasta"],
        ["* pizza\n* pasta\n* rice", "* pizza", "1. pizza\n2. pasta", "* pizza\n* ", "**pizza**\n**pasta**"],
    ),
    "no_comma": ({}, ["I like pizza and rice."], ["I like pizza, not rice."]),
    "lower_case": ({}, ["i like pizza 24 hours a day."], ["I like pizza.", "1234"]),
    "all_capitals": ({}, ["I LIKE PIZZA!"], ["I LIKE PIZZa!", "1234"]),
    "begin_with": (
        {"phrase": "To be honest"},
        ["To be honest, I like pizza.", "to be honest I do"],
        ["I like pizza, to be honest", "To be honestly", "To be honest."],
    ),
    "begin_letter": (
        {"letter": "S"},
        ["Some hot pizza.", '"sushi" is great'],
        ["Pizza sounds good.", "7 sushi"],
    ),
    "end_with": (
        {"phrase": "Have a nice day."},
        ["Pizza. Have a nice day.", 'I like pizza, have a nice day"', "Pizza! Have a nice day!"],
        ["Have a nice day.", "Have a nice day. I like pizza.", "Pizza. Have a nice day, friend."],
    ),
    "end_question": (
        {},
        ["I like pizza. Do you?", 'Pizza it is, "and you?"'],
        ["Do you? I like pizza.", "I like pizza."],
    ),
    "end_exclamation": ({}, ["I like pizza!", 'I say "pizza it is!"'], ["Pizza! I like it.", "Is it pizza?"]),
    "include_word": (
        {"word": "friend"},
        ["My Friend likes pizza."],
        ["My friends like pizza.", "I like pizza."],
    ),
    "include_two_words": (
        {"one": "friend", "two": "today"},
        ["Today I met a friend."],
        ["Today I met friends.", "I met a friend."],
    ),
    "keyword_frequency": (
        {"word": "happy", "n": 2},
        ["I am happy when you are Happy."],
        ["I am happy and unhappy.", "I am happy."],
    ),
    "exclude_word": (
        {"word": "I"},
        ["Pizza, in any form."],
        ["I like pizza.", "Pizza, i guess.", "I'm a fan."],
    ),
    "letter_frequency": ({"letter": "v", "n": 3}, ["Very vivid veal."], ["I love veal.", "w w w"]),
    "include_number": ({}, ["I had 3 pizzas."], ["I had three pizzas."]),
    "title": (
        {},
        ["<<My Food>>\nI like pizza."],
        ["<<title>> I like pizza.", "<My Food> I like pizza.", "<<My Food>>", "<< >> I like it."],
    ),
    "highlight": (
        {},
        ["I like *hot pizza* best.", "I like **pizza**."],
        ["I like *pizza.", "I like ** best.", "* pizza\n* pasta", "I *like this*."],
    ),
    "postscript": (
        {},
        ["I like pizza. P.S. Rice is fine.", "Pizza.\np. s. rice"],
        [
            "I like pizza. P.S.",
            "P.S. I like pizza.",
            "Pizza. PS rice",
            "Add a postscript that starts with S.P.S. here.",
        ],
    ),
    "placeholder": ({}, ["I eat at [place] on Mondays."], ["I eat at (place).", "I eat at [].", "[place]"]),
    "two_responses": (
        {},
        ["I like pizza.\n******\nI like rice.", "******Pizza.******Rice or soup."],
        [
            "Pizza. ****** Pizza!",
            "Pizza. ***** Rice.",
            "Pizza.******Rice.******Soup.",
            "Pizza.******",
            "Pizza and rice.",
        ],
    ),
    "json": (
        {},
        ['{"food": "pizza"}', '```json\n["pizza"]\n```'],
        ['{"food": "pizza"', '"pizza"', "{}", "42", '{"food": ""}', "{'food': 'pizza'}"],
    ),
    "choice": (
        {"options": OPTIONS},
        ["My answer is yes.", "my answer is maybe"],
        ["Yes.", " ".join(OPTIONS[:2]), "My answer is yesterday."],
    ),
    "paragraphs": (
        {"n": 2},
        ["I like pizza.\n\nI like rice."],
        ["I like pizza.\nI like rice.", "Pizza.\n\nRice.\n\nSoup.", "Pizza.\n\n"],
    ),
    "numbered_list": (
        {"n": 2},
        ["1. pizza\n2. rice", "Here:\n1) pizza\n2) rice"],
        ["1. pizza\n2. rice\n3. soup", "1. pizza\n1. rice", "* a\n* b", "1.\n2."],
    ),
    "words_between": (
        {"low": 4, "high": 6},
        ["Pizza and rice, always.", "Pizza and rice in the evening."],
        ["Pizza and rice.", "Pizza and rice in the late evening."],
    ),
}


def instruction(family: str, wording: int = 0, **params: Any) -> dict[str, Any]:
    return {
        "family": family,
        "wording": wording,
        "params": params,
        "text": instruction_text(family, wording, params),
        "kind": "seen",
    }


def every_wording(family: str) -> list[dict[str, Any]]:
    return [
        instruction(family, wording, **CASES[family][0]) for wording in range(len(FAMILIES[family].wordings))
    ]


def reply(text: str, **kw: Any) -> Trajectory:
    return Trajectory((Message(role="assistant", content=text),), **kw)


def score(prompt: Prompt, *answers: Trajectory, **options: Any) -> tuple[list[float | None], list[str]]:
    written = build("annotate", {"name": "rewards.instructions", **options})(
        [Group(prompt, answers)], Context()
    )
    return written["reward.instructions"][0], written["reward.instructions.status"][0]


def test_every_trained_family_has_a_written_example_that_obeys() -> None:
    assert set(EXAMPLES) == {name for name, family in FAMILIES.items() if not family.held_out}
    for name, (params, answer) in EXAMPLES.items():
        spec = {
            "family": name,
            "wording": 0,
            "params": params,
            "text": instruction_text(name, 0, params),
            "kind": "seen",
        }
        assert obeys(answer, spec, EXAMPLE_QUESTION), name


def test_the_cases_are_of_every_family() -> None:
    assert set(CASES) == set(FAMILIES) and len(FAMILIES) >= 24
    assert 5 <= sum(family.held_out for family in FAMILIES.values()) <= 8


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checker_tells_answers_that_obey_from_near_misses(family: str) -> None:
    _, good, bad = CASES[family]
    for wording in every_wording(family):
        assert [text for text in good if not obeys(text, wording, QUESTIONS[0])] == []
        assert [text for text in bad if obeys(text, wording, QUESTIONS[0])] == []


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_without_content_or_made_of_the_instruction_is_refused(family: str) -> None:
    for wording in every_wording(family):
        text = wording["text"]
        dressed = [
            text,
            f'"{text}"',
            text.upper(),
            text.lower().replace(",", ""),
            f"{text} {text}",
            f"* {text}\n* {text}",
            f"{text}!",
            f"{QUESTIONS[0]} {text}",
            f"<<A>> {text} *a* [b]\n\nP.S. c?",
            json.dumps({"answer": text}),
        ]
        empty = ["", " \n", "...", '""', "* ", "!"]
        assert [answer for answer in [*empty, *dressed] if obeys(answer, wording, QUESTIONS[0])] == []
        others = [other["text"] for other in every_wording(family)]
        assert [answer for answer in others if obeys(answer, wording)] == [], (
            "another wording of the same instruction"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_wordings_render_and_draws_are_plain_values(family: str) -> None:
    own = FAMILIES[family]
    assert own.name == family and len(own.wordings) >= 4 and 1 <= own.held_out_wordings <= 2
    assert [*own.seen_wordings, *own.new_wordings] == list(range(len(own.wordings))) and len(
        own.seen_wordings
    ) >= 2
    assert len(set(own.wordings)) == len(own.wordings)
    for seed in range(20):
        for question in QUESTIONS:
            params = own.draw(random.Random(seed), question)
            assert params == own.draw(random.Random(seed), question) == json.loads(json.dumps(params))
            for wording in range(len(own.wordings)):
                text = instruction_text(family, wording, params)
                assert "{" not in text and "}" not in text and "  " not in text and text[0].isupper()
                assert not any(
                    f" 1 {plural}" in text for plural in ("words", "sentences", "times", "paragraphs")
                )


def test_every_family_passes_the_catalogue_and_cites_its_source() -> None:
    assert catalogue("annotate")["rewards.instructions"].paper == "arXiv:2311.07911"
    known = {
        "length_constraints",
        "startend",
        "detectable_format",
        "punctuation",
        "change_case",
        "keywords",
        "detectable_content",
        "combination",
    }
    assert {family.ifeval.partition(":")[0] for family in FAMILIES.values()} - {""} == known


def test_keywords_are_drawn_outside_the_question() -> None:
    for seed in range(200):
        drawn = FAMILIES["include_two_words"].draw(random.Random(seed), QUESTIONS[1])
        assert not set(drawn.values()) & set(words(QUESTIONS[1])) and drawn["one"] != drawn["two"]


@pytest.mark.parametrize(
    ("question", "closed"),
    [
        ("Do you like tea?", True),
        ("Aren't you cold?", True),
        ("won't you come?", True),
        ("What is it?", False),
        ("Is it tea or coffee?", False),
        ("Isabel, who is it?", False),
    ],
)
def test_fixed_answers_fit_the_question(question: str, closed: bool) -> None:
    assert (FAMILIES["choice"].draw(random.Random(0), question)["options"] == OPTIONS) is closed


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        ("...", 0),
        ("Yes", 1),
        ("Yes. No! Why?!", 3),
        ("Mr. Bean and J. R. Hill met at 5 p.m. in Rome.", 1),
        ("It is 3.5 km", 1),
        ('She said "Stop." Then left.', 2),
        ("Wait... what?", 2),
        ("So am I. You too.", 2),
        ("* a\n* b", 2),
        ("I like it etc.", 1),
    ],
)
def test_sentences_are_counted(text: str, number: int) -> None:
    assert sentences(text) == number


def test_repeating_the_question_is_refused() -> None:
    prompt = instruction("end_question")
    assert not obeys("What is your favorite food?", prompt, QUESTIONS[0])
    assert not obeys("Well, what is your favorite food?", prompt, QUESTIONS[0])
    assert obeys("I like pizza best. What is your favorite food?", prompt, QUESTIONS[0])
    longer = instruction("at_least_words", n=18)
    twice = " ".join([QUESTIONS[0]] * 4)
    assert FAMILIES["at_least_words"].obeys(twice, n=18) and not obeys(twice, longer, QUESTIONS[0])
    assert not obeys(f"Well. {twice}", longer, QUESTIONS[0])


def test_most_words_from_the_instruction_or_one_word_over_and_over_are_refused() -> None:
    prompt = instruction("include_word", word="music")
    assert cheats('The word "music" in your answer: include music', prompt)
    assert not cheats("Music makes the answer to your life", prompt)
    assert cheats("really really really really music music", prompt)
    assert not cheats("No, no, no!", prompt)


@pytest.mark.parametrize(
    ("family", "params", "empty", "full"),
    [
        ("begin_with", {"phrase": "In my opinion"}, "In my opinion: In my opinion:", "In my opinion, no."),
        (
            "end_with",
            {"phrase": "Thanks for asking."},
            "Thanks for asking, thanks for asking.",
            "Yes. Thanks for asking.",
        ),
        ("include_word", {"word": "family"}, "Family: family-family", "Family comes first."),
        ("letter_frequency", {"letter": "k", "n": 2}, "K, k, k!", "I like kale."),
    ],
)
def test_a_demanded_phrase_over_and_over_is_refused(
    family: str, params: dict[str, Any], empty: str, full: str
) -> None:
    spec = instruction(family, **params)
    assert FAMILIES[family].obeys(empty, **params) and not obeys(empty, spec)
    assert obeys(full, spec)


def test_json_that_says_no_more_than_its_instruction_is_refused() -> None:
    instructions = [{**instruction("json"), "text": wording} for wording in FAMILIES["json"].wordings]
    assert any("JSON" in one["text"] for one in instructions)
    for one in instructions:
        assert FAMILIES["json"].obeys('{"type": "json"}') and not obeys('{"type": "json"}', one)
        assert obeys('{"type": "pizza"}', one) and obeys('["json", "pizza"]', one)


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('"I like pizza."', "quotation"),
        ("<<Food>> I like pizza.", "title"),
        ("I like pizza. P.S. Rice too.", "postscript"),
        ("I like [food] a lot.", "placeholder"),
        ("I like it.\n******\nI do not.", "two_responses"),
        ('{"I like": "all pizza"}', "json"),
    ],
)
def test_a_form_that_another_instruction_asks_for_is_refused(text: str, own: str) -> None:
    assert obeys(text, instruction(own)) and not obeys(text, instruction("at_most_words", n=12))
    assert not obeys(text, instruction("no_comma"))


@pytest.mark.parametrize("text", ["3189", "Dove.", "Body wash!", "*music*"])
def test_one_or_two_words_are_no_answer_to_an_open_question(text: str) -> None:
    assert not any(
        obeys(text, instruction(family))
        for family in ("end_exclamation", "include_number", "highlight", "no_comma")
    )
    assert obeys("I say 'Dove'.", instruction("no_comma")) and obeys(
        "* Dove\n* Wash", instruction("bullets", n=2)
    )


@pytest.mark.parametrize(
    ("family", "params", "mentions", "uses"),
    [
        (
            "include_word",
            {"word": "family"},
            'The word "family" is a noun of two.',
            'My family says that "family" is all.',
        ),
        (
            "include_word",
            {"word": "always"},
            "He said “Always.” is the word.",
            'So "a" always "b" is what I say.',
        ),
        (
            "include_two_words",
            {"one": "music", "two": "happy"},
            'The words "happy" and music are in the answer.',
            'I am happy with "happy music" on.',
        ),
        (
            "keyword_frequency",
            {"word": "family", "n": 2},
            'My family says "family" is a word.',
            "My family likes the family next door.",
        ),
        (
            "letter_frequency",
            {"letter": "j", "n": 1},
            'The letter "j" is a letter.',
            'I enjoy the letter "j" a lot.',
        ),
    ],
)
def test_quoted_word_does_not_count_as_used(
    family: str, params: dict[str, Any], mentions: str, uses: str
) -> None:
    spec = {"family": family, "params": params, "text": "Obey.", "wording": 0}
    assert FAMILIES[family].obeys(mentions, **params), "it is refused for the quotation marks alone"
    assert not obeys(mentions, spec) and obeys(uses, spec)


def test_the_reward_is_1_for_obedience_that_ends_by_itself() -> None:
    spec = instruction("at_most_words", n=6)
    prompt = Prompt(
        "p", ({"role": "user", "content": f"{QUESTIONS[0]} {spec['text']}"},), meta={"instruction": spec}
    )
    long = "I love pizza and pasta and rice."
    answers = reply("Pizza, as always."), reply("Pizza, as always.", stop="length"), reply(long), reply("")
    assert score(prompt, *answers) == ([1.0, 0.0, 0.0, 0.0], ["ok"] * 4)
    assert score(prompt, *answers, must_end=False) == ([1.0, 1.0, 0.0, 0.0], ["ok"] * 4)
    assert score(prompt, reply(QUESTIONS[0])) == ([0.0], ["ok"]), "the question alone is no answer"


def test_a_prompt_without_an_instruction_fails_the_reward() -> None:
    values, status = score(Prompt("p7", ({"role": "user", "content": "Hi?"},)), reply("Hello."))
    assert values == [None] and status[0].startswith("failed: ValueError: prompt 'p7'")
    values, status = score(
        Prompt("p", (), meta={"instruction": {**instruction("json"), "family": "jsn"}}), reply("{}")
    )
    assert values == [None] and status[0].startswith("failed: KeyError")


@given(
    st.text(alphabet=string.printable, max_size=200), st.sampled_from(sorted(FAMILIES)), st.integers(0, 10**6)
)
def test_checkers_accept_any_text_and_reject_wrapped_instructions(text: str, family: str, seed: int) -> None:
    rng = random.Random(seed)
    wording, params = rng.randrange(len(FAMILIES[family].wordings)), FAMILIES[family].draw(rng, text)
    prompt = instruction(family, wording, **params)
    assert obeys(text, prompt, QUESTIONS[0]) in (True, False)
    assert not obeys(f"{text} {prompt['text']} {text}", prompt)


@given(st.lists(st.sampled_from(["pizza", "rice", "soup", "tea", "milk"]), max_size=12), st.integers(1, 12))
def test_word_bounds_meet(answers: list[str], n: int) -> None:
    text = ", ".join(answers)
    most, least, exact = (
        FAMILIES[name].obeys(text, **params)
        for name, params in (
            ("at_most_words", {"n": n}),
            ("at_least_words", {"n": n}),
            ("words_between", {"low": n, "high": n}),
        )
    )
    assert (most and least) == exact == (len(answers) == n) and (most or least)
