"""Environment `denoising`: as many turns as steps, the digit and the time between them, no reward."""

from __future__ import annotations

from typing import Any

from ratchet.components.piece import build
from ratchet.components.pieces.testbeds.noised_digits import noised_digits
from ratchet.components.types import Message, Observation, Prompt, Step

IMAGE = "ABCDEFGHIJKLMNOP"


def begun(digit: str = "7", **options: Any) -> Any:
    world = build("environment", {"name": "denoising", **options})
    assert (
        world.begin(Prompt("p", (Message(role="user", content=f"{digit} t3 {IMAGE}"),), digit))
        == Observation()
    )
    return world


def observation(text: str, *, valid: bool = True) -> Step:
    return Step(Observation((Message(role="user", content=text),), valid))


def test_an_episode_is_one_turn_a_step_and_ends_with_the_image() -> None:
    world = begun(steps=3)
    assert world.step(IMAGE) == observation("7 t2")
    assert world.score() == {"drawn": 0.0, "errors": 0.0}, "an image before the last step is none yet"
    assert world.step(f" {IMAGE}\n") == observation("7 t1")
    assert world.step(IMAGE) == Step(Observation(), done=True)
    assert world.score() == {"drawn": 1.0, "errors": 0.0}


def test_an_action_that_is_no_image_is_invalid_and_the_process_goes_on() -> None:
    world = begun(steps=2)
    assert world.step(IMAGE + "A") == observation("7 t1", valid=False)
    assert world.step(IMAGE).done and world.score() == {"drawn": 1.0, "errors": 1.0}
    lost = begun(steps=1)
    assert lost.step("Q" * 16) == Step(Observation(valid=False), done=True)
    assert lost.score() == {"drawn": 0.0, "errors": 1.0}


def test_the_turns_of_the_demonstrations_are_those_of_the_environment() -> None:
    row = next(noised_digits(steps=4, size=1, prompts=1, test=1))
    digit = row["prompt"][0]["content"].split()[0]
    world, turns = begun(digit, steps=4), row["completion"]
    for action, answer in zip(turns[::2], [*turns[1::2], None], strict=True):
        step = world.step(action["content"])
        assert list(step.observation.messages) == ([answer] if answer else [])
    assert step.done
