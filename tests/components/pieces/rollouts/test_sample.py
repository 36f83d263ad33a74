"""Groups made by the sampler, on a tiny engine that draws letters from the request's seed."""

import math
import random

from ratchet.components.piece import build
from ratchet.components.types import Context, Message, Prompt, Sample

STOP = 0


class Letters:
    """Answers 1 to 3 letters and the stop token, uniform over 26."""

    weights = "digest"

    def encode_prompt(self, prompt):
        return [ord(c) for c in prompt.messages[-1]["content"]]

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens if t != STOP)

    def generate(self, requests):
        answers = []
        for request in requests:
            rng = random.Random(request.seed)
            drawn = [
                [*(97 + rng.randrange(26) for _ in range(rng.randint(1, 3))), STOP]
                for _ in range(request.count)
            ]
            answers.append([Sample(tuple(t), (-math.log(26),) * len(t), "end") for t in drawn])
        return answers


def prompt(name):
    return Prompt(name, (Message(role="user", content="hi"),))


def sample(names, **ctx):
    context = Context(models={"policy": Letters()}, **{"seed": 1, "round": 2, **ctx})
    return build("rollout", {"name": "sample", "responses_per_prompt": 3, "temperature": 0.7})(
        [prompt(n) for n in names], context
    )


def test_alignment_and_provenance():
    (group,) = sample(["a"])
    assert len(group.trajectories) == 3
    for i, t in enumerate(group.trajectories):
        assert t.inputs["tokens"][:2] == [104, 105]
        assert t.inputs["tokens"][-1] == STOP
        assert len(t.mask) == len(t.logprobs) == len(t.inputs["tokens"])
        assert list(t.mask) == [False] * 2 + [True] * (
            len(t.text) + 1
        )  # the stop token is the policy's choice too
        assert t.logprobs[:2] == [0.0, 0.0]
        assert (t.actor, t.weights, t.stop) == ("policy", "digest", "end")
        assert {k: t.meta[k] for k in ("round", "temperature", "sample")} == {
            "round": 2,
            "temperature": 0.7,
            "sample": i,
        }


def test_answers_depend_on_seed_round_and_prompt_alone():
    texts = {g.prompt.id: [t.text for t in g.trajectories] for g in sample(["a", "b"])}
    again = {g.prompt.id: [t.text for t in g.trajectories] for g in sample(["b", "c", "a"])}
    assert all(texts[name] == again[name] for name in texts)
    assert texts["a"] != texts["b"]
    assert [t.text for t in sample(["a"], round=3)[0].trajectories] != texts["a"]
    assert [t.text for t in sample(["a"], seed=2)[0].trajectories] != texts["a"]
