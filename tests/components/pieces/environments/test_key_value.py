"""Environment `key_value`: its transitions, unit tests and errors, worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.components.environments.episode import Episode, step_all
from ratchet.components.piece import build
from ratchet.components.types import Observation, Prompt, Step

STATE = {"a": "3", "b": "7", "c": "0", "d": "7"}
SWAP = Prompt("swap", (), meta={"state": STATE, "wanted": {"a": "7", "b": "3"}})


def world(prompt: Prompt = SWAP, **options: Any) -> Any:
    made = build("environment", {"name": "key_value", **options})
    made.begin(prompt)
    return made


def shown(step: Step) -> str:
    (message,) = step.observation.messages
    assert message["role"] == "tool"
    return message["content"]


def run(*actions: str, **options: Any) -> tuple[list[Step], dict[str, float]]:
    made = world(**options)
    return [made.step(action) for action in actions], dict(made.score())


def test_a_swap_reads_both_values_and_the_state_is_what_was_written_last() -> None:
    made = world()
    assert [shown(made.step(a)) for a in ("get a", "get b", "set a 7", "get a", "set b 3")] == [
        "3",
        "7",
        "ok",
        "7",
        "ok",
    ]
    assert made.score()["solved"] == 0.0, "it is not solved before `done`"
    assert made.step("done") == Step(reward=1.0, done=True)
    assert made.score() == {"solved": 1.0, "tests": 1.0, "intact": 1.0, "errors": 0.0, "calls": 6.0}


def test_one_copy_after_the_other_loses_the_value_that_the_first_overwrote() -> None:
    steps, score = run("get b", "set a 7", "get a", "set b 7", "done")
    assert shown(steps[2]) == "7" and steps[-1].reward == 0.0
    assert (score["tests"], score["intact"]) == (pytest.approx(2 / 3), 1.0)


def test_collateral_damage_fails_the_task_though_all_wanted_values_are_right() -> None:
    steps, score = run("set a 7", "set b 3", "set c 9", "done")
    assert steps[-1] == Step(reward=0.0, done=True)
    assert (score["solved"], score["tests"], score["intact"]) == (0.0, pytest.approx(2 / 3), 0.0)
    assert run("set a 7", "set b 3", "set c 9", "set c 0", "done")[1]["solved"] == 1.0, "damage undone"
    sprayed = run(*(f"set {key} 7" for key in "abcd"), "done")[1]
    assert (sprayed["solved"], sprayed["tests"]) == (0.0, pytest.approx(1 / 3))


def test_doing_nothing_passes_the_test_of_the_other_keys_alone() -> None:
    steps, score = run("done")
    assert steps[0].reward == 0.0 and score["tests"] == pytest.approx(1 / 3) and score["intact"] == 1.0


@pytest.mark.parametrize(
    "action",
    ["", "get", "get e", "get a b", "Get a", "set a", "set a 12", "set a x", "set e 1", "set a ²", "a"],
)
def test_an_invalid_call_is_an_observation_and_changes_nothing(action: str) -> None:
    made = world()
    assert made.step(action) == Step(
        Observation(({"role": "tool", "content": "error"},), valid=False), 0.0, False
    )
    assert made.state == STATE and made.score()["errors"] == 1.0
    assert made.step(" get  a ") == Step(Observation(({"role": "tool", "content": "3"},)), 0.0)


def test_an_episode_is_cut_after_its_last_call_and_is_then_not_solved() -> None:
    steps, score = run("set a 7", "set b 3", calls=2)
    assert [(s.done, s.truncated) for s in steps] == [(False, False), (False, True)]
    assert (score["solved"], score["tests"]) == (0.0, 1.0)
    ended = run("set a 7", "set b 3", "done", calls=3)[0][-1]
    assert (ended.done, ended.truncated, ended.reward) == (True, False, 1.0)


@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"state": STATE},
        {"state": "a3", "wanted": {}},
        {"state": STATE, "wanted": {"x": "1"}},
        {"state": STATE, "wanted": {"a": "12"}},
        {"state": STATE, "wanted": {"a": None}},
    ],
)
def test_a_world_that_cannot_be_made_is_an_error_and_no_reward(meta: dict[str, Any]) -> None:
    episode = Episode(lambda: build("environment", {"name": "key_value"}), Prompt("p", (), meta=meta))
    assert episode.error.startswith("environment: DataError: key_value: prompt 'p'") and not episode.score()


def test_values_may_be_numbers() -> None:
    """As JSON data has them."""
    made = world(Prompt("p", (), meta={"state": {"a": 3, "b": 7}, "wanted": {"a": 7}}))
    assert shown(made.step("get b")) == "7" and shown(made.step("set a 7")) == "ok"
    assert made.step("done").reward == 1.0


def test_two_episodes_of_a_prompt_do_not_share_their_world() -> None:
    first, second = (Episode(lambda: build("environment", {"name": "key_value"}), SWAP) for _ in range(2))
    step_all([first], ["set c 9"], {})
    assert step_all([second], ["get c"], {})[0] == Step(Observation(({"role": "tool", "content": "0"},)), 0.0)
    copy = first.fork()
    step_all([copy], ["set c 1"], {})
    (left,) = step_all([first], ["get c"], {})
    assert left is not None and shown(left) == "9" and SWAP.meta["state"]["c"] == "0"
