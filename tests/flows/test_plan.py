"""The table before a run: every quantity under its unit, none that the run does not have."""

from __future__ import annotations

import pytest

from ratchet.components.recipe import load
from ratchet.flows.commands.plan import sizes

DEVICE = {"devices that learn together": "1", "tokens a device in one pass": "2048"}


def table(name: str, *overrides: str, profile: str | None = None) -> dict[str, str]:
    made = sizes(*load(name, overrides=overrides, profile=profile))
    return dict(zip(*(column.cells for column in made.columns), strict=True))


@pytest.mark.parametrize(("name", "expected"), [
    ("chat", {"SFT conversations a step": "8", "SFT conversations at most": "160", "SFT epochs": "1",
              "reward models": "1", "reward epochs": "0, the linear probe alone",
              "rounds": "3", "prompts a round": "64", "responses a prompt": "6", "responses a round": "384", "tokens a response at most": "40",
              "online pairs a step": "8", "epochs a round": "1",
              "held-out prompts": "128", "responses a held-out prompt": "2", "tokens a held-out response at most": "40"}),
    ("dpo", {"offline pairs a step": "16", "offline epochs": "1",
             "held-out prompts": "32", "responses a held-out prompt": "1", "tokens a held-out response at most": "24"}),
    ("rlvr_grpo", {"rounds": "30", "prompts a round": "8", "responses a prompt": "8", "responses a round": "64", "tokens a response at most": "16",
                   "online prompts a step": "8", "online responses a step at most": "64", "epochs a round": "1",
                   "held-out prompts": "32", "responses a held-out prompt": "1", "tokens a held-out response at most": "24"}),
    ("ppo", {"rounds": "30", "prompts a round": "32", "responses a prompt": "2", "responses a round": "64", "tokens a response at most": "16",
             "online prompts a step": "16", "online responses a step at most": "32", "epochs a round": "2",
             "held-out prompts": "32", "responses a held-out prompt": "1", "tokens a held-out response at most": "24"}),
])
def test_every_quantity_by_its_unit(name: str, expected: dict[str, str]) -> None:
    assert table(name) == {**expected, **DEVICE}


def test_the_control_has_the_sizes_of_what_it_controls() -> None:
    assert table("chat_offline") == table("chat")


def test_what_the_profile_and_a_fit_say_is_in_it() -> None:
    many = table("dpo", "offline.limit=500", "offline.fit.max_steps=9", "reward={fit: {updates: {judge: [{name: ranking.margin}]}, batch: 4}}", profile="node")
    assert many["devices that learn together"] == "8" and many["tokens a device in one pass"] == "16384"
    assert many["offline pairs at most"] == "500" and many["offline steps at most"] == "9"
    assert many["reward pairs a step"] == "4" and many["reward epochs"] == "1"
    imitated = table("dpo", "offline.fit.updates.policy=[{name: likelihood}]")
    assert imitated["offline groups a step"] == "16" and "offline pairs a step" not in imitated
