"""Transforms `questions` and `instruct`: from conversations to questions to instructions."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.data.records import Conversation
from ratchet.components.data.splits import split
from ratchet.components.errors import RecipeError
from ratchet.components.piece import build, catalogue
from ratchet.components.pieces.transforms.instruct import HELD_OUT, TRAINED, instruct
from ratchet.components.pieces.transforms.questions import final_question, questions


def count(messages):
    return sum(len(m["content"].split()) for m in messages)


def talk(*turns, key="c1", **more):
    return Conversation(
        key, tuple({"role": ("user", "assistant")[i % 2], "content": t} for i, t in enumerate(turns)), **more
    )


def question_records(number):
    return [
        talk(
            f"What do you like about city number {i}?",
            key=f"q{i}",
            opening=1,
            topic="cities",
            topic_as_system=False,
        )
        for i in range(number)
    ]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("What is your favorite food?", "What is your favorite food?"),
        ("oh that's way cool! what's your major??", "What's your major?"),
        ("haha so, do you like  to travel ?", "Do you like to travel?"),
        ("Yeah thats so cool what they do What are you majoring in?", "What are you majoring in?"),
        (
            "I love it. By the way, what would you do with a magic wand?!",
            "What would you do with a magic wand?",
        ),
        ("hi :) do you play any sports?", "Do you play any sports?"),
        ("how about you?", ""),
        ("What about yours?", ""),
        ("Do you like it?", ""),
        ("Where did they go last summer?", ""),
        ("Which one do you want to learn?", ""),
        ("What do you think about that?", ""),
        ("you like dogs?", ""),
        ("I love dogs.", ""),
        ("Where is the café on the corner?", ""),
        ("Have you seen [link] in the news?", ""),
        ("Have you been to any?", ""),
        ("?", ""),
        ("Do you think that dogs dream at night?", "Do you think that dogs dream at night?"),
    ],
)
def test_final_question_returns_self_contained_questions(text, question):
    assert final_question(text) == question


def test_questions_make_one_record_per_question_and_count_dropped_ones():
    record = talk(
        "Hi! What is your favorite food?",
        "Pizza. do you like to cook at home?",
        "how about you?",
        "What is it?",
        topic="food",
        rating=4.0,
        ratings={"witty": 4.0},
        source="chitchat",
        meta={"kept": 1},
    )
    again = talk("what is YOUR favorite food", "what is your favorite food?!", key="c2")
    silent = talk("hello", "hi", key="c3")
    sifted = questions([record, again, silent], count)
    first, second = sifted.kept
    assert [r.id for r in sifted.kept] == ["c1-0", "c1-1"]
    assert [r.messages for r in sifted.kept] == [
        ({"role": "user", "content": "What is your favorite food?"},),
        ({"role": "user", "content": "Do you like to cook at home?"},),
    ]
    assert (first.opening, first.topic, first.rating, first.ratings, first.source) == (
        1,
        "food",
        None,
        {},
        "chitchat",
    )
    assert first.head == () and not first.topic_as_system
    assert (
        first.meta == {"kept": 1, "question": "c1-0", "conversation": "c1"}
        and second.meta["question"] == "c1-1"
    )
    assert [(d.id, d.reason, d.copy) for d in sifted.dropped] == [
        ("c2-1", "repeated question", True),
        ("c3", "no stand-alone question", False),
    ]
    assert list(sifted.changed.values()) == [2]


def test_questions_keep_to_their_bounds():
    record = talk("Do you like music?", "Do you like to listen to very loud music?")
    assert [r.id for r in questions([record], count).kept] == ["c1-1"]
    assert [r.id for r in questions([record], count, min_words=4, max_words=4).kept] == ["c1-0"]


def test_instruct_appends_one_trained_instruction():
    (record,) = question_records(1)
    (instructed,) = instruct([record], count).kept
    spec = instructed.meta["instruction"]
    assert instructed.messages == (
        {"role": "user", "content": f"{record.messages[0]['content']} {spec['text']}"},
    )
    assert spec["text"] == instruction_text(spec["family"], spec["wording"], spec["params"])
    assert (instructed.id, instructed.opening, instructed.meta["question"], spec["kind"]) == (
        "q0",
        1,
        "q0",
        "seen",
    )
    assert json.loads(json.dumps(instructed.meta)) == instructed.meta and instructed.head == ()


def test_instruct_touches_the_last_user_message_only():
    record = talk("Hi.", "Hello.", "What do you like to eat?", key="long")
    result = instruct([record, talk("Hi.", "Hello.", key="answered")], count)
    (kept,) = result.kept
    assert kept.messages[:2] == record.messages[:2] and kept.opening == 3
    assert [(d.id, d.reason) for d in result.dropped] == [("answered", "the last message is not the user's")]


def test_instruct_follows_from_seed_and_ids_alone():
    records = question_records(40)
    records_kept = instruct(records, count, held_out=0.3, seed=1).kept
    assert instruct(records[::-1], count, held_out=0.3, seed=1).kept == records_kept[::-1]
    assert instruct(records, count, held_out=0.3, seed=2).kept != records_kept


@pytest.mark.parametrize("each", [1, 3])
def test_families_are_drawn_evenly(each: int):
    families = [
        r.meta["instruction"]["family"] for r in instruct(question_records(50), count, per_question=each).kept
    ]
    assert len(families) == 50 * each
    numbers = [families.count(name) for name in TRAINED]
    assert max(numbers) - min(numbers) <= 2
    for i in range(0, len(families), each):
        assert len(set(families[i : i + each])) == each


def test_instruct_draws_evenly_and_trains_on_nothing_held_out():
    specs = [r.meta["instruction"] for r in instruct(question_records(3000), count).kept]
    families = Counter(spec["family"] for spec in specs)
    assert set(families) == set(TRAINED) and {spec["kind"] for spec in specs} == {"seen"}
    assert (
        3000 / len(TRAINED) * 0.6
        < min(families.values())
        <= max(families.values())
        < 3000 / len(TRAINED) * 1.5
    )
    assert all(spec["wording"] in FAMILIES[spec["family"]].seen_wordings for spec in specs)


def test_held_out_is_half_new_families_and_half_new_wordings():
    sifted = instruct(question_records(2000), count, held_out=0.5)
    specs = [r.meta["instruction"] for r in sifted.kept]
    kinds = Counter(spec["kind"] for spec in specs)
    assert kinds["seen"] == pytest.approx(1000, abs=90) and kinds["new_family"] == pytest.approx(500, abs=80)
    assert dict(sifted.changed) == {f"instruction: {kind}": number for kind, number in kinds.items()}
    for spec in specs:
        family = FAMILIES[spec["family"]]
        assert family.held_out == (spec["kind"] == "new_family")
        new = spec["wording"] in family.new_wordings
        assert spec["kind"] == "new_family" or new == (spec["kind"] == "new_wording")
    assert {spec["family"] for spec in specs} == set(FAMILIES)
    assert {
        r.meta["instruction"]["kind"] for r in instruct(question_records(50), count, held_out=1.0).kept
    } == {"new_family", "new_wording"}


@given(st.integers(2, len(HELD_OUT)), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 1.0]))
def test_instructions_of_one_question_are_of_different_families(number, seed, held_out):
    records_kept = instruct(
        question_records(3), count, held_out=held_out, per_question=number, seed=seed
    ).kept
    assert [r.id for r in records_kept] == [f"q{i}-{n}" for i in range(3) for n in range(1, number + 1)]
    for i in range(3):
        own = [r for r in records_kept if r.meta["question"] == f"q{i}"]
        assert len(own) == len({r.meta["instruction"]["family"] for r in own}) == number


def test_records_of_one_question_stay_in_one_split():
    records = [talk(f"What do you like about city number {i}?", key=f"q{i}", opening=1) for i in range(60)]
    records_kept = instruct(records, count, per_question=2).kept
    assert all(r.head == () for r in records_kept)
    parts = split(records_kept, {"prompts": 0.5, "evaluate": 0.5}, seed=0)
    train, held = ({r.meta["question"] for r in part} for part in parts.values())
    assert train and held and not train & held


@pytest.mark.parametrize(
    "options", [{"held_out": 1.5}, {"held_out": -0.1}, {"per_question": 0}, {"per_question": 9}]
)
def test_instruct_refuses_options_out_of_range(options):
    with pytest.raises(RecipeError, match=next(iter(options))):
        instruct(question_records(1), count, **options)


def test_both_transforms_are_pieces():
    assert {"questions", "instruct"} <= set(catalogue("transform"))
    records = build("transform", {"name": "questions"})(
        [talk("What is your favorite food?", "Pizza.")], count
    ).kept
    assert len(build("transform", {"name": "instruct", "per_question": 2})(records, count).kept) == 2
