"""An environment is one file: added to a temporary copy of the pieces, checked, and run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import ratchet.components.piece as pieces

HERE = Path(pieces.__file__).resolve().parent
CODE = '''"""Environment `countdown`: the policy says anything; the episode ends after `count` turns."""
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Observation, Prompt, Step


@piece()
class Countdown:
    """Counts the turns down, from `count`."""

    def __init__(self, *, count: Count = 2) -> None:
        self.left = count

    def begin(self, prompt: Prompt) -> Observation:
        return Observation(({"role": "user", "content": f"{self.left} left"},))

    def step(self, action: str) -> Step:
        self.left -= 1
        return Step(Observation(({"role": "user", "content": f"{self.left} left"},)), 1.0, done=not self.left)

    def score(self) -> dict[str, float]:
        return {"left": float(self.left)}
'''
RUN = """
from pathlib import Path
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.piece import build
from ratchet.components.recipes.recipe import load
from ratchet.components.types import Context, Prompt
recipe, _ = load("try_again", overrides=["online.rollout.environment={name: countdown, count: 3}"])
engine = TorchEngine(Path(MODEL), rows=4, threads=1)
prompts = [Prompt("p", ({"role": "user", "content": "hi"},))]
spec = {**recipe.online.rollout, "responses_per_prompt": 2, "max_tokens": 60, "max_length": 400}
(group,) = build("rollout", spec)(prompts, Context(models={"policy": engine}))
from ratchet.components.pieces.rewards.environment import environment
print([t.meta["score"] for t in group.trajectories], environment([group], Context())["reward.environment"])
"""


def test_a_new_environment_is_one_file(tmp_path: Path, tiny_model: Path) -> None:
    """The package is a folder of links to this one, but for the folder of environments."""
    root = tmp_path / "ratchet"

    def mirror(source: Path, target: Path, apart: tuple[str, ...]) -> None:
        target.mkdir()
        for entry in source.iterdir():
            if apart and entry.name == apart[0]:
                mirror(entry, target / entry.name, apart[1:])
            elif entry.name != "__pycache__":
                (target / entry.name).symlink_to(entry)

    mirror(HERE.parent / "infra" / "package" / "ratchet", root, ())
    (root / "components").unlink()
    mirror(HERE, root / "components", ("pieces", "environments"))
    (root / "components" / "pieces" / "environments" / "countdown.py").write_text(CODE)
    done = subprocess.run(
        [sys.executable, "-c", RUN.replace("MODEL", repr(str(tiny_model)))],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() == "[{'left': 0.0}, {'left': 0.0}] [[3.0, 3.0]]"
