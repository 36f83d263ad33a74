"""Words in scripts without spaces, and every filter that counts words on such texts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ratchet.components.data.decontaminate import decontaminate
from ratchet.components.data.language_id import UNDECIDED, language_of
from ratchet.components.data.near import shingles
from ratchet.components.data.records import Conversation
from ratchet.components.data.splits import drop_near_duplicates
from ratchet.components.data.statistics import statistics
from ratchet.components.data.words import spaced, words_of
from ratchet.components.pieces.transforms.duplicates import near
from ratchet.components.types import Group, Prompt, Trajectory

CHINESE = (
    "请问如果一个农民有十七只羊，卖掉九只，又买了十二只，那么他现在一共有多少只羊呢？请详细说明计算过程。"
)
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。"
THAI = "ถ้าชาวนามีแกะสิบเจ็ดตัวและขายไปเก้าตัวตอนนี้เขามีแกะเหลืออยู่กี่ตัว"


def talk(key: str, question: str, answer: str) -> Conversation:
    return Conversation(
        key, ({"role": "user", "content": question}, {"role": "assistant", "content": answer})
    )


def count(messages) -> int:
    return len(messages)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("羊，卖掉 a", ["羊，", "卖", "掉", "a"]),
        ("iPhone手机5x", ["iPhone", "手", "机", "5x"]),
        ("วัวดี", ["วั", "ว", "ดี"]),
        ("猫である", ["猫", "で", "あ", "る"]),
        ("한국어 텍스트, naïve café", ["한국어", "텍스트,", "naïve", "café"]),
    ],
)
def test_words_by_hand(text, words):
    assert words_of(text) == words


@given(st.text(st.characters(max_codepoint=0xDFF)))
def test_texts_with_spaces_are_unchanged(text):
    assert spaced(text) == text and words_of(text) == text.split()


def test_shingles_of_a_script_without_spaces():
    assert shingles("羊卖掉了！") == {"羊 卖 掉", "卖 掉 了"}


@pytest.mark.parametrize(("text", "language"), [(CHINESE, "zh"), (JAPANESE, "ja"), (THAI, "th")])
def test_language_is_decided(text, language):
    assert language_of(text) == language and language_of(text[:4]) == UNDECIDED


@pytest.mark.parametrize("text", [CHINESE, JAPANESE, THAI])
def test_near_duplicates_and_copies_of_questions_are_found(text):
    one, other = talk("one", text, text), talk("other", text, f"{text}{text[-1]}")
    assert [d.id for d in near([one, other], count).dropped] == ["other"]
    assert [d.id for d in drop_near_duplicates({"evaluate": [one], "sft": [other]}, 0.8)[1]] == ["other"]
    assert [d.id for d in decontaminate({"evaluate": [one], "sft": [other]}, [], 13)[1]] == ["other"]
    splits = {
        name: [Group(Prompt(r.id, r.messages[:1]), (Trajectory(r.messages[1:]),))]
        for name, r in (("evaluate", one), ("sft", other))
    }
    table = statistics(splits, count, {})
    assert table["near_duplicate_across_splits"].to_pylist() == [False, True]
    assert len(set(table["language"].to_pylist()) - {UNDECIDED}) == 1
