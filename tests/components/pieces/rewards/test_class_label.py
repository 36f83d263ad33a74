"""The text in the answer tag, else the whole text; or the whole text alone."""

from __future__ import annotations

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def test_the_answer_tag_or_the_whole_text_is_compared() -> None:
    """A word that merely occurs does not count, nor does an empty answer, nor a second tag."""
    texts = {
        "<think>5 4</think><answer> Nine </answer>": 1.0,
        "nine\n": 1.0,
        "<answer>nine</answer> or <answer>six</answer>": 1.0,
        "<answer>six</answer> or <answer>nine</answer>": 0.0,
        "<answer></answer>": 0.0,
        "It is nine": 0.0,
        "ninety": 0.0,
        "": 0.0,
    }
    rows = tuple(Trajectory((Message(role="assistant", content=text),)) for text in texts)
    groups = [
        Group(Prompt("a", (), "nine"), rows),
        Group(Prompt("b", (), None), rows[:1]),
        Group(Prompt("c", (), " NINE"), rows[1:2]),
    ]
    made = build("annotate", {"name": "rewards.class_label"})(groups, Context())
    assert list(made["reward.class_label"][0]) == [*texts.values()]
    assert list(made["reward.class_label"][1]) == [None], "no answer to compare with is a failed reward"
    assert list(made["reward.class_label"][2]) == [1.0], "case and surrounding whitespace of the label"


def test_only_the_bare_label_counts() -> None:
    texts = {"nine": 1.0, "Nine": 0.0, "nine\n": 0.0, "<answer>nine</answer>": 0.0, "": 0.0}
    rows = tuple(Trajectory((Message(role="assistant", content=text),)) for text in texts)
    groups = [Group(Prompt("a", (), "nine"), rows), Group(Prompt("b", (), None), rows[:1])]
    made = build("annotate", {"name": "rewards.class_label.bare_class_label"})(groups, Context())
    assert list(made["reward.bare_class_label"][0]) == [*texts.values()]
    assert list(made["reward.bare_class_label"][1]) == [None]
