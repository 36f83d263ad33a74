"""ChitChat end to end: download from the package index, curation, validation."""

import time
from collections import Counter

import pytest

from ratchet.components.data.curate import curate
from ratchet.components.data.digests import digest
from ratchet.components.data.groups import read_groups
from ratchet.components.data.sources import fetch
from ratchet.tasks.data.validation import validate_data

SECTION = {
    "parser": "chitchat",
    "transforms": [
        "normalise",
        "remove_broken",
        "scrub",
        "language",
        "duplicates",
        "duplicates.near",
        "length",
    ],
    "sft": {"min_rating": 6.0},
    "reward": {"positions": [8, 12, 16]},
    "gold": {"positions": [8, 12, 16]},
    "max_topic_share": 0.8,
    "max_dropped": 0.5,
}


@pytest.mark.slow
def test_chitchat_end_to_end(tmp_path):
    source = fetch(
        "pypi:chitchat-dataset==0.9.0!chitchat_dataset/dataset.json",
        tmp_path / "raw",
        sha256="7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e",
    )

    def count(messages):
        return sum(4 + len(m["content"]) // 4 for m in messages)

    start = time.perf_counter()
    summary = curate(SECTION, source, count, tmp_path / "a", 0)
    assert time.perf_counter() - start < 90
    assert summary["steps"][0]["in"] == 7168 and summary["steps"][0]["out"] == 4017  # two speakers
    assert (
        summary["ratings"]["most_common"][0] == 5.0
        and 0.4 < summary["ratings"]["correlation_log_turns"] < 0.65
    )
    curate(SECTION, source, count, tmp_path / "b", 0)
    assert digest(tmp_path / "a") == digest(tmp_path / "b")

    report = validate_data(tmp_path / "a", SECTION, tmp_path / "out")
    assert report["quarantined_share"] < 0.005
    topics = Counter()
    for name in report["splits"]:
        groups = read_groups(tmp_path / f"out/{name}.parquet")
        topics.update({g.prompt.meta["topic"] for g in groups if "topic" in g.prompt.meta})
    assert len(topics) >= 30 and set(topics.values()) == {1}  # no topic crosses
    assert len(read_groups(tmp_path / "out/reward.parquet")) > 800
