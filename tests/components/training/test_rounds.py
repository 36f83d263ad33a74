"""Parts of a round: state of pieces from round to round, and work that the ranks share."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.piece import catalogue, resolve
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load
from ratchet.components.training import rounds
from ratchet.components.training.loop import pieces
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(name: str, *texts: str) -> Group:
    return Group(
        Prompt(
            name,
            ({"role": "user", "content": "?"},),
            answer="2",
            meta={"accepted": ["2"], "language": 2, "steps": ["plus 2"], "preference": "style"},
        ),
        tuple(
            Trajectory(
                ({"role": "assistant", "content": text},),
                {"tokens": [1, *range(len(text))]},
                [False] + [True] * len(text),
                [-0.5] * (len(text) + 1),
            )
            for text in texts
        ),
    )


@dataclasses.dataclass
class Scorer:
    """Every output of a token is its number; the score of an answer its length."""

    weights: str = "w"
    seen: int = 0

    def encode(self, group: Group) -> Group:
        return group

    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, Any]]:
        self.seen += len(groups)
        return [
            {
                name: [
                    float(len(t.text)) if name == "scores" else [float(x) for x in t.inputs["tokens"]]
                    for t in g.trajectories
                ]
                for name in outputs
            }
            for g in groups
        ]


def free_of_options(name: str) -> bool:
    try:
        resolve("annotate", name)
    except Exception:
        return False
    described = catalogue("annotate")[name]
    return not described.reads and "gpu" not in name


BY_GROUP = [name for name, one in catalogue("annotate").items() if one.by_group and free_of_options(name)]


@pytest.mark.parametrize("name", [n for n in BY_GROUP if "unit_tests" not in n and "fine_grained" not in n])
def test_annotators_by_group_give_a_group_the_same_values_alone(name: str) -> None:
    groups = [group("p", "2", "33", "<think>2</think>"), group("q", "a b a b", "no"), group("r", "", "2 2")]
    models = {name: Scorer() for name in ("policy", "reference", "reward_model")}
    (annotator,) = pieces("annotate", [{"name": name}])
    together = annotator.call(groups, Context(models=models))
    alone = [annotator.call([one], Context(models=models)) for one in groups]
    assert together == {column: [one[column][0] for one in alone] for column in together}


def test_rewards_that_standardise_over_all_answers_are_not_by_group() -> None:
    assert BY_GROUP and not catalogue("annotate")["rewards.ensemble"].by_group


RANK = """
import json, sys
from ratchet.components.training import ranks
from test_rounds import Scorer, group
from ratchet.components.training.loop import annotate_groups, pieces
from ratchet.components.types import Context
ranks.join()
groups = [group(f"p{i}", "2", "x" * (i + 1)) for i in range(5)]
model = Scorer(f"w{0}")
specs = [{"name": "rewards.reward_model"}, {"name": "scoring.logprobs"}, {"name": "rewards.exact_answer"}]
marked, _ = annotate_groups(groups, pieces("annotate", specs), Context(models={"reward_model": model, "reference": model}), max_failed=0)
print(json.dumps([model.seen, [g.columns for g in marked], [g.prompt.meta for g in marked]]))
"""  # noqa: E501


def test_two_ranks_score_each_group_once_with_the_results_of_one() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    path = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    alone, *both = [
        subprocess.Popen(
            [sys.executable, "-c", RANK],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **rank},
        )
        for rank in (
            {},
            *(
                {"RANK": n, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                for n in ("0", "1")
            ),
        )
    ]
    (seen, *expected), *found = [json.loads(p.communicate(timeout=120)[0]) for p in (alone, *both)]
    assert seen == 10 and [one[0] for one in found] in ([4, 6], [6, 4]), "each of two models' scores once"
    assert [one[1:] for one in found] == [expected, expected]


REPLAY = [{"name": "replay", "share": 1.0}]


def test_state_of_pieces_goes_from_a_round_to_the_next(tmp_path: Path) -> None:
    ctx = Context(seed=1, round=1)
    first = rounds.Pieces({"select": REPLAY})
    groups = [group("p", "2"), group("q", "3")]
    assert len(first["select"][0].call(groups, ctx)) == 2, "nothing to replay"
    rounds.save_memories(first.memories, tmp_path)
    fresh, restored = rounds.Pieces({"select": REPLAY}), rounds.Pieces({"select": REPLAY})
    rounds.restore_memories(restored.memories, tmp_path)
    rounds.restore_memories(fresh.memories, tmp_path / "none")
    later = dataclasses.replace(ctx, round=2)
    assert len(fresh["select"][0].call(groups, later)) == 2
    assert len(restored["select"][0].call(groups, later)) == 4


def test_stages_of_rounds_read_the_state_of_the_round_before() -> None:
    recipe, profile = load(
        "raft",
        overrides=[
            "online.select=[{name: best_of_n, reward: reward.exact_answer}, {name: replay}]",
            "online.prompts={name: difficulty_pool, reward: reward.exact_answer}",
            "online.annotate=[{name: rewards.exact_answer}]",
        ],
    )
    stages = plan(recipe, profile)
    assert stages["select_2"].inputs["before"] == "select_1"
    assert stages["rollout_2"].inputs["before"] == "rollout_1"
    assert stages["rollout_2"].inputs["answered"] == "annotate_1"
    assert not {"before", "answered"} & {*stages["select_1"].inputs, *stages["rollout_1"].inputs}
    assert "before" not in stages["annotate_2"].inputs, "rewards without state"


def test_columns_are_written_again_with_the_weights_of_each_update() -> None:
    """`before` sees the step's groups and runs before each optimizer step; `after` follows it."""
    events: list[str] = []

    class Learner:
        steps = 0

        def __call__(self, batch: Any, outputs: Any) -> Any:
            from ratchet.components.types import Outputs

            events.append(f"forward {batch['mark'].tolist()}")
            return Outputs({"logprobs": batch.mask.float().requires_grad_()})

        def backward(self, loss: Any) -> None:
            loss.backward()

        def step(self, at: Any = None) -> dict[str, float]:
            self.steps += 1
            return {}

    from ratchet.components.training.objectives import parts

    learner, spec = Learner(), {"name": "likelihood", "weight": 1.0, "reduce": "token_mean", "label": "nll"}
    _, steps = rounds.update(
        {"policy": learner},  # type: ignore[dict-item]
        {"policy": parts([spec])},
        [group("p", "2"), group("q", "3")],
        {"batch": 1, "epochs": 2},
        tokens=100,
        seed=0,
        at=0,
        before=lambda some: [g.with_columns(mark=[float(learner.steps)]) for g in some],
        after=lambda: events.append("after"),
    )
    assert steps == learner.steps == 4
    assert events == [text for n in range(4) for text in (f"forward [{float(n)}]", "after")]
