"""Testbed `shop`: catalogues with the declared shares, and demonstrations as unreliable as declared."""

import json
import re
from pathlib import Path

import pytest

from ratchet.components.data.generate import generate
from ratchet.components.errors import DataError
from ratchet.components.pieces.testbeds.shop import shop

SHOWN = re.compile(r"([ABC]) (yes|no|\?) (\d)")
SAID = re.compile(r"([ABC]) (yes|no|\?)")


def test_the_prompt_is_the_catalogue_and_meta_the_truth(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in generate("shop?size=1500&seed=2", tmp_path).read_text().splitlines()]
    assert len({row["prompt"][0]["content"] for row in rows}) == 1500
    for row in rows:
        shown, meta = SHOWN.findall(row["prompt"][0]["content"]), row["meta"]
        assert {option: state for option, state, _ in shown} == meta["states"] and len(shown) == 3
        assert {option: int(price) for option, _, price in shown} == meta["prices"]
        assert row["prompt"][0]["content"].startswith("Cheap" if meta["priced"] else "Light")
        assert all(2 <= price <= 9 for price in meta["prices"].values())
    assert sum(row["meta"]["priced"] for row in rows) / 1500 == pytest.approx(0.7, abs=0.04)
    empty = sum("yes" not in row["meta"]["states"].values() for row in rows)
    assert empty / 1500 == pytest.approx(8 / 27, abs=0.04)


@pytest.mark.parametrize(("boasted", "omitted"), [(0.2, 0.2), (0.0, 0.0), (0.1, 0.5)])
def test_demonstrations_boast_and_omit_with_the_declared_shares(boasted: float, omitted: float) -> None:
    """An option without the feature is claimed in `boasted`; one that has it is left open in `omitted`."""
    said: dict[str, list[str]] = {"yes": [], "no": [], "?": []}
    for row in shop(size=2000, boasted=boasted, omitted=omitted):
        claims = dict(SAID.findall(row["completion"][0]["content"]))
        assert list(claims) == list(row["meta"]["states"]), "in the order of the catalogue"
        for option, state in row["meta"]["states"].items():
            said[state].append(claims[option])
    for state, claimed, share in (("no", "yes", boasted), ("yes", "?", omitted)):
        assert said[state].count(claimed) / len(said[state]) == pytest.approx(share, abs=0.03)
    assert said["?"].count("yes") / len(said["?"]) == pytest.approx(boasted, abs=0.03)


def test_impossible_shares_and_sizes_are_refused() -> None:
    for rows in (shop(boasted=0.7, omitted=0.4), shop(size=8001)):
        with pytest.raises(DataError):
            next(rows)
