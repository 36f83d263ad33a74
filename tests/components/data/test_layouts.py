"""Parsers of published layouts on samples in the published format; errors for unknown layouts."""

import gzip
import json
import re

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ratchet.components.data.builders import conversation_groups, prompt_groups
from ratchet.components.data.groups import write_groups
from ratchet.components.data.pair_builders import preference_pairs
from ratchet.components.data.parsing import parse
from ratchet.components.data.records import FilterResult, Rejected
from ratchet.components.errors import DataError, RecipeError
from ratchet.components.piece import catalogue
from ratchet.components.recipes.sections import Contexts, Conversations, Pairs
from ratchet.components.types import Group, Prompt, Trajectory


def words(messages):
    return sum(1 + len(m["content"].split()) for m in messages)


def written(folder, *rows, name="rows.jsonl"):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def one(folder, row, parser="auto", columns=None):
    sifted = parse(written(folder, row), parser, columns)
    (record,) = sifted.kept
    return record


def plain(messages):
    return [(m["role"], m["content"]) for m in messages]


CAPITAL = [("user", "What is the capital of France?"), ("assistant", "Paris.")]
SAMPLES = {
    "messages": (
        {
            "messages": [
                {"role": "user", "content": "What is the capital of France?"},
                {"role": "assistant", "content": "Paris."},
            ]
        },
        CAPITAL,
    ),
    "messages, developer and parts": (
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Hi."}, {"type": "input_text", "text": "You?"}],
                },
                {"role": "assistant", "content": None, "refusal": "I cannot say."},
            ]
        },
        [("system", "Be brief."), ("user", "Hi.\nYou?"), ("assistant", "I cannot say.")],
    ),
    "messages, UltraChat": (
        {
            "prompt": "Hi.",
            "prompt_id": "f0e37e9f7800261167ce91143f98f511f768847236f133f2d0aed60b444ebe57",
            "messages": [{"content": "Hi.", "role": "user"}, {"content": "Hello.", "role": "assistant"}],
        },
        [("user", "Hi."), ("assistant", "Hello.")],
    ),
    "sharegpt": (
        {
            "id": "QWJhYvA_0",
            "conversations": [
                {"from": "system", "value": "Be kind."},
                {"from": "human", "value": "What is the capital of France?"},
                {"from": "gpt", "value": "Paris."},
            ],
        },
        [("system", "Be kind."), *CAPITAL],
    ),
    "sharegpt, calls": (
        {
            "conversations": [
                {"from": "human", "value": "Weather?"},
                {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Rome"}}'},
                {"from": "observation", "value": '{"celsius": 31}'},
                {"from": "gpt", "value": "31 degrees."},
            ],
            "tools": "[]",
        },
        [
            ("user", "Weather?"),
            ("assistant", '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
            ("tool", '{"celsius": 31}'),
            ("assistant", "31 degrees."),
        ],
    ),
    "alpaca": (
        {
            "instruction": "Give three tips for staying healthy.",
            "input": "",
            "output": "1. Eat.",
            "text": "Below is an instruction ...",
        },
        [("user", "Give three tips for staying healthy."), ("assistant", "1. Eat.")],
    ),
    "alpaca, input and history": (
        {
            "instruction": "Translate.",
            "input": "Haus",
            "output": "house",
            "system": "A dictionary.",
            "history": [["Translate.\nHund", "dog"]],
        },
        [
            ("system", "A dictionary."),
            ("user", "Translate.\nHund"),
            ("assistant", "dog"),
            ("user", "Translate.\n\nHaus"),
            ("assistant", "house"),
        ],
    ),
    "completion": ({"prompt": "What is the capital of France?", "completion": "Paris."}, CAPITAL),
    "completion, messages": (
        {
            "prompt": [{"role": "user", "content": "What is the capital of France?"}],
            "completion": [{"role": "assistant", "content": "Paris."}],
        },
        CAPITAL,
    ),
    "response": ({"prompt": "What is the capital of France?", "response": "Paris."}, CAPITAL),
    "text, Guanaco": (
        {
            "text": "### Human: What is the capital of France?### Assistant: Paris.### Human: Thanks.### "
            "Assistant: Welcome."
        },
        [*CAPITAL, ("user", "Thanks."), ("assistant", "Welcome.")],
    ),
    "text, ChatML": (
        {
            "text": "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhat is the capital of "
            "France?<|im_end|>\n"
            "<|im_start|>assistant\nParis.<|im_end|>\n"
        },
        [("system", "Be kind."), *CAPITAL],
    ),
}


NUMBERS = {
    "completion": ({"prompt": 7, "completion": 72}, ("7", "72")),
    "response": ({"prompt": "6 * 12?", "response": 72.5}, ("6 * 12?", "72.5")),
    "messages": (
        {"messages": [{"role": "user", "content": 7}, {"role": "assistant", "content": 72}]},
        ("7", "72"),
    ),
    "sharegpt": (
        {"conversations": [{"from": "human", "value": 7}, {"from": "gpt", "value": 72}]},
        ("7", "72"),
    ),
    "alpaca": ({"instruction": 7, "input": 8, "output": 72}, ("7\n\n8", "72")),
    "alpaca, history": (
        {"instruction": "a", "output": "b", "history": [[1, 2]]},
        ("1", "2", "a", "b"),
    ),
    "helpsteer": ({"prompt": 7, "response": 72, "helpfulness": 4}, ("7", "72")),
    "ultrafeedback": (
        {
            "instruction": 7,
            "completions": [
                {"response": 72, "overall_score": 9},
                {"response": 73, "overall_score": 1},
            ],
        },
        ("7", "72"),
    ),
    "preference": ({"prompt": 7, "chosen": 72, "rejected": 73}, ("7", "72")),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_are_read_as_their_text(tmp_path, name):
    row, expected = NUMBERS[name]
    assert tuple(m["content"] for m in one(tmp_path, row).messages) == expected


@pytest.mark.parametrize("name", NUMBERS)
def test_what_is_no_text_is_dropped_with_a_reason(tmp_path, name):
    row = json.loads(re.sub(r"(: |\[)(7|1)(?=[,}])", r"\1true", json.dumps(NUMBERS[name][0])))
    row = {**row, "response": {}} if name == "response" else row
    with pytest.raises(DataError, match=r"expected a text|needs a text|needs a role") as refused:
        one(tmp_path, row)
    assert "broken structure" not in str(refused.value)


def test_a_score_that_is_not_available_is_no_score(tmp_path):
    """UltraFeedback writes N/A where a model gave no rating."""
    answers = [("a", "N/A"), ("b", 7.0), ("c", "3.0"), ("d", None)]
    record = one(
        tmp_path,
        {"instruction": "Hi.", "completions": [{"response": t, "overall_score": s} for t, s in answers]},
    )
    assert (record.messages[-1]["content"], record.rejected[-1]["content"]) == ("b", "c")
    assert record.meta == {"margin": 4.0}
    pair = {"prompt": "Hi.", "chosen": "Hello.", "rejected": "No."}
    assert one(tmp_path, {**pair, "score_chosen": "n/a", "score_rejected": 1}).meta == {}
    assert one(tmp_path, {**pair, "margin": "NA"}).meta == {}
    rated = {"prompt": "Hi.", "completion": "Hello.", "rating": "N/A", "ratings": {"a": 4, "b": "N/A"}}
    assert (one(tmp_path, rated).rating, one(tmp_path, rated).ratings) == (None, {"a": 4.0})
    assert one(tmp_path, {"prompt": "Hi.", "response": "Hello.", "helpfulness": "N/A"}).rating is None


@pytest.mark.parametrize("name", SAMPLES)
def test_conversations_of_each_layout(tmp_path, name):
    row, expected = SAMPLES[name]
    record = one(tmp_path, row)
    assert plain(record.messages) == expected
    assert one(tmp_path, row, name.partition(",")[0]) == record
    (group,) = conversation_groups([record], words, Conversations(max_tokens=500)).kept
    assert plain((*group.prompt.messages, *group.trajectories[0].messages)) == expected


def test_tool_calls_and_results_are_text_and_the_tools_a_system_message(tmp_path):
    weather = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        {"role": "user", "content": "Weather in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": '{"celsius": 31}'},
        {"role": "assistant", "content": "31 degrees."},
    ]
    record = one(tmp_path, {"messages": messages, "tools": [weather]})
    system, *turns = record.messages
    assert system["role"] == "system" and f"<tools>\n{json.dumps(weather)}\n</tools>" in system["content"]
    assert plain(turns) == [
        ("user", "Weather in Rome?"),
        ("assistant", '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'),
        ("tool", '{"celsius": 31}'),
        ("assistant", "31 degrees."),
    ]


PAIRS = {
    "texts": {"prompt": "Hi.", "chosen": "Hello.", "rejected": "No."},
    "messages": {
        "prompt": [{"role": "user", "content": "Hi."}],
        "chosen": [{"role": "assistant", "content": "Hello."}],
        "rejected": [{"role": "assistant", "content": "No."}],
    },
    "one message each": {
        "prompt": "Hi.",
        "chosen": {"role": "assistant", "content": "Hello."},
        "rejected": {"role": "assistant", "content": "No."},
    },
    "conversations": {
        "chosen": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}],
        "rejected": [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "No."}],
    },
    "UltraFeedback binarized": {
        "prompt": "Hi. ",
        "prompt_id": "1",
        "chosen": [{"content": "Hi.", "role": "user"}, {"content": "Hello.", "role": "assistant"}],
        "rejected": [{"content": "Hi.", "role": "user"}, {"content": "No.", "role": "assistant"}],
        "messages": [{"content": "Hi.", "role": "user"}, {"content": "Hello.", "role": "assistant"}],
        "score_chosen": 8.5,
        "score_rejected": 6.0,
    },
    "HH-RLHF": {
        "chosen": "\n\nHuman: Hi.\n\nAssistant: Hello.",
        "rejected": "\n\nHuman: Hi.\n\nAssistant: No.",
    },
    "HH-RLHF with its prompt apart": {
        "prompt": "\n\nHuman: Hi.\n\nAssistant:",
        "chosen": "Hello.",
        "rejected": "No.",
    },
    "Orca": {"system": "", "question": "Hi.", "chosen": "Hello.", "rejected": "No."},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "Hi."}],
        "chosen": {"from": "gpt", "value": "Hello."},
        "rejected": {"from": "gpt", "value": "No."},
    },
}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_each_layout(tmp_path, name):
    record = one(tmp_path, PAIRS[name])
    (group,) = preference_pairs([record], words, Pairs()).kept
    assert plain(group.prompt.messages) == [("user", "Hi.")]
    assert [plain(path.messages) for path in group.trajectories] == [
        [("assistant", "Hello.")],
        [("assistant", "No.")],
    ]
    assert group.columns == ({"margin": [2.5, 2.5]} if "score_chosen" in PAIRS[name] else {})


def test_a_pair_keeps_the_input_and_history_of_its_instruction(tmp_path):
    """LLaMA-Factory's layout of preferences: Alpaca's columns, with two answers."""
    pair = {"instruction": "Translate.", "chosen": "house", "rejected": "dog"}
    row = {**pair, "input": "Haus", "system": "A dictionary.", "history": [["Translate.\nHund", "dog"]]}
    begun = [
        ("system", "A dictionary."),
        ("user", "Translate.\nHund"),
        ("assistant", "dog"),
        ("user", "Translate.\n\nHaus"),
    ]
    found = one(tmp_path, row)
    assert plain(found.messages) == [*begun, ("assistant", "house")]
    assert plain(found.rejected) == [*begun, ("assistant", "dog")] and found.opening == 4
    assert plain(one(tmp_path, {**pair, "input": ""}).messages)[0] == ("user", "Translate.")


@pytest.mark.parametrize("own", [[], [{"role": "system", "content": "Be kind."}]])
def test_a_pair_of_conversations_has_the_system_message_of_its_row_once(tmp_path, own):
    pair = PAIRS["conversations"]
    row = {name: [*own, *messages] for name, messages in pair.items()} | {"system": "Be kind."}
    found = one(tmp_path, row)
    assert plain(found.messages) == [("system", "Be kind."), ("user", "Hi."), ("assistant", "Hello.")]
    assert plain(found.rejected) == [("system", "Be kind."), ("user", "Hi."), ("assistant", "No.")]


def test_hh_dialogues_are_split_at_the_last_answer(tmp_path):
    start = (
        "\n\nHuman: what are some pranks with a pen i can do?\n\nAssistant: Are you looking for "
        "practical joke ideas?\n\nHuman: yes"
    )
    record = one(
        tmp_path,
        {
            "chosen": f"{start}\n\nAssistant: Hide it.\n\nUnder a book.",
            "rejected": f"{start}\n\nAssistant: Steal one.",
        },
    )
    assert record.opening == 3 and record.messages[:3] == record.rejected[:3]
    assert (
        record.messages[3]["content"] == "Hide it.\n\nUnder a book."
        and record.rejected[3]["content"] == "Steal one."
    )


def test_ultrafeedback_pairs_the_best_with_the_worst(tmp_path):
    row = {
        "source": "sharegpt",
        "instruction": "Name a colour.",
        "models": ["a", "b", "c"],
        "correct_answers": ["None"],
        "completions": [
            {"model": "a", "response": "Green.", "overall_score": 7.0, "fine-grained_score": 4.0},
            {"model": "b", "response": "Blue.", "overall_score": 8.5},
            {"model": "c", "response": "No.", "overall_score": 2.0},
            {"model": "d", "response": "?", "overall_score": None},
        ],
    }
    record = one(tmp_path, row)
    assert (
        plain(record.messages) == [("user", "Name a colour."), ("assistant", "Blue.")]
        and record.rejected[1]["content"] == "No."
    )
    assert record.meta == {"margin": 6.5} and record.source == "sharegpt"
    several = parse(written(tmp_path, row), {"name": "ultrafeedback", "pairs": 2}).kept
    assert [r.rejected[1]["content"] for r in several] == ["No.", "Green."] and len(
        {r.id for r in several}
    ) == 2
    assert len(preference_pairs(several, words, Pairs()).kept) == 2, "several pairs for one prompt"


def test_helpsteer_answers_to_one_prompt_become_pairs(tmp_path):
    def row(response, helpfulness, prompt="What is 1+1?"):
        return {
            "prompt": prompt,
            "response": response,
            "helpfulness": helpfulness,
            "correctness": 4,
            "coherence": 4,
            "complexity": 1,
            "verbosity": 1,
        }

    long = "Hi.<extra_id_1>Assistant\nHello.\n<extra_id_1>User\nMore?"
    records = parse(
        written(
            tmp_path,
            row("2", 4),
            row("3", 0),
            row("two", 4),
            row("Yes.", 3, long),
            row("No.", 1, long),
            row("alone", 2, "?"),
        )
    ).kept
    assert (
        plain(records[3].messages[:3]) == [("user", "Hi."), ("assistant", "Hello."), ("user", "More?")]
        and records[3].opening == 3
    )
    sifted = preference_pairs(records, words, Pairs())
    assert [([p.text for p in g.trajectories], g.columns["margin"]) for g in sifted.kept] == [
        (["2", "3"], [4.0, 4.0]),
        (["Yes.", "No."], [2.0, 2.0]),
    ]
    assert sifted.reasons() == {"no other answer to its prompt is rated lower": 2}


def test_gsm8k_as_published_gives_the_number_and_the_solution(tmp_path):
    row = {
        "question": "Natalia sold clips to 48 friends in April, and half as many in May. How many "
        "altogether?",
        "answer": "She sold 48/2 = <<48/2=24>>24 clips in May.\nAltogether 48+24 = <<48+24=72>>72 "
        "clips.\n#### 72",
    }
    record = one(tmp_path, row)
    assert (
        record.answer == "72"
        and record.messages[1]["content"]
        == "She sold 48/2 = 24 clips in May.\nAltogether 48+24 = 72 clips.\n#### 72"
    )
    (group,) = prompt_groups([record], words, Contexts()).kept
    assert group.prompt.answer == "72" and len(group.prompt.messages) == 1
    assert (
        one(tmp_path, {**row, "prompt": "Solve it."}, {"name": "question"}).messages[0]["content"]
        == row["question"]
    )
    assert (
        "<<48/2=24>>" in one(tmp_path, row, {"name": "question", "annotations": True}).messages[1]["content"]
    )
    assert one(tmp_path, {"prompt": "1+1?", "answer": 2}).answer == "2"
    assert one(tmp_path, {"question": "1+1?", "answer": "so \\boxed{2}"}).messages[1]["role"] == "assistant"


def test_undesirable_answers_are_not_used_for_sft(tmp_path):
    rows = [
        {"prompt": f"q{i}", "completion": f"a{i}", "label": label}
        for i, label in enumerate((True, False, "true", "False", 0, None))
    ]
    records = parse(written(tmp_path, *rows)).kept
    assert [r.label for r in records] == [True, False, True, False, False, None]
    sifted = conversation_groups(records, words, Conversations())
    assert [g.trajectories[0].text for g in sifted.kept] == ["a0", "a2", "a5"] and sifted.reasons() == {
        "its label is false": 3
    }
    assert [len(g.trajectories) for g in prompt_groups(records, words, Contexts()).kept] == [1, 0, 1, 0, 0, 1]
    with pytest.raises(DataError, match=r"label.*7"):
        parse(written(tmp_path, {"prompt": "q", "completion": "a", "label": 7}))


@pytest.mark.parametrize(
    "layout",
    [
        lambda text: {"instruction": text, "output": text},
        lambda text: {"messages": [{"role": role, "content": text} for role in ("user", "assistant")]},
    ],
)
@pytest.mark.parametrize("labels", [(True, False), ("True", " false"), (1, 0), (1.0, 0.0)])
def test_every_layout_reads_every_spelling_of_a_label(tmp_path, layout, labels):
    rows = [{**layout(f"text {label}"), "label": label} for label in labels]
    records = parse(written(tmp_path, *rows)).kept
    assert [r.label for r in records] == [True, False]
    assert len(conversation_groups(records, words, Conversations()).kept) == 1
    good = one(tmp_path, {**layout("text"), "label": "sports"}, columns={"class": "label"})
    assert good.label is None
    with pytest.raises(DataError, match=r"label: expected true or false .*sports.*data\.columns"):
        parse(written(tmp_path, {**layout("text"), "label": "sports"}))


def test_chitchat_turns(tmp_path):
    def turns(*pairs):
        return [[{"text": text, "timestamp": "t", "sender": sender}] for sender, text in pairs]

    rest = {"prompt": "", "ratings": {}, "start": ""}
    data = {
        "good": {
            "messages": turns(("b", "hi"), ("b", "there "), ("a", "hello"), ("b", " "), ("a", "you?")),
            "prompt": "What if pigs could fly?",
            "ratings": {"witty": 1, "upbeat": 2, "interesting": 6},
            "start": "",
        },
        "alone": {"messages": turns(("b", "hi"), ("b", "anyone?")), **rest},
        "crowd": {"messages": turns(("a", "1"), ("b", "2"), ("c", "3")), **rest},
        "broken": {"messages": [[{"text": None, "sender": "a"}]], **rest},
        "no topic": {"messages": turns(("a", "1"), ("b", "2")), **rest},
    }
    path = tmp_path / "dataset.json"
    path.write_text(json.dumps(data))
    sifted = parse(path, "chitchat")
    assert (sifted.kept, sifted.dropped) == (parse(path).kept, parse(path).dropped) and [
        r.id for r in sifted.kept
    ] == ["good", "no topic"]
    good = sifted.kept[0]
    assert plain(good.messages) == [("user", "hi there"), ("assistant", "hello you?")]
    assert good.topic == "What if pigs could fly?" and good.rating == 3.0 and sifted.kept[1].topic is None
    assert sifted.reasons() == {
        "broken structure": 1,
        "has 1 speaker, not two": 1,
        "has 3 speakers, not two": 1,
    }


def test_files_of_every_kind_hold_the_same_rows(tmp_path):
    rows = [
        {"prompt": "caf\u00e9, \u201chi\u201d", "completion": [{"role": "assistant", "content": "a\nb"}]},
        {"prompt": "q", "completion": [{"role": "assistant", "content": "c"}]},
    ]
    written(tmp_path, *rows, name="jsonl/x.jsonl")
    (tmp_path / "gz").mkdir()
    (tmp_path / "gz/x.jsonl.gz").write_bytes(gzip.compress((tmp_path / "jsonl/x.jsonl").read_bytes()))
    for folder in ("json", "csv", "tsv", "parquet", "arrow"):
        (tmp_path / folder).mkdir()
    (tmp_path / "json/x.json").write_text(json.dumps({"version": 1, "data": rows}))
    for kind, comma in {"csv": ",", "tsv": "\t"}.items():
        cells = [["prompt", "completion"], *([row["prompt"], json.dumps(row["completion"])] for row in rows)]
        lines = [comma.join('"' + cell.replace('"', '""') + '"' for cell in line) for line in cells]
        (tmp_path / kind / f"x.{kind}").write_text("\ufeff" + "\r\n".join(lines) + "\r\n", encoding="utf-8")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "parquet/x.parquet")
    table = pa.Table.from_pylist(rows)
    with (
        pa.OSFile(str(tmp_path / "arrow/x.arrow"), "wb") as sink,
        pa.ipc.new_stream(sink, table.schema) as stream,
    ):
        stream.write_table(table)
    for folder in ("arrow", "parquet"):  # as `datasets` saves a folder
        for name in ("dataset_info.json", "state.json"):
            (tmp_path / folder / name).write_text('{"citation": ""}')
    for kind in ("gz", "json", "csv", "tsv", "parquet", "arrow"):
        assert parse(tmp_path / kind).kept == parse(tmp_path / "jsonl").kept, kind
    assert len(parse(tmp_path / "jsonl").kept) == 2


def test_unknown_layout_error_names_the_nearest_layout_and_the_row(tmp_path):
    path = written(tmp_path, {"instruction": "Say hi.", "context": "", "response": "Hi.", "category": "chat"})
    with pytest.raises(DataError) as found:
        parse(path)
    for part in (
        "rows.jsonl, line 1",
        "the columns category, context, instruction, response",
        "the nearest is `alpaca`",
        "of which output is missing",
        '{"instruction": "Say hi.", "context": "", "response": "Hi.", "category": "chat"}',
        "docs/data.md",
    ):
        assert part in str(found.value)
    with pytest.raises(DataError, match=r"data\.columns\.output.*'respons'"):
        parse(path, "auto", {"output": "respons"})
    with pytest.raises(RecipeError, match=r"'alpacca'.*'alpaca'"):
        parse(path, "alpacca")
    assert plain(
        one(
            tmp_path,
            {"instruction": "Say hi.", "context": "Now.", "response": "Hi."},
            columns={"input": "context", "output": "response"},
        ).messages
    ) == [("user", "Say hi.\n\nNow."), ("assistant", "Hi.")]
    assert (
        one(
            tmp_path,
            {"prompt": [{"role": "user", "content": "1+1"}], "reward_model": {"ground_truth": "2"}},
            columns={"answer": "reward_model.ground_truth"},
        ).answer
        == "2"
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": [{"role": "robot", "content": "hi"}]}, "a message needs a role"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "x"}}]}
                ]
            },
            "a part of type 'input_audio'",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": "q"},
                    {"role": "assistant", "content": "a", "weight": 0},
                ]
            },
            "weight 0",
        ),
        ({"messages": [{"role": "user"}]}, "a message needs a text"),
        ({"messages": []}, "expected a text or a list of messages"),
        ({"prompt": "hi", "chosen": "a", "rejected": "a"}, "chosen and rejected are the same"),
        ({"prompt": "hi", "chosen": "a", "rejected": " "}, "the rejected answer is empty"),
        ({"prompt": "hi", "completion": ""}, "the answer is empty"),
        ({"chosen": "a", "rejected": "b"}, "`prompt` is missing"),
        (
            {
                "chosen": "\n\nHuman: a\n\nAssistant: b\n\nHuman: c\n\nAssistant: d",
                "rejected": "\n\nHuman: a\n\nAssistant: b\n\nHuman: e\n\nAssistant: f",
            },
            "first differ in a user turn",
        ),
        (
            {"prompt": "hi", "chosen": "a", "rejected": "b", "score_chosen": 7, "score_rejected": 7},
            "rated at least as high",
        ),
        ({"text": "Once upon a time."}, "no turn markers"),
        ([], "the row is a list"),
    ],
)
def test_invalid_row_is_dropped_with_a_reason(tmp_path, row, expected):
    sifted = parse(written(tmp_path, {"prompt": "hi", "completion": "hello"}, row))
    (lost,) = sifted.dropped
    assert expected in lost.explained and "line 2" in lost.detail and len(sifted.kept) == 1


def test_invalid_json_line_is_dropped(tmp_path):
    path = written(tmp_path, {"prompt": "hi", "completion": "hello"})
    path.write_bytes(path.read_bytes() + b'{"prompt": "hi", "comple\n' + b'{"prompt": "caf\xe9"}\n')
    sifted = parse(path)
    assert len(sifted.kept) == 1 and sifted.reasons() == {"not valid JSON": 2}
    cut, latin = (dropped.detail for dropped in sifted.dropped)
    assert f"{path}, line 2: " in cut and """the row begins '{"prompt": "hi", "comple'""" in cut
    assert f"{path}, line 3: " in latin and "utf-8" in latin
    path.write_text('{"prompt": broken}\n')
    with pytest.raises(DataError, match=r"line 1: Expecting value at column 12; the row begins .*broken}'$"):
        parse(path)
    path.write_text("")
    with pytest.raises(DataError, match="empty"):
        parse(path)


def test_values_of_rows_are_no_part_of_the_reason_that_they_are_counted_by(tmp_path):
    rows = [{"messages": [{"role": f"robot {i}", "content": "hi"}]} for i in range(3)]
    sifted = parse(written(tmp_path, {"prompt": "hi", "completion": "hello"}, *rows))
    assert sifted.reasons() == {"a message needs a role (system, user, assistant, tool)": 3}
    assert "robot 2" in sifted.dropped[2].detail


def test_rare_reasons_are_counted_together():
    sifted = FilterResult([], [Rejected(str(i), f"reason {i}") for i in range(30)])
    assert len(sifted.reasons()) == 21 and sifted.reasons()["other reasons"] == 10


def test_rows_keep_ids_answers_ratings_and_meta(tmp_path):
    rows = [
        {
            "id": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "ratings": {"a": 2, "b": 4},
            "topic": "t",
        },
        {"id": "p", "prompt": "hi", "chosen": "yes", "rejected": "no", "margin": 2, "meta": '{"n": 1}'},
        {"id": "m", "question": "1+1", "answer": 2, "source": "s"},
    ]
    records = parse(written(tmp_path, *rows)).kept
    assert (
        [r.id for r in records] == ["m", "p", "m~2"] and records[0].rating == 3.0 and records[0].topic == "t"
    )
    assert records[1].meta == {"n": 1, "margin": 2.0} and (records[2].answer, records[2].source) == ("2", "s")


@pytest.mark.parametrize("rating", [{"rating": None}, {}])
def test_a_missing_rating_is_the_mean_of_the_ratings(tmp_path, rating):
    row = {"prompt": "hi", "completion": "hello", "ratings": {"a": 2, "b": 4, "c": None}}
    assert one(tmp_path, {**row, **rating}).rating == 3.0


@pytest.mark.parametrize("answer", [["Paris", "Rome"], {"a": True}])
@pytest.mark.parametrize("row", [{"prompt": "q"}, {"prompt": "q", "completion": "c"}, {"text": "Human: q"}])
def test_an_answer_that_is_no_text_is_refused(tmp_path, row, answer):
    parser = {"name": "text", "prompt": "q"} if "text" in row else "auto"
    with pytest.raises(DataError, match="answer: expected a text or a number"):
        parse(written(tmp_path, {**row, "answer": answer}), parser)


def test_cells_are_texts_unless_they_are_messages_or_a_column_is_structured(tmp_path):
    answers = ["[1, 2]", '{"name": "Bob"}', "[1", "[]", '{"a": true}']
    rows = [{"prompt": "{x}?", "completion": text, "answer": text} for text in answers]
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    path = tmp_path / "a.csv"
    pd.DataFrame(rows).to_csv(path, index=False)
    records = parse(path).kept
    assert [(r.messages[0]["content"], r.messages[1]["content"], r.answer) for r in records] == [
        ("{x}?", text, text) for text in answers
    ]
    values = pd.DataFrame([{"prompt": "1+1?", "answer": '{"value": 2}'}])
    values.to_csv(path, index=False)
    assert parse(path, columns={"answer": "answer.value"}).kept[0].answer == "2"
    for row, expected in [
        ({"messages": chat}, [("user", "hi"), ("assistant", "hello")]),
        ({"prompt": chat[0], "completion": chat[1:]}, [("user", "hi"), ("assistant", "hello")]),
        (
            {"instruction": "c", "output": "d", "earlier": [["a", "b"]]},
            [("user", "a"), ("assistant", "b"), ("user", "c"), ("assistant", "d")],
        ),
    ]:
        cells = {name: value if isinstance(value, str) else json.dumps(value) for name, value in row.items()}
        pd.DataFrame([cells]).to_csv(path, index=False)
        columns = {"history": "earlier"} if "earlier" in row else {}
        assert plain(parse(path, columns=columns).kept[0].messages) == expected


def test_empty_lists_beside_the_rows_of_a_json_file_are_no_rows(tmp_path):
    path = tmp_path / "rows.json"
    rows = [{"prompt": "q", "completion": "a"}]
    path.write_text(json.dumps({"data": rows, "errors": [], "warnings": []}))
    assert len(parse(path).kept) == 1
    path.write_text(json.dumps({"data": rows, "more": rows}, indent=1))
    with pytest.raises(DataError, match="expected a list of rows"):
        parse(path)


def test_plain_text_answers_the_given_prompt(tmp_path):
    record = one(tmp_path, {"text": "Once upon a time."}, {"name": "text", "prompt": "Tell a story."})
    assert plain(record.messages) == [("user", "Tell a story."), ("assistant", "Once upon a time.")]


def test_every_parser_has_a_sample_and_a_line_in_the_documentation():
    from pathlib import Path

    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text()
    assert all(f"`{name}`" in page for name in catalogue("parser"))


def test_misspelt_column_of_a_larger_layout_is_an_error(tmp_path):
    row = {"prompt": "hi", "chosn": "yes", "rejected": "no"}
    with pytest.raises(DataError, match=r"'chosn'.*data\.columns: {chosen: chosn}"):
        parse(written(tmp_path, row))
    assert (
        one(tmp_path, row, columns={"chosen": "chosn"}).rejected and one(tmp_path, row, "prompt").opening == 1
    )
    assert parse(written(tmp_path, row), columns={"chosen": "chosn"}).changed["read as `preference`"] == 1


def test_a_row_with_too_many_or_too_few_cells_is_set_aside(tmp_path):
    """An unquoted comma would move the rest of a row into the wrong columns, and be trained on."""
    path = tmp_path / "pairs.csv"
    path.write_text(
        "prompt,chosen,rejected\nwhat is 0?,it is 0, sir,go away\nwhat is 1?,it is 1\n"
        '\nwhat is 2?,"it is 2, sir",go away\n'
    )
    found = parse(path)
    (record,) = found.kept
    assert plain(record.messages)[-1] == ("assistant", "it is 2, sir")
    first, second = found.dropped
    assert first.reason == "the row has 4 cells and the header 3: put texts with ',' in quotation marks"
    assert second.reason.startswith("the row has 2 cells and the header 3") and "row 2:" in second.detail


@pytest.mark.parametrize("missing", [{}, {"rejected": None}])
def test_half_a_pair_is_broken_not_a_prompt(tmp_path, missing):
    """Its answer would be dropped without a limit, and its prompt used where pairs are missing."""
    whole = {"prompt": "q", "chosen": "yes", "rejected": "no"}
    found = parse(written(tmp_path, whole, {"prompt": "p", "chosen": "yes", **missing}))
    assert len(found.kept) == 1 and len(found.dropped) == 1
    assert "'chosen' and no 'rejected', which a preference pair needs" in found.dropped[0].reason
    alone = one(tmp_path, {"prompt": "p", "chosen": "yes", **missing}, parser="prompt")
    assert plain(alone.messages) == [("user", "p")], "if the recipe says so"
    empty = one(tmp_path, {"prompt": "p", "chosen": None, "rejected": None})
    assert plain(empty.messages) == [("user", "p")]


def test_columns_may_trade_names(tmp_path):
    row = {"prompt": "q", "chosen": "bad", "rejected": "good"}
    record = one(tmp_path, row, columns={"chosen": "rejected", "rejected": "chosen"})
    assert (record.messages[-1]["content"], record.rejected[-1]["content"]) == ("good", "bad")
    chained = one(tmp_path, {"a": "q", "prompt": "yes"}, columns={"completion": "prompt", "prompt": "a"})
    assert plain(chained.messages) == [("user", "q"), ("assistant", "yes")]


def test_ids_are_unique_even_if_one_looks_numbered(tmp_path):
    rows = [{"id": name, "prompt": f"what is {i}?"} for i, name in enumerate(("a~2", "a", "a", "a", "b"))]
    found = parse(written(tmp_path, *rows))
    assert [record.id for record in found.kept] == ["a~2", "a", "a~3", "a~4", "b"]
    assert found.changed["renamed: duplicate id"] == 2


def test_a_broken_file_of_groups_is_read_once_and_named_once(tmp_path):
    groups = [
        Group(Prompt(str(i), ({"role": "user", "content": "q"},)), (Trajectory(()),) * 3) for i in range(9)
    ]
    write_groups(tmp_path / "g.parquet", groups)
    with pytest.raises(DataError, match="group '0' has 3 trajectories") as refused:
        parse(tmp_path / "g.parquet")
    assert str(refused.value).count("g.parquet") == 1


def test_a_parser_that_fits_no_row_is_named(tmp_path):
    """For example one that a recipe inherits from its base."""
    with pytest.raises(DataError, match=r"`data\.parser` is 'chitchat', and with `auto`"):
        parse(written(tmp_path, {"messages": [{"role": "user", "content": "q"}]}), "chitchat")


def test_the_weight_of_a_pair_is_a_column(tmp_path):
    row = {"prompt": "q", "chosen": "yes", "rejected": "no"}
    with pytest.raises(DataError, match="label_weight: expected 0 or more: got -1"):
        parse(written(tmp_path, {**row, "label_weight": -1.0}))
    records = parse(written(tmp_path, {**row, "label_weight": 0.25, "margin": 2}, row)).kept
    weighted, plain_pair = preference_pairs(records, words, Pairs()).kept
    assert weighted.columns == {"margin": [2.0, 2.0], "label_weight": [0.25, 0.25]}
    assert plain_pair.columns == {}
