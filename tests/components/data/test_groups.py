"""The `groups` Parquet file: exact round trips; damage is reported with its row."""

import hashlib

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError, SourceError
from ratchet.components.types import Group, Prompt, Span, Trajectory


def say(role, content):
    return {"role": role, "content": content}


def pair(key="p1", **columns):
    prompt = Prompt(
        key, (say("system", "be kind"), say("user", "hi")), answer="hello", source="test", meta={"n": [1, 2]}
    )
    good = Trajectory(
        (say("assistant", "hello"),),
        {"tokens": [1, 2, 3]},
        [False, True, True],
        [0.0, -0.5, -0.25],
        "policy",
        "abc",
        (Span(1, 3, 0.5),),
        (0, 1),
        "length",
        {"seed": 7},
    )
    bad = Trajectory((say("assistant", "go"), say("user", "?"), say("assistant", "away")))
    return Group(prompt, (good, bad), columns)


text = st.text(max_size=12)
number = st.floats(allow_nan=False, allow_infinity=False, width=64)
message = st.builds(say, st.sampled_from(["system", "user", "assistant", "tool"]), text)
messages = st.lists(message, max_size=3).map(tuple)
json_value = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | number | text, lambda x: st.lists(x, max_size=2)
)


@st.composite
def trajectories(draw):
    size = draw(st.integers(0, 4))
    sized = lambda element: st.lists(element, min_size=size, max_size=size)  # noqa: E731
    tokens = draw(st.none() | sized(st.integers(0, 2**31 - 1)))
    f32 = st.floats(allow_nan=False, width=32)
    return Trajectory(
        draw(messages),
        {} if tokens is None else {"tokens": tokens},
        draw(st.just(()) | sized(st.booleans())) or (),
        draw(st.none() | sized(f32)),
        draw(text),
        draw(text),
        tuple(
            draw(
                st.lists(
                    st.builds(Span, st.integers(0, 3), st.integers(0, 3), st.none() | number), max_size=2
                )
            )
        ),
        draw(st.none() | st.tuples(st.integers(0, 3), st.integers(0, 9))),
        draw(st.sampled_from(["end", "length", "environment", "error"])),
        draw(st.dictionaries(text, json_value, max_size=2)),
    )


@st.composite
def some_groups(draw):
    prompt = st.builds(
        Prompt, text, messages, st.none() | text, text, st.dictionaries(text, json_value, max_size=2)
    )
    out = []
    for _ in range(draw(st.integers(0, 4))):
        paths = tuple(draw(st.lists(trajectories(), max_size=3)))
        kinds = {
            "reward.a": st.none() | number,
            "count": st.integers(-9, 9),
            "reward.a.status": text,
            "advantages": st.lists(number, max_size=4),
            "ok": st.booleans(),
        }
        names = draw(st.sets(st.sampled_from(sorted(kinds))))
        out.append(Group(draw(prompt), paths, {n: [draw(kinds[n]) for _ in paths] for n in sorted(names)}))
    return out


@settings(max_examples=60, deadline=None)
@given(some_groups())
def test_round_trip_is_exact(tmp_path_factory, groups):
    path = tmp_path_factory.mktemp("groups") / "g.parquet"
    write_groups(path, groups)
    assert read_groups(path) == groups


def test_writing_is_deterministic_and_leaves_no_temporary_files(tmp_path):
    groups = [pair(reward=[1.0, None]), pair("p2")]
    digests = {
        hashlib.sha256(write_groups(tmp_path / name, groups).read_bytes()).hexdigest()
        for name in ("a.parquet", "b.parquet")
    }
    assert len(digests) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.parquet", "b.parquet"]


def test_pandas_reads_one_row_a_trajectory(tmp_path):
    frame = pd.read_parquet(write_groups(tmp_path / "g.parquet", [pair(**{"reward.length": [0.1, 2.0]})]))
    assert list(frame["group"]) == [0, 0] and list(frame["index"]) == [0, 1]
    assert frame["reward.length"].tolist() == [0.1, 2.0]  # float64: 0.1 stays 0.1
    assert frame["completion"][0][0]["content"] == "hello"


def test_arrays_are_taken_and_step_columns_shrink_only_without_loss(tmp_path):
    path = write_groups(
        tmp_path / "g.parquet", [pair(a=[np.float32([0.5, 0.1]), []], b=[[0.1], [0.5]], r=np.array([1.5, 2]))]
    )
    schema = pq.read_schema(path)
    assert (
        schema.field("a").type.value_type == pa.float32()
        and schema.field("b").type.value_type == pa.float64()
    )
    assert read_groups(path)[0].columns["b"] == [[0.1], [0.5]]


def test_missing_key_differs_from_none(tmp_path):
    one, two = read_groups(write_groups(tmp_path / "g.parquet", [pair(reward=[None, None]), pair("p2")]))
    assert one.columns == {"reward": [None, None]} and two.columns == {}


def test_unwritable_value_error_names_the_column(tmp_path):
    path = tmp_path / "g.parquet"
    with pytest.raises(DataError, match=r"'tokens'.*fixed column"):
        write_groups(path, [pair(tokens=[1, 2])])
    with pytest.raises(DataError, match="column 'x'"):
        write_groups(path, [pair(x=[1, "one"])])
    with pytest.raises(DataError, match=r"'p1'.*3 values for 2"):
        write_groups(path, [pair(x=[1, 2, 3])])
    with pytest.raises(DataError, match=r"'p1'.*message"):
        write_groups(path, [Group(Prompt("p1", (say("robot", "x"),)), ())])
    assert not path.exists()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("prompt", None, "'prompt' is null"),
        ("index", 5, "index is 5"),
        ("meta", "{oops", "Expecting property"),
        ("mask", [True], "differ in length"),
        ("stop", "bored", "stop is 'bored'"),
        ("completion", [{"role": "robot", "content": "x"}], "a message needs"),
    ],
)
def test_a_bad_row_is_named(tmp_path, column, value, message):
    path = write_groups(tmp_path / "g.parquet", [pair(), pair("p2")])
    table = pq.read_table(path)
    values = table[column].to_pylist()
    values[2] = value
    at = table.schema.get_field_index(column)
    pq.write_table(
        table.set_column(at, table.schema.field(at), pa.array(values, table.schema.field(at).type)), path
    )
    with pytest.raises(DataError, match=rf"row 2: .*{message}"):
        read_groups(path)


def test_flipped_byte_and_truncated_file_are_detected(tmp_path):
    path = write_groups(tmp_path / "g.parquet", [pair(f"p{i}") for i in range(50)])
    whole = bytearray(path.read_bytes())
    column = pq.ParquetFile(path).metadata.row_group(0).column(1)
    whole[column.data_page_offset + column.total_compressed_size // 2] ^= 0xFF
    path.write_bytes(whole)
    with pytest.raises(DataError, match=r"rows 0 to 99"):
        read_groups(path)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match="Parquet"):
        read_groups(path)
    with pytest.raises(SourceError, match=r"groups"):
        read_groups(tmp_path / "none.parquet")
