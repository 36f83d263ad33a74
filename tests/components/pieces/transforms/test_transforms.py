"""Curation transforms on small hand-made records: every bad record is dropped and counted."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.components.data.near import jaccard, near_earlier, shingles
from ratchet.components.data.pair_builders import preference_pairs
from ratchet.components.data.personal_data import scrubbed
from ratchet.components.data.records import Conversation, prefix_within
from ratchet.components.errors import RecipeError
from ratchet.components.piece import build, catalogue
from ratchet.components.pieces.transforms.duplicates import duplicates, near
from ratchet.components.pieces.transforms.language import language
from ratchet.components.pieces.transforms.length import length
from ratchet.components.pieces.transforms.normalise import normalise, tidy
from ratchet.components.pieces.transforms.remove_broken import remove_broken
from ratchet.components.pieces.transforms.scrub import scrub
from ratchet.components.recipes.sections import Pairs


def words(messages):
    """Token counter: one per word and one per message."""
    return sum(1 + len(m["content"].split()) for m in messages)


def talk(*turns, key="c1", **more):
    roles = ("user", "assistant")
    return Conversation(key, tuple({"role": roles[i % 2], "content": t} for i, t in enumerate(turns)), **more)


def ids(records):
    return [record.id for record in records]


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("  a \u00a0 b\t", "a b"),
        ("cafe\u0301", "café"),
        ("cafe\x00\u0301", "café"),
        ("“no”…", '"no"...'),
        ("a\x00b\x1b[0m", "ab[0m"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("a  b", "a b"),
        ("👍🏽 ok", "👍🏽 ok"),
    ],
)
def test_normalise(raw, clean):
    assert tidy(raw) == clean
    assert normalise([talk(raw, "x")], words).kept[0].messages[0]["content"] == clean


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("O’Brien", "O'Brien"),
        ("3\u20135", "3-5"),
        ('["“no”"]', None),
        ('{"a": "“no”"}', None),
        ("assert f(1) == 2\n    # “two”", None),
        (None, None),
    ],
)
def test_normalise_treats_reference_answers_like_replies(raw: str | None, clean: str | None) -> None:
    """The right reply to a normalised record is the normalised answer; programs are no prose."""
    assert normalise([talk("a", "b", answer=raw)], words).kept[0].answer == (clean or raw)


@given(st.text())
def test_normalise_is_idempotent(text):
    assert tidy(tidy(text)) == tidy(text)


def test_broken_records_are_dropped_with_the_reason():
    records = [
        talk("fine", "yes", key="good"),
        talk(" ", "", key="empty"),
        talk("http://a.b/c", "www.x.org !!", key="links"),
        talk("\ufffd\ufffd\ufffd ok", "x", key="unreadable"),
        talk("a" * 41, "x", key="stuck"),
        talk("hello?", key="one side"),
        talk("what", "", "?", "yes", key="mended"),
        Conversation("same", talk("a", "b").messages, opening=1, rejected=talk("a", "b").messages),
    ]
    sifted = remove_broken(records, words)
    assert ids(sifted.kept) == ["good", "mended"]
    assert [m["content"] for m in sifted.kept[1].messages] == ["what ?", "yes"]
    assert {d.id: d.reason for d in sifted.dropped} == {
        "empty": "empty",
        "links": "only links or punctuation",
        "unreadable": "unreadable characters",
        "stuck": "one character repeated",
        "one side": "no assistant turn",
        "same": "chosen and rejected are the same",
    }


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("write me at jo.doe+x@mail.example.org.", "write me at [email]."),
        ("see https://a.b/c?d=e, or www.x.org/y!", "see [link], or [link]!"),
        ("call (808) 782-1557 or +44 20 7946 0958", "call [phone] or [phone]"),
        ("I am @sky_walker1 there", "I am [handle] there"),
        ("pi is 3.141592653589793 and 1000000 sheep in 2012-2013, meet @ 5", None),
    ],
)
def test_personal_data(raw, clean):
    clean = raw if clean is None else clean
    assert scrubbed(raw)[0] == clean and scrubbed(clean) == (clean, [])
    sifted = scrub([talk(raw, "ok")], words)
    assert sifted.kept[0].messages[0]["content"] == clean and bool(sifted.changed) == (raw != clean)


def test_duplicates_keep_the_first():
    records = [
        talk("Hi there", "Hello!", key="a"),
        talk("hi  there.", "hello", key="b"),
        talk("hi there", "no", key="c"),
        talk("Hi there", "Hello!", key="d", topic="other"),
    ]
    sifted = duplicates(records, words)
    assert ids(sifted.kept) == ["a", "c", "d"] and sifted.dropped[0].explained == "duplicate: of a"


def test_the_same_choice_of_two_annotators_is_no_duplicate():
    """Else agreement would count once, and disagreement twice."""
    same = talk("Hi there", "Hello!", key="a")
    records = [
        replace(same, id=str(i), meta={"annotator": name}) for i, name in enumerate(("ann", "ben", "ann"))
    ]
    assert ids(duplicates(records, words).kept) == ["0", "1"]


def test_the_same_text_after_another_system_message_is_no_duplicate():
    same = talk("Who are you?", " ".join(f"word{i}" for i in range(20)))
    records = [
        replace(same, id=str(i), messages=({"role": "system", "content": text}, *same.messages))
        for i, text in enumerate(("You are a pirate.", "You are a doctor.", "You are a pirate."))
    ]
    assert ids(duplicates(records, words).kept) == ["0", "1"]
    assert ids(near(records, words).kept) == ["0", "1"]


def test_jaccard_and_shingles_by_hand():
    assert shingles("The cat, the DOG!", 2) == {"the cat", "cat the", "the dog"}
    assert shingles("Hi") == {"hi"} and shingles("!?") == frozenset()
    assert jaccard(shingles("a b c d", 2), shingles("b c d e", 2)) == pytest.approx(2 / 4)


def test_near_duplicates_agree_with_all_pairs():
    rng = random.Random(0)
    texts = []
    for number in range(60):
        text = [f"w{rng.randrange(400)}" for _ in range(60)]
        texts.append(" ".join(text))
        if number % 3 == 0:  # a copy with a few words changed: alike, more or less
            for _ in range(rng.randrange(6)):
                text[rng.randrange(60)] = "changed"
            texts.append(" ".join(text))
    sets = [shingles(text) for text in texts]
    exact = {i: [j for j in range(i) if jaccard(sets[i], sets[j]) >= 0.8] for i in range(len(sets))}
    assert sum(map(len, exact.values())) > 5
    assert dict(near_earlier(sets, 0.8)) == exact


def test_near_duplicates_keep_the_first_and_ignore_short_texts():
    long = " ".join(f"word{i}" for i in range(60))
    records = [
        talk(long, "yes", key="a"),
        talk(long, "oh yes", key="b"),
        talk("hi", "hello", key="c"),
        talk("hi", "hello", key="d"),
    ]
    sifted = near(records, words)
    assert ids(sifted.kept) == ["a", "c", "d"] and sifted.dropped[0].explained == "near duplicate: of a"


def test_language():
    records = [
        talk(
            "What did you do over the weekend with your family?",
            "We went to the lake and it was great fun.",
            key="en",
        ),
        talk(
            "Was hast du am Wochenende mit deiner Familie gemacht?",
            "Wir sind zum See gefahren und es war schön.",
            key="de",
        ),
        talk("hola", "si", key="short"),
    ]
    sifted = language(records, words)
    assert ids(sifted.kept) == ["en", "short"] and sifted.reasons() == {"language de": 1}
    assert sifted.changed == {"language undecided": 1}


def test_truncation_of_5000_turns_counts_few_of_them():
    calls = 0

    def count(messages):
        nonlocal calls
        calls += 1
        return words(messages)

    sifted = length(
        [talk(*["word"] * 5000), talk("a", "b", key="c2"), talk("a", key="c3")],
        count,
        max_turns=10**6,
        max_tokens=1000,
    )
    assert calls < 60, "its turns are not counted one by one"
    assert [len(r.messages) for r in sifted.kept] == [500, 2] and sifted.changed == {"truncated": 1}
    assert sifted.reasons() == {"too short": 1}
    assert len(length([talk(*["word"] * 5000)], count, max_turns=200).kept[0].messages) == 200
    sifted = length([talk("word " * 2000, "b")], count, max_tokens=1000)
    assert sifted.reasons() == {"too long: the first turns exceed max_tokens": 1}


@given(st.lists(st.integers(0, 9), max_size=80), st.integers(0, 300), st.integers(0, 5))
def test_prefix_within_is_the_longest(sizes, bound, head):
    messages = [{"role": "user", "content": "w " * n} for n in sizes]
    start = [{"role": "system", "content": "w " * head}]
    fits = [k for k in range(len(sizes) + 1) if words([*start, *messages[:k]]) <= bound]
    assert prefix_within(start, messages, bound, words) == max(fits, default=0)


def test_every_transform_is_registered():
    assert {
        "normalise",
        "remove_broken",
        "scrub",
        "duplicates",
        "duplicates.near",
        "language",
        "length",
    } <= set(catalogue("transform"))
    assert ids(build("transform", {"name": "length", "min_turns": 3})([talk("a", "b")], words).kept) == []
    with pytest.raises(RecipeError, match="'max_turns'"):
        build("transform", {"name": "length", "max_turn": 3})


def test_directions_are_unit_vectors_named_in_the_prompt():
    from ratchet.components.pieces.transforms.directions import directions

    records = [talk("hi", "hello", key=str(i), opening=1) for i in range(50)]
    kept = directions(records, words).kept
    angles = [record.meta["direction"] for record in kept]
    assert all(v[0] ** 2 + v[1] ** 2 == pytest.approx(1) and v[0] >= 0.707 for v in angles)
    assert len({tuple(v) for v in angles}) == 50
    assert min(v[1] for v in angles) < -0.6 and max(v[1] for v in angles) > 0.6, "from -45 to 45 degrees"
    narrow = directions(records, words, lowest=10.0, highest=20.0).kept
    assert all(0.173 < record.meta["direction"][1] < 0.343 for record in narrow), "sin 10 and sin 20 degrees"
    first = kept[0]
    assert first.messages[0]["role"] == "system" and first.opening == 2
    assert f"{round(100 * angles[0][1])} x second" in first.messages[0]["content"]
    silent = directions(records, words, own=False).kept
    assert [r.meta["direction"] for r in silent] == angles
    assert {r.messages[0]["content"] for r in silent} == {"Maximise 100 x first + 0 x second."}


def test_source_class_conditions_on_the_label_and_inference_on_the_expert():
    from ratchet.components.pieces.transforms.source_class import source_class

    records = [talk("hi", "hello", key="a", opening=1, label=True), talk("hi", "hello", key="b", label=False)]
    kept = source_class(records, words).kept
    assert [r.messages[0]["content"] for r in kept] == ["Expert.", "Other."]
    assert [r.opening for r in kept] == [2, 0]
    again = source_class(kept, words, always="expert").kept
    assert [r.messages[0]["content"] for r in again] == ["Expert.", "Expert."]
    assert [(len(r.messages), r.opening) for r in again] == [(3, 2), (3, 0)]


@pytest.mark.parametrize(("name", "said"), [("source_class", "Expert."), ("directions", "Maximise ")])
def test_a_condition_keeps_the_topic_the_system_message_and_the_rejected_answer(name: str, said: str) -> None:
    """Templates allow one system message, so they are one; both answers have the same prompt."""
    condition = build("transform", {"name": name})
    system = {"role": "system", "content": "Be brief."}
    plain = talk("hi", "hello", opening=1, label=True, rejected=talk("hi", "no").messages)
    own = replace(plain, messages=(system, *plain.messages), rejected=(system, *plain.rejected), opening=2)
    topical = replace(plain, topic="Be brief.")
    for record, more in ((plain, ""), (own, "\n\nBe brief."), (topical, "\n\nBe brief.")):
        (made,) = condition([record], words).kept
        if name == "source_class":
            assert condition([made], words).kept == [made]
            alone = condition([replace(record, rejected=())], words).kept
            assert condition(alone, words).kept == alone and alone[0].rejected == ()
        (group,) = preference_pairs([made], words, Pairs()).kept
        (asked, question), (chosen, rejected) = group.prompt.messages, group.trajectories
        assert asked["role"] == "system" and asked["content"].startswith(said)
        assert asked["content"].endswith(more or ".") and question["content"] == "hi"
        assert (chosen.text, rejected.text) == ("hello", "no")
