"""Recipe `chat`: human ratings that do not carry a reward model. It stops at the certificate."""

from __future__ import annotations

import json
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.components.data.tiny_language import OPENERS, SUBJECTS
from ratchet.tasks.registry.versions import models
from tests.flows.test_flow import ratchet

REPLIES = ("I like {} a lot.", "No, I do not.", "There is a lot to say about {}.", "Why {}?", "Oh, yes.")
RECIPE = """
schema: 1
base: chat
about: The recipe chat on the tiny model.
models: {policy: {source: "generate:tiny?seed=0", sha256: null, format: tiny}, encoder: null}
data: {source: "path:chats.json", sha256: null, transforms: [], near_threshold: null, decontaminate: null, min_groups: 4, max_dropped: null, max_topic_share: 1.0}
sft: {fit: {min_ended: 0.0, adapter: {name: top_layers, count: 2}}}
reward: {layers: 2}
online: {prompts_per_round: 16, watch: {gold: false}, health: {reward_without_gold: null, gold_drop: null}, fit: {adapter: {name: top_layers, count: 2}}}
evaluate: {gold: false}
register: {gates: {win_rate_vs_sft: null, proxy_over_gold: null}}
"""  # noqa: E501  the path of `chat`, without its gold measure, whose encoder is a download


def rated_at_random(count: int) -> dict[str, dict[str, object]]:
    """Conversations in chitchat-dataset's layout whose ratings say nothing of what was said."""
    rng, found = random.Random(0), {}
    for number in range(count):
        topic = rng.choice(SUBJECTS)
        turns = [rng.choice(OPENERS if i % 2 == 0 else REPLIES).format(topic) for i in range(8)]
        found[str(number)] = {
            "messages": [[{"text": text, "sender": "ab"[i % 2]} for i, text in enumerate(turns)]],
            "prompt": topic,
            "ratings": {"witty": rng.randint(1, 10)},
            "start": "2020-01-01",
        }
    return found


def assert_refused(done: subprocess.CompletedProcess[str], home: Path) -> None:
    """Exit code 1 with the certificate's sentence; nothing was sampled by a policy, nothing registered."""
    assert done.returncode == 1, done.stdout + done.stderr
    (error,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "'reward_model' failed its certificate: held-out accuracy is" in error
    assert "expected a lower bound above 50.0% (chance)" in error
    (run,) = (home / "runs").iterdir()
    state = json.loads((run / "run.json").read_text())
    assert state["state"] == "failed" and state["error"].startswith("ContractError: the reward model")
    assert not state.get("versions") and not state.get("registered") and not state.get("champion")
    assert (run / "stages" / "reward").exists() and not (run / "stages" / "rollout_1").exists()
    assert not models(home=home)


def test_ratings_without_a_signal_end_the_recipe_chat_at_its_certificate(
    fresh_home: Callable[[str], Path],
) -> None:
    home = fresh_home("user")
    (home / "small_chat.yaml").write_text(RECIPE)
    (home / "chats.json").write_text(json.dumps(rated_at_random(300)))
    options = ("--profile", "test", "--home", str(home))
    assert_refused(ratchet("run", "small_chat.yaml", *options, cwd=home, check=False), home)


@pytest.mark.slow
def test_the_recipe_chat_ends_at_its_certificate(tmp_path: Path) -> None:
    """The recipe as it ships, on people's ratings: docs/results.md has its figures."""
    home = tmp_path / "home"
    assert_refused(ratchet("run", "chat", "--home", str(home), cwd=tmp_path, check=False), home)
