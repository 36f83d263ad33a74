"""Environments of arrays: laws of all of them, and the numbers of each."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build, catalogue
from ratchet.components.pieces.array_environments.ddpm import schedule
from ratchet.components.types import Prompt

PROMPTS = {
    "ddpm": [Prompt(f"p{i}", (), str(i), meta={"image": [i] * 64}) for i in range(3)],
    "point_mass": [Prompt(f"p{i}", (), meta={"start": [i / 4, -0.5, 0.1, 0.0]}) for i in range(3)],
}


def episodes(name: str, prompts: list[Prompt], actions: np.ndarray) -> list[np.ndarray]:
    world = build("array_environment", {"name": name})
    seen = [np.asarray(world.begin(prompts))]
    for action in actions:
        step = world.step(action)
        seen += [np.asarray(step.observations), np.asarray(step.rewards), np.asarray(step.done)]
    return seen


def test_every_environment_has_prompts_here() -> None:
    assert PROMPTS.keys() == catalogue("array_environment").keys()


@pytest.mark.parametrize("name", PROMPTS)
def test_an_episode_is_a_function_of_its_prompt_and_actions(name: str) -> None:
    prompts, world = PROMPTS[name], build("array_environment", {"name": name})
    actions = np.random.default_rng(0).normal(size=(5, 3, world.action))
    whole = episodes(name, prompts, actions)
    for again in (episodes(name, prompts, actions), episodes(name, prompts[::-1], actions[:, ::-1])[:]):
        same = again if again[0].tolist() == whole[0].tolist() else [part[::-1] for part in again]
        assert all(np.array_equal(a, b) for a, b in zip(whole, same, strict=True))
    for i, prompt in enumerate(prompts):
        alone = episodes(name, [prompt], actions[:, i : i + 1])
        assert all(np.array_equal(a[i : i + 1], b) for a, b in zip(whole, alone, strict=True))
    assert whole[0].shape == (3, world.observation)


@pytest.mark.parametrize("name", PROMPTS)
def test_measures_and_summaries_are_one_for_each_episode(name: str) -> None:
    world = build("array_environment", {"name": name})
    world.begin(PROMPTS[name])
    world.step(world.expert(np.zeros((3, world.action))))
    assert len(world.score()) == len(world.summary()) == 3
    assert all(isinstance(value, float) for row in world.score() for value in row.values())


def test_a_step_of_the_point_mass_worked_by_hand() -> None:
    """v' = 0.5 + 0.1 (1) = 0.6 (the force 3 is cut to 1), p' = 1 + 0.1 (0.6) = 1.06, reward -0.1 (1.06^2 +
    0.01 (1^2)) = -0.11336; the expert at p = 1, v = 0.5: -1 - 0.4 (0.5) = -1.2.
    """
    world = build("array_environment", {"name": "point_mass", "length": 2})
    assert world.begin([Prompt("a", (), meta={"start": [1, 0, 0.5, 0]})]).tolist() == [[1, 0, 0.5, 0, 1]]
    assert world.expert(np.zeros((1, 2))).tolist() == [[-1.2, 0]]
    assert world.expert(np.ones((1, 2)))[0].tolist() == pytest.approx([-0.9, 0.3])
    step = world.step(np.array([[3.0, 0.0]]))
    assert step.observations[0].tolist() == pytest.approx([1.06, 0, 0.6, 0, 0.5])
    assert step.rewards.tolist() == pytest.approx([-0.11336]) and not step.done[0]
    assert world.step(np.zeros((1, 2))).done[0]
    assert world.score()[0]["distance"] == pytest.approx(1.12) and world.score()[0]["solved"] == 0
    assert world.summary() == ["The mass is 1.12 from the target."]


def test_a_start_that_is_no_state_is_refused() -> None:
    with pytest.raises(DataError, match=r"meta\.start"):
        build("array_environment", {"name": "point_mass"}).begin([Prompt("a", (), meta={"start": [1, 0]})])
    with pytest.raises(DataError, match="expected a digit"):
        build("array_environment", {"name": "ddpm"}).begin([Prompt("a", (), "12")])


def test_the_schedule_of_two_steps_worked_by_hand() -> None:
    """abar = 1, cos^2(36 deg) = 0.654508, cos^2(72 deg) = 0.095492; beta_2 = 1 - 0.095492 / 0.654508 =
    0.854102. c0 = sqrt(0.654508) 0.854102 / 0.904508 = 0.763932, c1 = sqrt(0.145898) 0.345492 / 0.904508 =
    0.145898, sigma^2 = 0.854102 (0.345492) / 0.904508 = 0.326238, s = 0.571173 / 0.763932 = 0.747674.
    """
    assert schedule(2, 0.1) == pytest.approx(
        np.array([[1, 0, 0.1], [0.763932, 0.145898, 0.747674]]), abs=2e-6
    )


def test_the_sampler_has_the_posterior_of_the_forward_process() -> None:
    """x_(t-1) given x_t and x_0, by Bayes from q(x_(t-1) | x_0) and q(x_t | x_(t-1)), in one dimension."""
    steps, x0, xt = 5, 0.7, -0.4
    kept = [math.cos(math.pi / 2 * t / (steps + 0.5)) ** 2 for t in range(steps + 1)]
    for t in range(2, steps + 1):
        alpha, before = kept[t] / kept[t - 1], 1 - kept[t - 1]
        precision = 1 / before + alpha / (1 - alpha)
        mean = (math.sqrt(kept[t - 1]) * x0 / before + math.sqrt(alpha) * xt / (1 - alpha)) / precision
        image, now, deviation = schedule(steps, 0.1)[t - 1]
        assert image * x0 + now * xt == pytest.approx(mean)
        assert image * deviation == pytest.approx(precision**-0.5)


def test_denoising_ends_with_the_last_prediction() -> None:
    prompt = Prompt("a", (), "3", meta={"image": [16, *[0] * 63]})
    world = build("array_environment", {"name": "ddpm", "steps": 2, "last": 0.5})
    seen = world.begin([prompt])
    assert seen.shape == (1, world.observation) == (1, 77) and world.action == 64
    assert seen[0, 64:74].tolist() == [0, 0, 0, 1, *[0] * 6] and seen[0, 74:76].tolist() == [0, 1]
    assert seen[0, -1] == pytest.approx(math.log(schedule(2, 0.5)[1, 2]))
    middle = world.step(np.ones((1, 64)))
    image, now, _ = schedule(2, 0.5)[1]
    assert middle.observations[0, :64] == pytest.approx(image + now * seen[0, :64])
    assert middle.observations[0, -1] == pytest.approx(math.log(0.5)) and not middle.done[0]
    assert world.expert(np.full((1, 64), 2.0))[0, :2].tolist() == [2.0, 0.0], "1 and -1, each with 0.5 x 2"
    last = world.step(world.expert(np.zeros((1, 64))))
    assert last.done[0] and last.observations[0, :3].tolist() == [1, -1, -1]
    assert world.summary() == ["@" + " " * 7 + ("\n" + " " * 8) * 7]
    assert world.score() == [{"ink": pytest.approx(1 / 64)}]
