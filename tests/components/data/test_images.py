"""Images in the rows of data sets: columns and parts of messages become marks and data URLs."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.data.images import url_of, without_images
from ratchet.components.data.parsing import parse
from ratchet.components.text.images import digest_of, images_of, mark_of
from ratchet.components.types import Group, Prompt, Trajectory


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("L", (4, 4), value).save(file, "PNG")
    return file.getvalue()


def url(value: int) -> str:
    return "data:image/png;base64," + base64.b64encode(png(value)).decode()


A, B = url(1), url(2)
MARKS = mark_of(A), mark_of(B)


TWO, ONE = f"{MARKS[0]}\n{MARKS[1]}\nWhich?", f"{MARKS[0]}\nWhich?"
TEXT = {"type": "text", "text": "Which?"}
LAYOUTS = (
    ({"prompt": "<image> left of <image>?", "images": [A, B]}, f"{MARKS[0]} left of {MARKS[1]}?"),
    ({"prompt": "Which?", "images": [{"bytes": png(1)}, {"bytes": png(2)}]}, TWO),
    ({"prompt": "Which?", "image": png(1)}, ONE),
    ({"prompt": "Which?", "images": [], "image": png(1)}, ONE),
    (
        {
            "prompt": [{"role": "system", "content": "Look."}, {"role": "user", "content": "Which?"}],
            "image": A,
        },
        ONE,
    ),
    ({"messages": [{"role": "user", "content": [{"type": "image"}, TEXT]}], "images": [A]}, ONE),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": A}}, TEXT]}]},
        ONE,
    ),
    (
        {
            "conversations": [
                {"from": "human", "value": "<image>\nWhich?"},
                {"from": "gpt", "value": "One."},
            ],
            "image": A,
        },
        ONE,
    ),
)


@pytest.mark.parametrize(("row", "content"), LAYOUTS)
def test_images_of_every_layout_become_marks(row, content: str, tmp_path: Path) -> None:
    pd.DataFrame([row]).to_parquet(tmp_path / "rows.parquet")
    (record,) = parse(tmp_path / "rows.parquet").kept
    (user,) = [m for m in record.messages if m["role"] == "user"]
    assert user["content"] == content
    shown = [u for u, mark in zip((A, B), MARKS, strict=True) if mark in content]
    assert record.inputs == {"images": {digest_of(u): u for u in shown}}


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "<image>?", "images": [A, B]}, "1 times <image> for 2 images"),
        ({"prompt": "Which?", "image": "https://example.org/a.png"}, "must be in the data"),
        ({"prompt": "Which?", "image": b"\x89PNG broken"}, "not an image"),
        ({"text": "no prompt", "image": A}, "no prompt"),
    ],
)
def test_unusable_images_drop_the_row_with_the_reason(row, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        without_images(row)


def test_rows_of_text_are_unchanged() -> None:
    row = {
        "prompt": "What is <image> in HTML?",
        "meta": {"a": 1},
        "turns": [{"role": "user", "content": "x"}],
    }
    found, images = without_images(row)
    assert found == row and images == {}
    assert url_of(png(1)) == A == url_of(A) == url_of({"bytes": png(1)})


def test_groups_on_disk_keep_the_images_of_their_prompts(tmp_path: Path) -> None:
    prompt = Prompt("p", ({"role": "user", "content": MARKS[0]},), inputs={"images": {digest_of(A): A}})
    paths = tuple(Trajectory(({"role": "assistant", "content": str(i)},)) for i in range(3))
    groups = [Group(prompt, paths), Group(Prompt("q", prompt.messages), ())]
    assert [g.prompt for g in read_groups(write_groups(tmp_path / "g.parquet", groups))] == [
        g.prompt for g in groups
    ]
    assert images_of(read_groups(tmp_path / "g.parquet")[0].prompt) == (A,)
    write_groups(tmp_path / "one.parquet", [Group(prompt, paths[:1])])
    assert parse(tmp_path / "one.parquet").kept[0].inputs == prompt.inputs
