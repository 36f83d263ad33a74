"""Files that Label Studio's server 1.23.2 and Argilla's client 2.8.0 wrote, read; and what they took of ours.

`exports/sent.*`: our export of `ITEMS` and `SENT`, imported into Label Studio by user 1 over its HTTP
interface, and then annotated further by users 1 to 3. `exports/made.*`: a project like its template for
human preferences, with texts and names of its own. Both as JSON, JSON_MIN and CSV.

`exports/argilla-sent.*`: our export of the same, read by the client, with a response of user `ANN` to the
item i4 added. `argilla-made.*`: records with a chat field, a label question with a draft and a discarded
response, and a text question. `argilla-ranked.*`: a ranking of three answers. Each nested and flattened.
"""

import json
import shutil
from pathlib import Path

import pytest

from ratchet.components.errors import DataError
from ratchet.components.labels.exchange import export_labels, import_labels
from ratchet.components.labels.labels import Item, Label

EXPORTS = Path(__file__).parent / "exports"
PRIME = [{"role": "user", "content": "Name a prime number."}]
ITEMS = [
    Item(
        "i1",
        [{"role": "system", "content": "be kind"}, {"role": "user", "content": 'wie geht’s?\n"so"'}],
        ["gut, danke", "schlecht\n\nund dir?"],
        planted=0,
        prompt_id="p1",
        source="web",
        answer="gut, danke",
    ),
    Item("i2", PRIME, ["Seven is prime.", "Nine, <b>of course</b>."], round=2, policy="w1", prompt_id="p2"),
    Item(
        "i3", PRIME, ["Seven is prime.", "Nine, <b>of course</b>."], repeat_of="i2", round=2, policy="w1",
        prompt_id="p2",
    ),
    Item("i4", [{"role": "user", "content": "Say nothing."}], ["Nothing.", "…"], prompt_id="p4"),
    Item("i5", [{"role": "user", "content": "Count to three."}], ["1, 2, 3", "3, 2, 1"], prompt_id="p5"),
]  # fmt: skip
SENT = [
    Label("i1", "amber", 0, "choice", [1, 0], 12.5, "kinder", {"helpful": 1, "honest": -1},
          "2026-01-01T10:00:00+00:00"),
    Label("i1", "birch", None, "tie", [0, 1], 3.25, time="2026-01-01T10:01:00+00:00"),
    Label("i2", "amber", None, "both_bad", [0, 1], 7.0, "neither", time="2026-01-01T10:02:00+00:00"),
    Label("i3", "amber", None, "skip", [1, 0], 1.0, time="2026-01-01T10:03:00+00:00"),
]  # fmt: skip


def told(labels: list[Label]) -> set[tuple]:
    return {(one.item, one.annotator, one.verdict, one.choice, one.seconds, one.reason) for one in labels}


THERE = {
    ("i1", "annotator-2", "choice", 1, 8.25, "shorter\nand\nkind"),
    ("i4", "annotator-2", "tie", None, 4.0, ""),
    ("i4", "annotator-3", "choice", 0, 6.5, ""),
    ("i5", "annotator-3", "skip", None, 2.0, ""),
    ("i5", "annotator-1", "both_bad", None, 9.0, "neither counts"),
}


def test_our_export_comes_back_from_label_studio_with_the_labels_made_there() -> None:
    items, labels = import_labels(EXPORTS / "sent.json")
    assert items == ITEMS
    ours = [one for one in labels if one.annotator in ("amber", "birch")]
    assert ours == SENT, "with pseudonyms, times, orders and aspects, which Label Studio does not know"
    assert told(labels) - told(SENT) == THERE
    assert all(one.time.startswith("2026-11-25T22:17") for one in labels if one not in SENT)


@pytest.mark.parametrize("name", ["sent.min.json", "sent.csv"])
def test_rows_have_everything_but_skips_and_pseudonyms(name: str) -> None:
    items, labels = import_labels(EXPORTS / name)
    assert items == [one for one in ITEMS if one.id != "i3"], "only skipped there"
    sent = {(one[0], "annotator-1", *one[2:]) for one in told(SENT)}
    assert told(labels) == {one for one in sent | THERE if one[2] != "skip"}


MADE = {
    ("A", "annotator-2", "choice", 0, 5.5, "correct"),
    ("A", "annotator-3", "tie", None, 3.0, ""),
    ("B", "annotator-2", "choice", 1, 2.5, ""),
    ("B", "annotator-3", "skip", None, 1.5, ""),
    ("C", "annotator-1", "choice", 0, 9.577, ""),  # clicked in its page, the others over HTTP
}


@pytest.mark.parametrize("name", ["made.json", "made.min.json", "made.csv"])
def test_a_project_of_another_is_read(name: str) -> None:
    """With names, texts that look like JSON, and a tie called "Tie" of its own."""
    items, labels = import_labels(EXPORTS / name)
    assert [(one.prompt[0]["content"], list(one.answers)) for one in items] == [
        ("Why is the sky blue?", ["Rayleigh scattering.", 'It, "is"\nnot.']),
        ("[1, 2]: what is next?", ["3", "[3]"]),
        ("Tell a joke.", ["Knock, knock.", "No."]),
    ]
    ids = {items[0].id: "A", items[1].id: "B", items[2].id: "C"}
    assert {(ids[one[0]], *one[1:]) for one in told(labels)} == {
        one for one in MADE if name == "made.json" or one[2] != "skip"
    }


def test_an_export_names_no_user_and_has_its_own_data_where_an_import_keeps_it(tmp_path: Path) -> None:
    """The server refused `completed_by` of users that it does not have, and dropped unknown keys."""
    file = export_labels(tmp_path / "x.json", ITEMS, SENT, "label_studio")
    known = {"was_cancelled", "lead_time", "created_at", "result"}
    for task in json.loads(file.read_text()):
        for annotation in task["annotations"]:
            assert set(annotation) == known and "ratchet" in annotation["result"][0]["meta"]


def test_rows_that_say_nothing_are_a_clear_error(tmp_path: Path) -> None:
    rows = json.loads((EXPORTS / "made.min.json").read_text())
    del rows[1]["comparison"]
    (tmp_path / "x.json").write_text(json.dumps(rows))
    with pytest.raises(DataError, match=r"x\.json, task \d+: .*annotator-2.*no pairwise result"):
        import_labels(tmp_path / "x.json")
    shutil.copy(EXPORTS / "made.csv", tmp_path / "x.csv")
    text = (tmp_path / "x.csv").read_text().replace('"answer2"', '"other"', 1)
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(DataError, match=r"x\.csv, task \d+: expected two or more fields"):
        import_labels(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text("prompt,answer1\na,b\n")
    with pytest.raises(DataError, match="annotation_id"):
        import_labels(tmp_path / "x.csv")


ANN, BEN, CLEO = (
    "6af613b6-569c-5c22-9c37-2ed93f31d3af",
    "b04965e6-a9bb-591f-8f8a-1adcb2c8dc39",
    "4b166dbe-d99d-5091-abdd-95b83330ed3a",
)


def responses(name: str) -> list[tuple]:
    _, labels = import_labels(EXPORTS / name)
    return [(one.item, one.annotator, one.choice, one.verdict, one.reason) for one in labels]


@pytest.mark.parametrize("name", ["argilla-sent.json", "argilla-sent.flat.json"])
def test_our_export_comes_back_from_argilla_without_loss(name: str) -> None:
    items, labels = import_labels(EXPORTS / name)
    assert items == ITEMS
    assert labels == [*SENT, Label("i4", ANN, 1, "choice", [0, 1], 0.0)]


RESPONSES = [
    ("m1", ANN, 0, "choice", "correct"),
    ("m1", BEN, None, "tie", ""),
    ("m2", BEN, None, "both_bad", ""),
]


def test_flattened_records_say_which_responses_count() -> None:
    assert responses("argilla-made.flat.json") == [*RESPONSES, ("m2", CLEO, None, "skip", "")]


def test_nested_records_do_not_tell_a_draft_or_a_discarded_response_from_others() -> None:
    found = set(responses("argilla-made.json")) - set(RESPONSES)
    assert found == {("m1", CLEO, 1, "choice", ""), ("m2", CLEO, 0, "choice", "")}


@pytest.mark.parametrize("name", ["argilla-ranked.json", "argilla-ranked.flat.json"])
def test_a_ranking_is_a_choice_or_a_tie_for_the_first_place(name: str) -> None:
    assert responses(name) == [("r1", ANN, 0, "choice", ""), ("r1", BEN, None, "tie", "")]


def test_every_fixture_is_read() -> None:
    for file in EXPORTS.iterdir():
        assert import_labels(file)[0]
