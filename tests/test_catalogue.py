"""The shipped recipes: loaded, cited, planned; a new method needs one piece and one recipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.components.piece import SLOTS, catalogue
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load, names
from ratchet.components.recipes.yaml_files import folder, shipped
from tests.shipped import shipped_recipe

ROOT = Path(__file__).resolve().parent.parent
METHODS = [
    "sft",
    "dpo",
    "kto",
    "online_dpo",
    "raft",
    "reward_model",
    "reward_ensemble",
    "rlvr_grpo",
    "rloo",
    "ppo",
    "chat",
]
GENERAL = [
    "tests/test_catalogue.py",
    "tests/test_laws.py",
    "tests/test_boundaries.py",
    "tests/oracles",
    "tests/components/test_piece.py",
    "tests/components/recipes/test_recipe.py",
]
"""Tests of whatever pieces and recipes there are."""


def test_every_promised_method_has_a_recipe() -> None:
    assert not set(METHODS) - set(names())


@pytest.mark.parametrize("name", names())
def test_a_recipe_is_short_cited_and_planned(name: str) -> None:
    recipe, profile = shipped_recipe(name)
    text = shipped()[name].read_text()
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert recipe.paper.startswith("arXiv:") and 5 <= len(lines) <= (
        32 if recipe.profile == "node" else 20
    ), "a published recipe has more to say"
    for baseline in recipe.claim.recipes if recipe.claim else ():
        assert shipped_recipe(baseline)[0].evaluate is not None
        assert recipe.evaluate is not None, "a claim is checked by `ratchet claims`"
    stages = plan(recipe, profile)
    assert len({stage.key for stage in stages.values()}) == len(stages)
    for stage in stages.values():
        assert all(parent in stages for parent in stage.inputs.values())


@pytest.mark.parametrize("slot", ["objective", "annotate", "select", "rollout"])
def test_every_method_piece_is_cited(slot: str) -> None:
    ours = {"rewards.combine", "without_personal_data", "without_restatements"}
    bare = {name for name, piece in catalogue(slot).items() if not piece.paper and "arXiv" not in piece.doc}
    assert not {b for b in bare if not b.startswith("rewards.")} - ours


def test_a_new_method_is_one_piece_and_one_recipe(tiny_model: Path, tmp_path: Path) -> None:
    for part in ("components", "flows", "tasks", "tests", "infra/package"):
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True)  # with compiled modules
    (tmp_path / "components" / "pieces" / "objectives" / "squared.py").write_text('''"""A made-up loss."""
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Positive
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("advantages",), outputs=("logprobs",), unit="step", paper="arXiv:0000.00000")
def squared(out: Outputs, batch: Batch, *, power: Positive = 2.0) -> Terms:
    """Nothing anybody should train with.

    >>> squared(Outputs({"logprobs": torch.tensor([[-3.0, 1.0]])}), batch).loss
    tensor([[9., 1.]])
    """
    return Terms(out.logprobs**2)
''')
    (tmp_path / "flows" / "recipes" / "squared.yaml").write_text("""schema: 1
base: steps
about: a new method
paper: arXiv:0000.00000
online:
  annotate: [{name: rewards.exact_answer}, {name: advantages.centre, reward: reward.exact_answer}]
  fit: {updates: {policy: [{name: squared, power: 3.0}]}}
""")

    general = ("-m", "pytest", "--import-mode=importlib", "-q", "-rA", "-k", "squared", *GENERAL)
    output = _python(tmp_path, *general)
    assert (
        "test_every_objective_has_an_oracle[squared]" in output
        and "test_masked_tokens_do_not_affect_the_loss[999.0-squared]" in output
    )
    shutil.copytree(tiny_model, tmp_path / "home" / "store" / tiny_model.name)
    code = (
        "from pathlib import Path; from typer.testing import CliRunner; from ratchet.flows.cli import app\n"
        "from ratchet.tasks.pipeline import Pipeline\n"
        "print(CliRunner().invoke(app, ['recipes', 'check', 'squared']).output)\n"
        "run = Pipeline.open('squared', home=Path('home'), profile='test', overrides=['online.rounds=2', "
        "'evaluate.prompts=4'])\n"
        "for name in run.stages: run.make(name)\n"
        "print(run.artifact('improve').meta['steps'])"
    )
    output = _python(tmp_path, "-c", code).strip()
    assert output.startswith("squared: ok") and output.endswith("2")


HEAD = """from collections.abc import Iterator, Mapping, Sequence
from typing import Any
import numpy as np
import torch
from ratchet.components.piece import each, piece
from ratchet.components.protocols import ArrayStep
from ratchet.components.recipes.ranges import Count, Finite
from ratchet.components.types import Context, Group, Observation, Prompt, Step, Trajectory


"""
ADDED = {
    "testbeds/echoes.py": """@piece()
def echoes(*, size: Count = 40) -> Iterator[dict[str, Any]]:
    for number in range(size):
        yield {"id": str(number), "prompt": f"{number} + 1 =", "answer": str(number + 1)}
""",
    "environments/once_more.py": """@piece()
class OnceMore:
    def begin(self, prompt: Prompt) -> Observation:
        self.said: list[str] = []
        return Observation()

    def step(self, action: str) -> Step:
        self.said.append(action)
        again = Observation(({"role": "user", "content": "Again."},))
        return Step(again if len(self.said) < 2 else Observation(), float(len(action)), len(self.said) == 2)

    def score(self) -> Mapping[str, float]:
        return {"solved": float(len(self.said) == 2)}
""",
    "rewards/vowels.py": """@piece(writes=("reward.vowels", "reward.vowels.status"))
@each
def vowels(prompt: Prompt, trajectory: Trajectory) -> float:
    return float(sum(letter in "aeiou" for letter in trajectory.text) + len(trajectory.text))
""",
    "measures/letters.py": """@piece()
def letters(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    return [[float(len(t.text)) for t in group.trajectories] for group in groups]
""",
    "health/wordy.py": """@piece()
def wordy(history: Sequence[Mapping[str, float]], *, limit: Finite) -> tuple[bool, float, str]:
    return history[-1]["length"] > limit, history[-1]["length"], "the answers are wordy"
""",
    "families/linear.py": """@piece()
class Linear(torch.nn.Module):
    def __init__(self, *, observation: Count, action: Count, values: bool = False) -> None:
        super().__init__()
        self.observation, self.action, self.map = observation, action, torch.nn.Linear(observation, action)

    def act(self, observations, noise):
        actions = self.map(observations) + noise
        return actions, self.outputs(observations, actions, ["logprobs"])["logprobs"]

    def outputs(self, observations, actions, names):
        found = -0.5 * (actions - self.map(observations)).square().sum(-1)
        return {name: found for name in names}
""",
    "array_environments/origin.py": """@piece()
class Origin:
    observation, action = 2, 2

    def begin(self, prompts: Sequence[Prompt]) -> Any:
        self.state, self.left = np.ones((len(prompts), 2)), 3
        return self.state

    def step(self, actions: Any) -> ArrayStep:
        self.state, self.left = self.state + np.clip(actions, -1, 1), self.left - 1
        done = np.full(len(self.state), self.left == 0)
        return ArrayStep(self.state, -np.abs(self.state).sum(1), done)

    def score(self) -> list[Mapping[str, float]]:
        return [{"solved": float(np.abs(row).sum() < 1)} for row in self.state]

    def summary(self) -> list[str]:
        return [f"at {row.round(1).tolist()}" for row in self.state]
""",
}
"""One file of each kind that DESIGN lets a user add, beside the objective of the test above."""
RECIPES = {
    "words": """schema: 1
base: steps
about: new pieces of language models
data: {source: "generate:echoes?size=60", near_threshold: null, decontaminate: null}
online:
  rounds: 2
  prompts_per_round: 8
  rollout: {name: episodes, environment: {name: once_more}, responses_per_prompt: 8, turns: 2, max_tokens: 4}
  annotate: [rewards.vowels, rewards.environment.solved, {name: advantages.centre, reward: reward.vowels}]
  health: {wordy: {limit: 0.5, action: warn}}
  fit: {updates: {policy: [{name: reinforce, reduce: row_sum}]}, batch: 4}
evaluate: {prompts: 4, max_tokens: 4, measures: [letters], metrics: [rewards.vowels]}
""",
    "arrays": """schema: 1
base: steps
about: a new model family
models: {policy: {source: "generate:linear?observation=2&action=2&seed=0", format: new}}
data: {source: "generate:echoes?size=40", near_threshold: null, decontaminate: null}
online:
  rounds: 2
  prompts_per_round: 4
  rollout: {name: control, environment: &origin {name: origin}, responses_per_prompt: 4, steps: 3}
  annotate: [rewards.environment, {name: advantages.centre, reward: reward.environment}]
  fit: {updates: {policy: [{name: clip, old: sampled}]}, batch: 4}
evaluate:
  prompts: 4
  perplexity_rows: 0
  rollout: {name: control, environment: *origin, steps: 3}
  metrics: [rewards.environment.solved]
register: null
""",
}


def test_every_kind_of_piece_is_one_file(tiny_model: Path, tmp_path: Path) -> None:
    """Testbed, environment, reward, measure, health rule and model family, each a file in a copy of the tree,
    run through all stages of a recipe.
    """
    for part in ("components", "flows", "tasks", "infra/package"):
        shutil.copytree(ROOT / part, tmp_path / part, symlinks=True)
    for name, text in ADDED.items():
        (tmp_path / "components" / "pieces" / name).write_text(HEAD + text)
    for name, text in RECIPES.items():
        (tmp_path / "flows" / "recipes" / f"{name}.yaml").write_text(text)
    shutil.copytree(tiny_model, tmp_path / "home" / "store" / tiny_model.name)
    code = (
        "import json; from pathlib import Path; from ratchet.tasks.pipeline import Pipeline\n"
        "for recipe in ('words', 'arrays'):\n"
        "    run = Pipeline.open(recipe, home=Path('home'), profile='test')\n"
        "    for name in run.stages: run.make(name)\n"
        "    improved, found = run.artifact('improve').meta, run.artifact('evaluate').meta\n"
        "    print(json.dumps([improved['steps'], improved.get('verdicts'), sorted(found)]))"
    )
    words, arrays = map(json.loads, _python(tmp_path, "-c", code).strip().splitlines()[-2:])
    assert words[0] == arrays[0] == 2
    assert "the answers are wordy" in json.dumps(words[1])
    assert {"final.letters", "final.reward.vowels"} <= set(words[2])
    assert "final.reward.solved" in arrays[2]


def _python(folder: Path, *command: str) -> str:
    """What Python prints with the packages of a copy of the tree."""
    environment = {**os.environ, "PYTHONPATH": str(folder / "infra" / "package")}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_recipes_of_all_families_have_different_names() -> None:
    files = [p for p in folder().rglob("*.yaml") if p.parent.name not in ("bases", "profiles")]
    assert sorted(p.stem for p in files) == names()


def test_every_slot_has_pieces_and_a_recipe_that_uses_one() -> None:
    used: set[str] = set()

    def look(value: Any) -> None:
        if isinstance(value, dict):
            used.update(slot for slot in SLOTS if value.get("name") in catalogue(slot))
            address = str(value.get("source", "")).removeprefix("generate:").partition("?")[0]
            used.update(slot for slot in ("testbed", "family") if address in catalogue(slot))
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            look(inner)

    for name in names():
        look(yaml.safe_load(shipped()[name].read_text()))
    for base in (ROOT / "flows" / "recipes" / "bases").glob("*.yaml"):
        look(yaml.safe_load(base.read_text()))
    assert used == set(SLOTS) and all(catalogue(slot) for slot in SLOTS)


def test_changing_round_two_redoes_round_two_onward() -> None:
    before = plan(*load("chat"))
    after = plan(*load("chat", overrides=["evaluate.prompts=8"]))
    assert {n for n in before if before[n].key != after[n].key and before[n].part != "evaluate"} == set()
    other = plan(*load("chat", overrides=["online.by_round.2.fit.learning_rate=1e-9"]))
    changed = {n for n in before if before[n].key != other[n].key and before[n].part != "evaluate"}
    assert changed == {"optimise_2", *(f"{step}_3" for step in ("rollout", "annotate", "select", "optimise"))}


def test_a_recipe_is_checked_without_heavy_imports() -> None:
    """Nothing heavier than YAML is loaded to know all its names, so that it takes under a second."""
    code = (
        "import sys; from ratchet.components.recipes.recipe import load; load('chat');"
        "print(sorted({'torch', 'numpy', 'pyarrow', 'scipy', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
