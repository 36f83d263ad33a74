"""Labels in and out of files: what is written is read back, foreign files, errors of foreign layouts."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from ratchet.components.errors import DataError, SourceError
from ratchet.components.labels.exchange import LAYOUTS, export_labels, import_labels
from ratchet.components.labels.labels import Item, Label
from ratchet.components.labels.layouts.common import Names, pseudonym

PROMPT = [{"role": "system", "content": "be kind"}, {"role": "user", "content": 'wie geht’s?\n"so"'}]
ITEMS = [
    Item("i1", PROMPT, ["gut", "schlecht\n\u2028x"], planted=0, prompt_id="p", source="s", answer="gut"),
    Item("i2", PROMPT, ["a", "b"], round=2, policy="w1"),
    Item("i3", PROMPT, ["a", "b"], repeat_of="i2"),
    Item("i4", PROMPT, ["nobody", "saw this"]),
]
LABELS = [
    Label(
        "i1",
        "amber",
        0,
        "choice",
        [1, 0],
        12.5,
        "kinder",
        {"helpful": 1, "honest": -1},
        "2026-01-01T10:00:00+00:00",
    ),
    Label("i1", "birch", None, "tie", [0, 1], 3.25, time="2026-01-01T10:01:00+00:00"),
    Label("i2", "amber", None, "both_bad", [0, 1], 7.0, "neither"),
    Label("i3", "amber", None, "skip", [1, 0], 1.0),
    Label("i3", "birch", 1, "choice", [1, 0], 2.0),
]
SUFFIX = {"jsonl": ".jsonl", "parquet": ".parquet"}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("named", [True, False])
def test_what_is_exported_is_imported(layout, named: bool, tmp_path: Path) -> None:
    path = export_labels(tmp_path / f"labels{SUFFIX.get(layout, '.json')}", ITEMS, LABELS, layout)
    items, labels = import_labels(path, layout if named else None)
    assert items == ITEMS
    assert sorted(labels, key=str) == sorted(LABELS, key=str)
    assert not [one.name for one in tmp_path.iterdir() if one != path], "no partial file is left"


def test_items_of_three_answers_fit_every_layout_but_label_studio(tmp_path: Path) -> None:
    item, label = Item("t", PROMPT, ["a", "b", "c"]), Label("t", "amber", 2, "choice", [2, 0, 1], 1.0)
    for layout in ("jsonl", "parquet", "argilla"):
        path = export_labels(tmp_path / f"t{SUFFIX.get(layout, '.json')}", [item], [label], layout)
        assert import_labels(path) == ([item], [label])
    with pytest.raises(DataError, match="two answers, got 3"):
        export_labels(tmp_path / "t.json", [item], [label], "label_studio")


def test_parquet_is_a_table_that_pandas_reads(tmp_path: Path) -> None:
    frame = pd.read_parquet(export_labels(tmp_path / "l.parquet", ITEMS, LABELS))
    assert list(frame["annotator"].dropna()) == ["amber", "birch", "amber", "amber", "birch"]
    assert frame["seconds"].sum() == 25.75 and len(frame) == 6


ARGILLA = {  # as Argilla 2 writes a record of a data set with a chat field and a label question
    "id": "0a1b",
    "fields": {"prompt": [{"role": "user", "content": "why?"}], "response_1": "so", "response_2": "no"},
    "metadata": {"source": "web"},
    "suggestions": {"better": {"value": "response_1", "score": 0.7, "agent": "gpt"}},
    "responses": {
        "better": [
            {"value": "response_2", "user_id": "5c1b7c0e-3a6f-4a43-8f0e-6d1f0a9f2b11"},
            {"value": "tie", "user_id": "9d0a4b2e-7a1f-4b7e-9a53-2f1d3c4b5a66"},
        ]
    },
    "vectors": {},
    "_server_id": "d2b5c1f4-1111-4222-8333-444455556666",
}


def written(tmp_path: Path, content: object, name: str = "x.json") -> Path:
    (tmp_path / name).write_text(content if isinstance(content, str) else json.dumps(content))
    return tmp_path / name


def test_argilla_records_of_others_are_imported(tmp_path: Path) -> None:
    items, labels = import_labels(written(tmp_path, [ARGILLA]))
    assert items == [Item("0a1b", [{"role": "user", "content": "why?"}], ["so", "no"])]
    assert [(one.choice, one.verdict, one.seconds) for one in labels] == [
        (1, "choice", 0.0),
        (None, "tie", 0.0),
    ]
    assert labels[0].annotator == "5c1b7c0e-3a6f-4a43-8f0e-6d1f0a9f2b11"


def test_argilla_rankings_and_states_are_read(tmp_path: Path) -> None:
    def ranked(first: int, second: int) -> list[dict]:
        return [{"value": "answer-1", "rank": first}, {"value": "answer-2", "rank": second}]

    record = {
        "fields": {"instruction": "why?", "answer-1": "so", "answer-2": "no", "context": "long"},
        "responses": {
            "rank": [
                {"value": ranked(2, 1), "user_id": "1", "status": "submitted"},
                {"value": ranked(1, 1), "user_id": "2"},
                {"value": None, "user_id": "3", "status": "discarded"},
                {"value": ranked(1, 2), "user_id": "4", "status": "draft"},
            ]
        },
    }
    _, labels = import_labels(written(tmp_path, [record]), "argilla")
    assert [(one.annotator, one.choice, one.verdict) for one in labels] == [
        ("annotator-1", 1, "choice"),
        ("annotator-2", None, "tie"),
        ("annotator-3", None, "skip"),
    ]


FLAT = [  # as Argilla 2's `to_list(flatten=True)` gives records; a key that one record lacks is None there
    {
        "id": "m1",
        "_server_id": None,
        "prompt": [{"role": "user", "content": "why?"}],
        "response_1": "so",
        "response_2": "no",
        "topic": "physics",
        "v": [0.1, 0.2],
        "better.responses": ["response_2", "tie", "response_1", "response_1"],
        "better.responses.users": ["1", "2", "3", "4"],
        "better.responses.status": ["submitted", "submitted", "draft", "discarded"],
        "reason.responses": ["shorter"],
        "reason.responses.users": ["1"],
        "reason.responses.status": ["submitted"],
        "better.suggestion": "response_1",
        "better.suggestion.score": 0.7,
        "better.suggestion.agent": "gpt",
    },
    {"id": "m2", "prompt": [{"role": "user", "content": "and?"}], "response_1": "a", "response_2": "b"}
    | dict.fromkeys(("topic", "v", "better.responses", "better.responses.users", "reason.responses")),
]


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_flattened_argilla_records_say_which_responses_count(suffix: str, tmp_path: Path) -> None:
    if suffix == "json":
        written(tmp_path, FLAT)
    else:
        pa.Table.from_pylist(FLAT).to_pandas().to_parquet(tmp_path / "x.parquet")
    items, labels = import_labels(tmp_path / f"x.{suffix}")
    assert [(one.id, list(one.answers)) for one in items] == [("m1", ["so", "no"]), ("m2", ["a", "b"])]
    assert [(one.annotator, one.choice, one.verdict, one.reason) for one in labels] == [
        ("annotator-1", 1, "choice", "shorter"),
        ("annotator-2", None, "tie", ""),
        ("annotator-4", None, "skip", ""),
    ]


STUDIO = {  # as Label Studio exports a task of its template "Pairwise Classification"
    "id": 7,
    "data": {"prompt": "why?", "text1": "so", "text2": "no"},
    "annotations": [
        {
            "id": 11,
            "completed_by": {"id": 3, "email": "someone@example.org", "first_name": "Some"},
            "result": [
                {
                    "id": "a",
                    "from_name": "pw",
                    "to_name": "text1,text2",
                    "type": "pairwise",
                    "value": {"selected": "right"},
                }
            ],
            "was_cancelled": False,
            "lead_time": 4.5,
            "created_at": "2026-01-02T00:00:00Z",
        },
        {"id": 12, "completed_by": "who@example.org", "result": [], "was_cancelled": True, "lead_time": None},
    ],
    "predictions": [],
}


def test_label_studio_exports_of_others_are_imported_without_personal_data(tmp_path: Path) -> None:
    items, labels = import_labels(written(tmp_path, [STUDIO]))
    assert items == [Item("7", [{"role": "user", "content": "why?"}], ["so", "no"])]
    first, second = labels
    assert (first.choice, first.seconds, first.annotator) == (1, 4.5, "annotator-3")
    assert (second.verdict, second.seconds) == ("skip", 0.0)
    assert "example" not in str(labels) and pseudonym("who@example.org") == second.annotator


def test_label_studio_pairwise_results_besides_the_question_are_aspects(tmp_path: Path) -> None:
    def result(name: str, side: str) -> dict:
        return {"from_name": name, "type": "pairwise", "value": {"selected": side}}

    made = {"completed_by": 1, "result": [result("honest", "left"), result("preference", "right")]}
    _, (label,) = import_labels(written(tmp_path, [STUDIO | {"annotations": [made]}]))
    assert (label.choice, label.aspects) == (1, {"honest": 0})
    _, (label,) = import_labels(tmp_path / "x.json", names=Names(question="honest"))
    assert (label.choice, label.aspects) == (0, {"preference": 1})


def pairwise(side: str) -> dict:
    return {"from_name": "preference", "type": "pairwise", "value": {"selected": side}}


def ticked(name: str, choice: str) -> dict:
    return {"from_name": name, "type": "choices", "value": {"choices": [choice]}}


@pytest.mark.parametrize(
    ("made", "verdict", "choice"),
    [
        ({"result": [pairwise("left"), ticked("length", "equal")]}, "choice", 0),
        ({"result": [pairwise("left"), ticked("verdict", "tie")]}, "tie", None),
        ({"result": [ticked("same", "Tie")]}, "tie", None),
        ({"result": [ticked("length", "equal"), ticked("verdict", "both_bad")]}, "both_bad", None),
        ({"result": [ticked("verdict", "tie")], "was_cancelled": True}, "skip", None),
        ({"result": [pairwise("left")], "was_cancelled": True}, "skip", None),
    ],
)
def test_other_choices_of_label_studio_do_not_replace_the_preference(
    made: dict, verdict: str, choice: int | None, tmp_path: Path
) -> None:
    _, (label,) = import_labels(written(tmp_path, [STUDIO | {"annotations": [made]}]))
    assert (label.verdict, label.choice) == (verdict, choice)


def test_answers_in_a_csv_file_are_texts_whatever_they_look_like(tmp_path: Path) -> None:
    text, pair = '{"text": "a"}', '[{"selected": "left"}]'
    row = {"id": 1, "prompt": text, "answer1": text, "answer2": pair, "preference": pair, "annotator": 1}
    row |= {"annotation_id": 1, "created_at": "", "updated_at": "", "lead_time": 1.0}
    pd.DataFrame([row]).to_csv(tmp_path / "x.csv", index=False)
    (item,), (label,) = import_labels(tmp_path / "x.csv")
    assert (item.prompt[0]["content"], list(item.answers), label.choice) == (text, [text, pair], 0)


def test_a_file_may_begin_with_a_byte_order_mark_and_have_long_cells(tmp_path: Path) -> None:
    row = {"id": 1, "prompt": "why?", "answer1": "x" * 200_000, "answer2": "no", "annotator": 1}
    row |= {"annotation_id": 1, "preference": '[{"selected": "left"}]', "lead_time": 1.0}
    row |= {"created_at": "", "updated_at": ""}
    pd.DataFrame([row]).to_csv(tmp_path / "x.csv", index=False, encoding="utf-8-sig")
    (item,), (label,) = import_labels(tmp_path / "x.csv")
    assert (len(item.answers[0]), label.choice) == (200_000, 0)
    (tmp_path / "x.json").write_text(json.dumps([ARGILLA]), encoding="utf-8-sig")
    assert import_labels(tmp_path / "x.json")[0][0].id == "0a1b"


def test_fields_of_other_names_are_named(tmp_path: Path) -> None:
    record = ARGILLA | {"fields": {"q": "why?", "one": "so", "two": "no"}, "responses": {}}
    with pytest.raises(DataError, match="'q', 'one', 'two'"):
        import_labels(written(tmp_path, [record]))
    items, _ = import_labels(written(tmp_path, [record]), names=Names("q", ["two", "one"]))
    assert items[0].answers == ["no", "so"]


@pytest.mark.parametrize(
    ("content", "layout", "said"),
    [
        ("{", "argilla", "not valid JSON"),
        ({"a": 1}, "label_studio", "a JSON list of objects, got dict"),
        ([{"x": 1}], None, "neither Argilla's records"),
        ([{"prompt": "why?", "preference.responses": ["a"]}], None, "two or more fields"),
        ([{"id": 1, "text1": "a", "text2": "b", "pw": "left", "annotator": 1}], None, "annotation_id"),
        ([STUDIO], "argilla", "no 'fields', 'responses'"),
        ([ARGILLA], "label_studio", "no 'data', 'annotations'"),
        (
            [ARGILLA | {"responses": {"better": [{"value": "maybe", "user_id": "1"}]}}],
            None,
            "'maybe', expected one",
        ),
        ([ARGILLA | {"responses": {"a": [{}], "b": [{}]}}], None, "which question"),
        ([STUDIO | {"annotations": [{"completed_by": 1, "result": []}]}], None, "no pairwise result"),
        ([STUDIO | {"data": {"prompt": "x", "text1": "a"}}], None, "two or more fields"),
        ([STUDIO | {"data": {"prompt": 5, "text1": "a", "text2": "b"}}], None, "a text or as messages"),
    ],
)
def test_a_foreign_layout_is_a_clear_error(content, layout, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=said) as error:
        import_labels(written(tmp_path, content), layout)
    assert "x.json" in str(error.value)


def test_foreign_rows_are_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"row 1: .*'item', 'answers'"):
        import_labels(written(tmp_path, '{"prompt": "x", "annotator": 1}\n', "x.jsonl"))
    with pytest.raises(DataError, match="line 2: "):
        import_labels(written(tmp_path, '{}\n{"a"\n', "x.jsonl"))
    with pytest.raises(DataError, match=r"x\.parquet"):
        import_labels(written(tmp_path, "nothing", "x.parquet"))
    pd.DataFrame({"a": [1]}).to_parquet(tmp_path / "y.parquet")
    with pytest.raises(DataError, match="'a'"):
        import_labels(tmp_path / "y.parquet")
    with pytest.raises(SourceError, match=r"absent\.jsonl"):
        import_labels(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="which layout"):
        export_labels(tmp_path / "x.json", ITEMS, LABELS)
    with pytest.raises(DataError, match="no item"):
        export_labels(tmp_path / "x.jsonl", ITEMS[:1], LABELS)


def test_rows_that_disagree_on_an_item_are_refused(tmp_path: Path) -> None:
    path = export_labels(tmp_path / "x.jsonl", ITEMS, LABELS)
    path.write_text(path.read_text().replace("gut", "other", 1))
    with pytest.raises(DataError, match="row 2: item i1"):
        import_labels(path)
