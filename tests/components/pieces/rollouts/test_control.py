"""The rollouts `control` and `control.expert`."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import ContractError
from ratchet.components.inference.arrays import ArrayEngine
from ratchet.components.models.families import new_model, save_family
from ratchet.components.piece import build
from ratchet.components.pieces.array_environments.point_mass import PointMass
from ratchet.components.types import Context, Prompt

MASS = {"name": "point_mass", "length": 4}
PROMPTS = [Prompt(f"p{i}", (), meta={"start": [i / 4, -0.5, 0.1, 0.0]}) for i in range(3)]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> ArrayEngine:
    path = tmp_path_factory.mktemp("policy")
    save_family(new_model({"name": "gaussian", "observation": 5, "action": 2, "hidden": 8}), path)
    return ArrayEngine(path)


def run(engine, prompts=PROMPTS, *, round: int = 0, **options):
    spec = {"name": "control", "environment": MASS, "responses_per_prompt": 2, **options}
    return build("rollout", spec)(prompts, Context({"policy": engine}, seed=1, round=round))


def test_episodes_have_the_steps_of_the_environment(engine: ArrayEngine, tmp_path: Path) -> None:
    groups = run(engine)
    path = groups[1].trajectories[1]
    assert [len(g.trajectories) for g in groups] == [2, 2, 2] and len(path.mask) == 4 and all(path.mask)
    world = build("array_environment", MASS)
    seen, rewards = [world.begin([PROMPTS[1]])], []
    for action in path.inputs["actions"]:
        step = world.step([action])
        seen.append(step.observations)
        rewards.append(np.float32(step.rewards[0]))
    assert np.allclose(path.inputs["observations"], np.concatenate(seen[:-1]))
    assert groups[1].columns["turn_reward"][1] == rewards == [span.reward for span in path.spans]
    assert path.stop == "environment" and path.text == world.summary()[0] and path.actor == "policy"
    assert path.meta["score"] == world.score()[0]
    scored = engine.score(groups, frozenset({"logprobs"}))
    assert np.allclose(scored[1]["logprobs"][1], path.logprobs, atol=1e-5)
    assert read_groups(write_groups(tmp_path / "g.parquet", groups))[1].trajectories[1].inputs == path.inputs


def test_random_numbers_depend_on_seed_round_prompt_episode_and_step(engine: ArrayEngine) -> None:
    groups = run(engine)
    assert run(engine) == groups
    (alone,) = run(engine, PROMPTS[1:2])
    for one, other in zip(alone.trajectories, groups[1].trajectories, strict=True):
        assert np.allclose(one.inputs["actions"], other.inputs["actions"], atol=1e-5)
    noise = [
        t.inputs["actions"][0] for t in (*groups[1].trajectories, run(engine, round=1)[1].trajectories[0])
    ]
    assert min(np.abs(np.subtract(a, b)).max() for a, b in itertools.combinations(noise, 2)) > 0.01
    first, second = groups[0].trajectories[0].inputs["actions"][:2]
    assert np.abs(np.subtract(first, second)).max() > 0.01


def test_a_limit_cuts_an_episode(engine: ArrayEngine) -> None:
    path = run(engine, steps=3)[0].trajectories[0]
    assert path.stop == "turns" and len(path.mask) == 3
    assert run(engine, []) == []


def test_an_episode_that_breaks_fails_alone(engine: ArrayEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    step = PointMass.step

    def breaks(self, actions):
        made = step(self, actions)
        if self.taken == 2:
            self.place[0] = made.observations[0, 0] = np.nan
        return made

    fine = run(engine)
    monkeypatch.setattr(PointMass, "step", breaks)
    groups = run(engine)
    assert (
        groups[0].trajectories[0].stop == "error" and "not finite" in groups[0].trajectories[0].meta["error"]
    )
    assert len(groups[0].trajectories[0].mask) == 2
    assert groups[0].trajectories[1:] == fine[0].trajectories[1:] and groups[1:] == fine[1:]


def test_an_episode_that_ended_takes_no_more_steps(
    engine: ArrayEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = PointMass.step

    def ends(self, actions):
        made = step(self, actions)
        made.done[1] = self.taken >= 2
        return made

    monkeypatch.setattr(PointMass, "step", ends)
    lengths = [[len(t.mask) for t in group.trajectories] for group in run(engine)]
    assert lengths == [[4, 2], [4, 4], [4, 4]]


def test_the_experts_episodes_have_no_log_probs(engine: ArrayEngine) -> None:
    spec = {"name": "control.expert", "environment": {**MASS, "noise": 1e-9}, "count": 2, "steps": 4}
    groups = build("rollout", spec)(PROMPTS, Context(seed=1))
    path = groups[2].trajectories[0]
    assert path.logprobs is None and path.actor == "expert" and len(groups[2].trajectories) == 2
    seen, actions = np.array(path.inputs["observations"]), np.array(path.inputs["actions"])
    assert np.allclose(actions, -seen[:, :2] - 0.4 * seen[:, 2:4], atol=1e-6)


def test_a_language_model_and_other_sizes_are_refused(tmp_path: Path, engine: ArrayEngine) -> None:
    with pytest.raises(ContractError, match="does not act on observations"):
        run(object())
    with pytest.raises(ContractError, match="observations of 5 numbers"):
        run(engine, [Prompt("a", (), "3")], environment={"name": "ddpm"})
