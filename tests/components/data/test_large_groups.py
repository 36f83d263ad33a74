"""Groups files larger than memory: the same groups as of a small file, the same bytes, a bounded peak."""

import dataclasses
import json
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ratchet.components.data import spool
from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.data.lazy_groups import PART, Groups, is_lazy
from ratchet.components.data.parquet import ROW_GROUP
from ratchet.components.data.spool import Spool
from ratchet.components.data.step_values import StepValues, compact, packed
from ratchet.components.errors import DataError
from ratchet.components.stages.experience import _answers
from ratchet.components.training.loop import Named, annotate_groups, prepare_groups, select_groups
from ratchet.components.training.packing import pack
from ratchet.components.types import Context, Group, Prompt, Trajectory
from tests.components.data.test_groups import pair, some_groups


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """Every file counts as large."""
    monkeypatch.setattr(spool, "IN_MEMORY", 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("groups")


@settings(max_examples=60, deadline=None)
@given(some_groups(), st.data())
def test_large_file_has_the_bytes_and_groups_of_a_small_one(folder, groups, data):
    path = write_groups(folder / "large.parquet", iter(groups))
    found = read_groups(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spool, "IN_MEMORY", 2**30)
        assert write_groups(folder / "small.parquet", groups).read_bytes() == path.read_bytes()
        small = read_groups(path)
    assert isinstance(small, list) and isinstance(found, Groups if groups else list)
    assert list(found) == small == groups == list(map(found.__getitem__, range(len(groups))))
    assert repr(list(found)) == repr(small)
    bound = st.none() | st.integers(-6, 6)
    part = slice(data.draw(bound), data.draw(bound), data.draw(st.sampled_from([None, 1, 2, -1])))
    assert found[part] == groups[part] and len(found[part]) == len(groups[part])
    with pytest.raises(IndexError):
        found[len(groups)]


def test_row_groups_and_blocks_do_not_split_a_group(tmp_path):
    """Groups of 7 rows cross the borders of blocks and of row groups of 4,096 rows."""
    groups = [
        Group(
            Prompt(f"p{i}", ({"role": "user", "content": "hi"},)),
            tuple(Trajectory((), {"tokens": [i, j]}, [False, True], [0.0, -0.5]) for j in range(7)),
            {"reward.a": [j if i < 900 else j + 0.5 for j in range(7)]}
            | ({"late": ["x"] * 7} if i > 1100 else {}),
        )
        for i in range(1200)
    ]
    found = read_groups(write_groups(tmp_path / "g.parquet", iter(groups)))
    sizes = [pq.ParquetFile(tmp_path / "g.parquet").metadata.row_group(i).num_rows for i in range(3)]
    assert sizes == [ROW_GROUP, ROW_GROUP, 7 * 1200 - 2 * ROW_GROUP]
    assert found == groups and found[585] == groups[585]  # rows 4095 to 4101
    assert found[0].columns == {"reward.a": [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]}


def test_types_that_differ_between_blocks_are_joined_or_refused(tmp_path):
    def blocks(first, second):
        return [pair(f"a{i}", x=[first] * 2) for i in range(200)] + [
            pair(f"b{i}", x=[second] * 2) for i in range(200)
        ]

    for first, second in ((1, 0.5), (None, 2), ([], [0.1]), ([1], [0.5]), (None, "s"), ([[]], [[True]])):
        groups = blocks(first, second)
        assert read_groups(write_groups(tmp_path / "g.parquet", groups)) == groups
    for first, second in ((1, "s"), (True, 1), (0.5, [0.5]), (2**53 + 1, 0.5)):
        with pytest.raises(DataError, match="column 'x'"):
            write_groups(tmp_path / "bad.parquet", blocks(first, second))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["g.parquet"]


def test_step_values_behave_as_the_list():
    cases: list[list[Any]] = [[3, 1, 2], [True, False], [0.5, float("-inf")], []]
    for values in cases:
        array = StepValues(np.array(values))
        assert array == values and values == array and array == StepValues(np.array(values))
        assert array != [*values, 1] and array != tuple(values) and array != "x"
        assert (
            repr(array) == repr(values)
            and f"{Trajectory((), {}, array)!r}" == f"{Trajectory((), {}, values)!r}"
        )
        assert json.dumps(list(array)) == json.dumps(values) == json.dumps(array.tolist())
        assert pickle.loads(pickle.dumps(array)) == values and bool(array) == bool(values)
        assert array[1:] == values[1:] and type(array[1:]) is list and array[::-1] == values[::-1]
        assert [*map(type, array)] == [*map(type, values)] and sum(array) == sum(values)
        assert np.asarray(array).tolist() == values
        with pytest.raises(TypeError):
            hash(array)
    assert StepValues(np.array([3, 1]))[-1] == 1 and type(StepValues(np.array([True]))[0]) is bool


def test_numbers_of_a_large_file_are_arrays_and_train_as_lists_do(tmp_path):
    groups = [pair(f"p{i}", values=[[0.5, 1.0, 2.0], [1.0]], reward=[1.0, 2.0]).take([0]) for i in range(3)]
    found = read_groups(write_groups(tmp_path / "g.parquet", groups))
    group = found[1]
    path = group.trajectories[0]
    lists = (path.inputs["tokens"], path.mask, path.logprobs, group.columns["values"][0])
    assert [type(one) for one in lists] == [StepValues] * 4 and group == groups[1] and _answers(found) == 3
    (one,), (other,) = pack(found, unit="row", tokens=99), pack(groups, unit="row", tokens=99)
    assert one.columns.keys() == other.columns.keys() == {"values", "reward", "logprobs.sampled"}
    assert all(one.columns[name].equal(other.columns[name]) for name in one.columns)
    assert one.mask.equal(other.mask) and [*map(list, one.inputs["tokens"])] == [
        *map(list, other.inputs["tokens"])
    ]
    assert read_groups(write_groups(tmp_path / "again.parquet", found)) == groups
    assert (tmp_path / "again.parquet").read_bytes() == (tmp_path / "g.parquet").read_bytes()


def test_spool_keeps_the_order_and_its_file_has_no_name(tmp_path, monkeypatch):
    import pyarrow as pa

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = Spool(100)
    parts = [
        pa.RecordBatch.from_pydict({"a": [i] * 5} | ({"b": ["x"] * 5} if i > 2 else {})) for i in range(6)
    ]
    for one in parts:
        kept.append(one)
    assert len(list(tmp_path.iterdir())) == 1
    assert kept.batches() == parts and not list(tmp_path.iterdir())


def test_peak_memory_of_1600_answers_of_2048_tokens_is_bounded(tmp_path):
    """In Python lists they took 610 MiB to write and 510 to read, of which 62 were the imports."""
    command = [sys.executable, "-m", "benchmarks.group_memory", "--json", "--folder", str(tmp_path)]
    command += ["--answers", "1600", "--steps", "4"]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    peaks = json.loads(run.stdout.splitlines()[-1])
    assert peaks.keys() == {"write", "read", "train", "prepare"}
    assert max(found["anonymous_mib"] for found in peaks.values()) < 320


def test_annotated_and_selected_large_files_are_lazy_and_equal(tmp_path):
    """Several parts, a failed trajectory, failed rewards, step columns, the same as of a list."""

    def score(groups, ctx):
        assert all(isinstance(g.trajectories[0], Trajectory) for g in groups)
        values = [
            [None if (g.prompt.id, i) == ("p7", 1) else float(i) for i, _ in enumerate(g.trajectories)]
            for g in groups
        ]
        return {
            "reward.a": values,
            "reward.a.status": [["failed: x" if v is None else "ok" for v in row] for row in values],
        }

    def steps(groups, ctx):
        return {"values": [[[0.1 * i] * len(t.mask) for t in g.trajectories] for i, g in enumerate(groups)]}

    def best(groups, ctx):
        return [g.take([0]) for g in groups if g.columns["reward.a"][0] == 0]

    groups = [pair(f"p{i}") for i in range(300)]
    groups[5] = groups[5].replace([dataclasses.replace(t, stop="error") for t in groups[5].trajectories])
    found = read_groups(write_groups(tmp_path / "g.parquet", groups))
    results = []
    for members in (found, groups):
        marked, counts = annotate_groups(
            members,
            [Named("rewards.x", score, by_group=True), Named("whole", steps)],
            Context(),
            max_failed=0.1,
        )
        chosen, more = select_groups(marked, [Named("best", best)], Context())
        prepared = prepare_groups(chosen, [], Context())
        write_groups(tmp_path / "marked.parquet", marked)
        results.append(
            (list(marked), counts, list(prepared), more, (tmp_path / "marked.parquet").read_bytes())
        )
        assert is_lazy(marked) == (members is found)
    assert results[0] == results[1] and len(results[0][0]) == 299 and len(results[0][0][6].trajectories) == 1
    assert repr(results[0][0]) == repr(results[1][0])


def test_step_columns_are_computed_in_parts_and_kept_in_arrays(tmp_path):
    parts = []

    def steps(groups, ctx):
        parts.append(len(groups))
        return {"values": [[[0.1] * len(t.mask) for t in g.trajectories] for g in groups]}

    groups = [pair(f"p{i}") for i in range(PART + 2)]
    found = read_groups(write_groups(tmp_path / "g.parquet", groups))
    prepared = prepare_groups(found, [Named("steps", steps, by_group=True)], Context())
    assert parts == [PART, 2]
    assert isinstance(prepared[0].columns["values"][0], StepValues)
    assert prepared == prepare_groups(groups, [Named("steps", steps, by_group=True)], Context())
    assert prepared[1:3] == list(prepared)[1:3] and is_lazy(prepared[1:3])


def test_packed_and_compact_change_no_value():
    for values in ([1, 2], [True, False], [0.1, 0.5], [0.5], [2**40, 1], [float("inf")], []):
        assert packed(values) == values and repr(packed(values)) == repr(values)
    for values in ([True, 1], [1, 0.5], [None, 1.0], ["a"], "text", 2**70, [2**70], None, [[1], [2]]):
        assert packed(values) is values
    group = pair(values=[[0.5, 1.0, 2.0], []], reward=[1.0, 2.0])
    small = compact(group)
    assert small == group and repr(small) == repr(group)
    assert isinstance(small.trajectories[0].mask, StepValues) and small.columns["reward"] == [1.0, 2.0]
    assert StepValues(np.array([0.5])).tolist() == [0.5]
