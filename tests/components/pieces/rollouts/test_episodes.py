"""Rollout `episodes`: token-exact turns, spans and masks, ends, failures as data, on a scripted engine and on
the built-in one.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError, RecipeError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.piece import build
from ratchet.components.text.chat import encode, encode_reply
from ratchet.components.training.loop import annotate_groups, pieces, without_failed
from ratchet.components.types import Context, Group, Message, Prompt, Request, Sample, Trajectory

EOS, WRONG = 0, "No."


class Scripted:
    """An engine of characters. Each turn of episode i of a prompt is the next text of its script."""

    weights = "digest"

    def __init__(self, script: dict[str, list[list[str]]]) -> None:
        self.script, self.requests = script, []

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        return [*map(ord, "|".join(m["content"] for m in prompt.messages)), ord(">")]

    def encode_reply(self, messages: Sequence[Message]) -> list[int]:
        return [ord("<"), *map(ord, "|".join(m["content"] for m in messages)), ord(">")]

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(t) for t in tokens if t != EOS)

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        found = []
        for request in requests:
            self.requests.append(request)
            text = "".join(chr(t) if t else "." for t in request.tokens)
            script, turn = self.script[text.partition(">")[0]], text.count("<")
            if not turn:
                found.append([self._sample(e[0], request.max_tokens) for e in script[: request.count]])
                continue
            done = [a.partition("<")[0].rstrip(".") for a in text.split(">")[1:-1]]
            (episode,) = (e for e in script if e[:turn] == done)
            found.append([self._sample(episode[turn], request.max_tokens)])
        return found

    @staticmethod
    def _sample(text: str, most: int) -> Sample:
        whole = [*map(ord, text), EOS]
        tokens = whole[:most]
        numbers = tuple(-0.5 * (i + 1) for i in range(len(tokens)))
        return Sample(tuple(tokens), numbers, "end" if len(tokens) == len(whole) else "length")


def run(
    script: dict[str, list[list[str]]], answers: dict[str, str], **options: Any
) -> tuple[list[Group], Scripted]:
    engine = Scripted(script)
    environment = {"name": "retry", "feedback": WRONG, **options.pop("environment", {})}
    prompts = [Prompt(name, ({"role": "user", "content": name},), answer=answers[name]) for name in script]
    spec = {"name": "episodes", "environment": environment, "responses_per_prompt": 1, "turns": 3, **options}
    return build("rollout", spec)(prompts, Context(models={"policy": engine}, seed=1, round=2)), engine


def test_turns_spans_mask_and_columns_of_an_episode_worked_by_hand() -> None:
    ((group,), engine) = run({"q": [["1", "7"]]}, {"q": "7"})
    (t,) = group.trajectories
    assert "".join(chr(c) if c else "." for c in t.inputs["tokens"]) == "q>1.<No.>7."
    assert [int(m) for m in t.mask] == [0, 0, 1, 1, 0, 0, 0, 0, 0, 1, 1]
    assert list(t.logprobs or ()) == [0, 0, -0.5, -1.0, 0, 0, 0, 0, 0, -0.5, -1.0]
    assert [(s.start, s.stop, s.actor, s.kind, s.reward, s.valid) for s in t.spans] == [
        (2, 4, "policy", "act", 0.0, True),
        (4, 9, "environment", "observe", None, True),
        (9, 11, "policy", "act", 1.0, True),
    ]
    assert group.columns == {
        "turn": [[0, 0, 1, 1, 0, 0, 0, 0, 0, 2, 2]],
        "turn_end": [[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]],
        "turn_reward": [[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]],
    }
    assert [m["content"] for m in t.messages] == ["1", "No.", "7"] and t.text == "7"
    assert t.stop == "environment" and t.meta["score"] == {
        "solved": 1.0,
        "first": 0.0,
        "last": 1.0,
        "attempts": 2.0,
        "distinct": 1.0,
    }
    assert list(engine.requests[1].tokens) == t.inputs["tokens"][:9], "the second turn continues these tokens"


def test_episodes_end_by_the_environment_the_turn_limit_or_length() -> None:
    script = {"a": [["7", "1"]], "b": [["1", "2", "3"]], "c": [["12345"]], "d": [["1", "2"]]}
    groups, _ = run(script, dict.fromkeys(script, "7"), turns=2, max_tokens=4, max_length=9)
    stops = {g.prompt.id: g.trajectories[0].stop for g in groups}
    assert stops == {"a": "environment", "b": "turns", "c": "length", "d": "turns"}
    cut = groups[2].trajectories[0]
    assert [(s.valid, s.reward) for s in cut.spans] == [(False, None)], "its action was not taken"
    tight, _ = run({"b": script["b"]}, {"b": "7"}, turns=3, max_length=7)
    assert tight[0].trajectories[0].stop == "length" and len(tight[0].trajectories[0].spans) == 1


def test_a_broken_environment_is_a_failed_trajectory_and_never_a_reward_of_0() -> None:
    script = {"a": [["1", "1", "1"]], "b": [["7"]]}
    groups, _ = run(script, {"a": None, "b": "7"})  # pyright: ignore[reportArgumentType]
    broken, fine = (g.trajectories[0] for g in groups)
    assert broken.stop == "error" and "has no answer" in broken.meta["error"] and not broken.meta["score"]
    assert fine.stop == "environment"
    kept, counts = without_failed(groups, 0.5)
    assert [g.prompt.id for g in kept] == ["b"] and counts == {"trajectories that failed": 1}
    with pytest.raises(DataError, match=r"1 of 2 trajectories failed .at most 10%.*has no answer"):
        annotate_groups(groups, pieces("annotate", [{"name": "rewards.attempts"}]), Context(), max_failed=0.1)


def test_an_empty_attempt_is_invalid_and_the_episode_goes_on() -> None:
    ((group,), _) = run({"q": [["", "7"]]}, {"q": "7"})
    acts = [s for s in group.trajectories[0].spans if s.kind == "act"]
    assert [(s.valid, s.reward) for s in acts] == [(False, 0.0), (True, 1.0)]


def test_environment_that_is_unknown_or_has_a_wrong_option_is_refused() -> None:
    for environment, says in (
        ({"name": "rety"}, "no environment piece named 'rety'; did you mean 'retry'"),
        ({"name": "retry", "attemps": 2}, "'retry' takes no 'attemps'"),
        ({"name": "retry", "attempts": 0}, "attempts: expected 1 or more, got 0"),
        ({"name": "retry", "verifier": {"name": "rewards.exact"}}, "rewards.exact"),
    ):
        with pytest.raises(RecipeError) as refused:
            build("rollout", {"name": "episodes", "environment": environment})
        assert says in str(refused.value)


def test_groups_of_episodes_survive_the_disk(tmp_path: Path) -> None:
    groups, _ = run({"q": [["", "7"]]}, {"q": "7"})
    write_groups(tmp_path / "groups.parquet", groups)
    assert (
        read_groups(tmp_path / "groups.parquet")[0].trajectories[0].spans == groups[0].trajectories[0].spans
    )


@pytest.fixture(scope="module")
def engine(tiny_model: Path) -> TorchEngine:
    return TorchEngine(tiny_model, rows=6, threads=1)


class Recording:
    """An engine that keeps every sample it gives."""

    def __init__(self, engine: TorchEngine) -> None:
        self.engine, self.samples = engine, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        found = self.engine.generate(requests)
        self.samples += [s for samples in found for s in samples]
        return found


def played(engine: Any, *names: str, **options: Any) -> list[Group]:
    prompts = [
        Prompt(name, ({"role": "user", "content": f"What is {name} + 4?"},), answer="x") for name in names
    ]
    spec = {
        "name": "episodes",
        "environment": {"name": "retry", "attempts": 3},
        "responses_per_prompt": 2,
        "max_tokens": 12,
        **options,
    }
    return build("rollout", spec)(prompts, Context(models={"policy": engine}, seed=1))


def test_trained_tokens_are_the_sampled_ones_and_score_as_they_were_sampled(engine: TorchEngine) -> None:
    recording = Recording(engine)
    groups = played(recording, "3", "52")
    sampled = sorted(s.tokens for s in recording.samples)
    trained = sorted(
        tuple(t.inputs["tokens"][s.start : s.stop])
        for g in groups
        for t in g.trajectories
        for s in t.spans
        if s.kind == "act"
    )
    assert trained == sampled and len(sampled) >= 8
    for group, scored in zip(groups, engine.score(groups, frozenset({"logprobs"})), strict=True):
        for t, row in zip(group.trajectories, scored["logprobs"], strict=True):
            own = [i for s in t.spans if s.kind == "act" for i in range(s.start, s.stop)]
            assert [i for i, m in enumerate(t.mask) if m] == own, "the mask is the policy's turns"
            assert [row[i] for i in own] == pytest.approx([(t.logprobs or ())[i] for i in own], abs=2e-4)
            for span in (s for s in t.spans if s.kind == "observe"):
                feedback: list[Message] = [{"role": "user", "content": "Incorrect. Please think again."}]
                assert t.inputs["tokens"][span.start : span.stop] == encode_reply(engine.tokenizer, feedback)


def test_tokens_of_an_episode_are_those_of_its_conversation(engine: TorchEngine) -> None:
    compared = 0
    for group in played(engine, "3", "7", "52"):
        for t in group.trajectories:
            if t.stop != "environment":
                continue
            again = encode(engine.tokenizer, group.prompt, Trajectory(t.messages))
            same = engine.decode(again.inputs["tokens"]) == engine.decode(t.inputs["tokens"])
            assert same and len([m for m in again.messages if m["role"] == "assistant"]) == 3
            compared += 1
    assert compared


def test_first_turn_is_that_of_sample_and_order_changes_nothing(engine: TorchEngine) -> None:
    both = played(engine, "3", "52")
    assert [g.trajectories for g in played(engine, "52", "3")] == [g.trajectories for g in both[::-1]]
    spec = {"name": "sample", "responses_per_prompt": 2, "max_tokens": 12}
    (first,) = build("rollout", spec)([both[0].prompt], Context(models={"policy": engine}, seed=1))
    assert [t.messages[0] for t in both[0].trajectories] == [t.messages[0] for t in first.trajectories]


def test_one_turn_in_an_environment_is_sample_with_a_reward(engine: TorchEngine) -> None:
    (group,) = played(engine, "3", environment={"name": "retry", "attempts": 1})
    spec = {"name": "sample", "responses_per_prompt": 2, "max_tokens": 12}
    (plain,) = build("rollout", spec)([group.prompt], Context(models={"policy": engine}, seed=1))
    for t, other in zip(group.trajectories, plain.trajectories, strict=True):
        assert (t.inputs, t.mask, t.logprobs) == (other.inputs, other.mask, other.logprobs)
