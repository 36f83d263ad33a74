"""vLLM as an engine. Quick: refusals, choosing, and the client's patience with a server that is lost. Slow:
the real vLLM, against the torch engine on a small random model: in this process where vllm is importable, as
a server of the environment whose python `RATCHET_VLLM_PYTHON` names, and behind the one at the address
`RATCHET_VLLM_SERVER`.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.components.errors import ContractError, ServiceError
from ratchet.components.inference.choose import SplitEngine, engine_of, ready, sampler
from ratchet.components.inference.server import Server
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.inference.vllm import Answer, VllmEngine, _best
from ratchet.components.inference.vllm_arguments import check_lengths, parameters
from ratchet.components.inference.vllm_weights import fits, shape, untied
from ratchet.components.models.load import load_model, load_policy, load_tokenizer, new_reward, save_model
from ratchet.components.models.tiny import train_tiny
from ratchet.components.models.value import FILE as VALUE_HEAD
from ratchet.components.recipes.correction import corrected
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.profile import Profile, Vllm
from ratchet.components.recipes.recipe import load
from ratchet.components.stages import progress
from ratchet.components.stages.job import Job
from ratchet.components.stages.run import as_request, execute
from ratchet.components.storage.store import Workspace
from ratchet.components.types import Artifact, Group, Prompt, Request, Trajectory
from tests.sampled import sampled_groups

HERE = importlib.util.find_spec("vllm") is not None
PYTHON = os.environ.get("RATCHET_VLLM_PYTHON", sys.executable if HERE else "")
SERVER = os.environ.get("RATCHET_VLLM_SERVER", "")
TOLERANCE = 1e-4
"""Largest difference of a log-prob in float32 between vLLM and the torch engine."""


def profile(**options: Any) -> dict[str, Any]:
    given = {"dtype": "float32", "max_model_len": 512, "cache_gb": 0.25, "eager": True, **options}
    return plain(Profile(engine="vllm", threads=1, max_num_seqs=16, vllm=Vllm(**given)))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    train_tiny(path, steps=2, hidden=64, layers=2, batch=8)
    return path


@pytest.fixture(scope="module")
def other(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model after some more training."""
    model = load_policy(tiny)
    with torch.no_grad():
        torch.manual_seed(1)
        for weight in model.parameters():
            weight.mul_(1 + 0.3 * torch.randn_like(weight))
    path = tmp_path_factory.mktemp("other")
    save_model(model, load_tokenizer(tiny), path)
    return path


# --- what needs no vLLM
# -----------------------------------------------------------------------------------------------


class Echo:
    """A backend that always samples token 5 and records its requests."""

    def __init__(self) -> None:
        self.loaded: list[str] = []
        self.requests: list[Any] = []

    def takes(self, path: Path) -> bool:
        return False

    def load(self, path: Path, weights: str) -> None:
        self.loaded.append(weights)

    def answer(self, rows: Any, settings: Any) -> list[Answer]:
        self.requests += zip(rows, settings, strict=True)
        return [Answer((5,), (-1.0,), tuple(-float(i) for i in range(len(row)))) for row in rows]

    def close(self) -> None: ...


class Fixed(Echo):
    """A backend that always samples the given tokens, with their likeliest alternatives."""

    def __init__(self, tokens: list[int]) -> None:
        super().__init__()
        self.tokens = tuple(tokens)

    def answer(self, rows: Any, settings: Any) -> list[Answer]:
        super().answer(rows, settings)
        numbers = tuple(-float(i) for i in range(len(self.tokens)))
        return [Answer(self.tokens, numbers, (), tuple(((t, -0.5),) for t in self.tokens)) for _ in rows]


def test_vllm_answer_is_cut_after_the_token_that_completes_a_stop_string(tiny: Path) -> None:
    tokens = load_tokenizer(tiny)("a b, c, d", add_special_tokens=False)["input_ids"]
    backend = Fixed(tokens)
    engine = VllmEngine(tiny, backend)
    ((cut, _), (whole,)) = engine.generate(
        [
            Request([1], count=2, max_tokens=20, stop_strings=(",",), top_logprobs=1),
            Request([1], max_tokens=20),
        ]
    )
    assert engine.decode(cut.tokens) == "a b," and cut.stop == "end"
    assert len(cut.logprobs) == len(cut.top) == len(cut.tokens)
    assert whole.tokens == tuple(tokens) and whole.stop == "length"
    assert [params["logprobs"] for _, params in backend.requests] == [1, 1, 0]
    with pytest.raises(ContractError, match="stop string"):
        engine.generate([Request([1], stop_strings=("",))])


def test_likeliest_tokens_of_vllm_exclude_a_sampled_token_of_lower_rank() -> None:
    one = namedtuple("one", "rank logprob")
    likeliest = {2: one(2, -2.0), 3: one(1, -0.1)}
    for sampled in ({}, {7: one(5, -4.0)}, {7: one(3, -4.0)}):
        assert _best({**likeliest, **sampled}, 2) == ((3, -0.1), (2, -2.0))
    assert _best({3: one(1, -0.1)}, 0) == ()


@pytest.mark.skipif(HERE, reason="vllm is installed here")
def test_profile_without_vllm_installed_is_refused(tiny: Path) -> None:
    for refused in (lambda: ready(profile()), lambda: engine_of(profile(), tiny)):
        with pytest.raises(ContractError, match=r"`engine: vllm`.*`vllm\.python`.*`engine: torch`"):
            refused()


@pytest.mark.parametrize("does", ["rollout", "improve", "answers"])
def test_a_stage_that_samples_is_refused_before_it_starts(does: str, tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="/no/such/python"):
        execute(as_request(does, {"profile": profile(python="/no/such/python")}, {}, tmp_path))


@pytest.mark.parametrize("does", ["sft", "reward", "annotate", "optimise", "evaluate"])
def test_training_and_scoring_stages_need_no_vllm(does: str, tmp_path: Path) -> None:
    with pytest.raises(KeyError):  # it has begun, and asks for its options and inputs
        execute(as_request(does, {"profile": profile(python="/no/such/python")}, {}, tmp_path))


def test_missing_vllm_environment_is_refused() -> None:
    with pytest.raises(ContractError, match=r"`vllm\.python`: /no/such/python"):
        ready(profile(python="/no/such/python"))
    ready(profile(python=sys.executable))
    ready(profile(server="http://elsewhere:8000"))
    ready(plain(Profile()))


def test_engine_is_selected_by_profile_and_request(tiny: Path, tmp_path: Path) -> None:
    torch_profile, vllm_profile = plain(Profile(threads=1)), profile(server="http://127.0.0.1:9")
    save_model(new_reward(tiny, layers=1, pool="mean"), load_tokenizer(tiny), tmp_path)
    assert isinstance(engine_of(torch_profile, tiny), TorchEngine)
    assert isinstance(engine_of(vllm_profile, tmp_path, "reward"), TorchEngine), (
        "vLLM cannot compute our reward heads"
    )
    split = engine_of(vllm_profile, tiny, "policy_with_value")
    assert isinstance(split, SplitEngine) and isinstance(split.sampler.backend, Server)
    group = Group(
        Prompt("p", ({"role": "user", "content": "hi"},)),
        (Trajectory(({"role": "assistant", "content": "Hello!"},)),),
    )
    outputs = frozenset({"logprobs", "values"})
    ours = TorchEngine(tiny, kind="policy_with_value", threads=1)
    assert split.score([group], outputs) == ours.score([group], outputs), (
        "what a loss reads is the torch engine's, and no vLLM was asked"
    )
    assert split.weights == ours.weights and split.encode(group) == ours.encode(group)


def test_unsupported_requests_are_refused_for_vllm(tiny: Path, tmp_path: Path) -> None:
    engine = VllmEngine(tiny, Echo())
    for ask in ("values", "scores", "entropy"):
        with pytest.raises(ContractError, match=rf"{ask}.*torch engine"):
            engine.score([], frozenset({"logprobs", ask}))
    for pool in ("last", "mean"):
        save_model(new_reward(tiny, layers=1, pool=pool), load_tokenizer(tiny), tmp_path / pool)
        with pytest.raises(ContractError, match="reward model"):
            VllmEngine(tmp_path / pool, Echo())
    with pytest.raises(ContractError, match=r"513 tokens.*512"):
        check_lengths([[1] * 500], [{"max_tokens": 13}], 512)
    check_lengths([[1] * 500], [{"max_tokens": 12}], 512)


def test_value_head_is_not_sent_to_vllm(tiny: Path, tmp_path: Path) -> None:
    save_model(load_model(tiny, "policy_with_value"), load_tokenizer(tiny), tmp_path)
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    assert (tmp_path / VALUE_HEAD).is_file() and not VALUE_HEAD.endswith("safetensors")


def test_tied_output_layer_is_written_for_vllm(tiny: Path, tmp_path: Path) -> None:
    """vLLM would update only the input embedding. The untied copy is the same model to transformers, and is
    deleted with its engine.
    """
    view = untied(tiny, str(tmp_path))
    assert view
    plain_model, theirs = load_policy(tiny, attention="sdpa"), load_policy(Path(view.name), attention="sdpa")
    assert not theirs.config.tie_word_embeddings and "lm_head.weight" in dict(theirs.named_parameters())
    ids = torch.tensor([[1, 50, 60, 70]])
    with torch.no_grad():
        assert torch.equal(plain_model(ids).logits, theirs(ids).logits)
    assert untied(Path(view.name), None) is None, "nothing is shared there"
    engine = VllmEngine(tiny, Echo(), scratch=str(tmp_path))
    assert engine.weights == VllmEngine(tiny, Echo(), untie=False).weights
    view.cleanup()
    assert len(list(tmp_path.iterdir())) == 1
    engine.load(tiny)
    assert len(list(tmp_path.iterdir())) == 1, "the view of the weights before is gone"
    del engine
    assert not list(tmp_path.iterdir())


def test_samples_come_back_in_order_with_their_stop(tiny: Path) -> None:
    backend = Echo()
    engine = VllmEngine(tiny, backend)
    (eos,) = engine.contract.eos
    answers = engine.generate(
        [
            Request([1, 2], count=2, seed=3, stop_tokens=(5,), max_tokens=7, temperature=0.5),
            Request([3], count=1, seed=3),
        ]
    )
    assert [[s.stop for s in group] for group in answers] == [["end", "end"], ["length"]]
    assert [row for row, _ in backend.requests] == [[1, 2], [1, 2], [3]]
    parameter_list = [one for _, one in backend.requests]
    assert parameter_list[0] == parameters(
        Request([9], seed=3, max_tokens=7, temperature=0.5), 0, sorted({5, eos})
    )
    assert len({one["seed"] for one in parameter_list}) == 2, (
        "sample 0 of seed 3 is the same draw whatever the prompt"
    )
    assert parameter_list[0]["seed"] == parameter_list[2]["seed"] != parameter_list[1]["seed"]
    assert all(
        0 <= parameters(Request([1], seed=s), n, [])["seed"] < 2**31 for s in (0, 2**31 - 1) for n in range(3)
    )
    with pytest.raises(ContractError, match="max_tokens"):
        engine.generate([Request([])])


def test_scores_are_zero_where_mask_is_false(tiny: Path) -> None:
    path = Trajectory((), {"tokens": [7, 8, 9]}, [False, True, True])
    assert VllmEngine(tiny, Echo()).score(
        [Group(Prompt("p", ()), (path, path))], frozenset({"logprobs"})
    ) == [{"logprobs": [[0.0, -1.0, -2.0]] * 2}]


class Stand(BaseHTTPRequestHandler):
    """A stub of vLLM's HTTP API: answers with the prompt's length and the version of the last weights it was
    sent.
    """

    def do_GET(self) -> None:
        state: Any = self.server
        self._reply(
            {
                "/weight_info": {"weight_version": state.weights},
                "/is_paused": {"is_paused": state.paused},
            }.get(self.path, {})
        )

    def do_POST(self) -> None:
        state: Any = self.server
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        state.calls.append(self.path)
        if self.path == "/collective_rpc" and state.frozen:
            return self._reply({"detail": "Not Found"}, 404)
        state.paused = self.path.startswith("/pause") or (state.paused and self.path != "/resume")
        if self.path == "/update_weights":
            state.sent.append(body)
        if self.path == "/update_weight_version":
            state.weights = body["new_version"]
        if self.path == "/inference/v1/generate":
            if state.troubles:
                trouble = state.troubles.pop()
                if trouble == "drop":
                    return self.connection.close()
                if trouble == "restart":
                    state.weights = "default"
                if isinstance(trouble, int):
                    return self._reply({"error": "why"}, trouble)
            tokens, known = (
                [len(body["token_ids"])],
                [None, *({str(t): {"logprob": -0.5}} for t in body["token_ids"][1:])],
            )
            return self._reply(
                {
                    "prompt_logprobs": known,
                    "choices": [
                        {
                            "token_ids": tokens,
                            "finish_reason": "stop",
                            "logprobs": {"content": [{"token_id": tokens[0], "logprob": -2.0}]},
                            "weight_versions": [{"version": state.weights, "start": 0, "end": 1}],
                        }
                    ],
                }
            )
        return self._reply({})

    def _reply(self, value: Any, code: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def stand() -> Iterator[Any]:
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), Stand)
    server.weights, server.troubles, server.calls, server.sent = "default", [], [], []
    server.frozen, server.paused = False, False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def client(stand: Any, tiny: Path, **options: Any) -> Server:
    server = Server(
        profile(server=f"http://127.0.0.1:{stand.server_address[1]}", wait_seconds=2.0, **options)["vllm"],
        rows=4,
    )
    server.load(tiny, "mine")
    return server


ROWS, ASKED = [[1], [1, 2], [1, 2, 3]], [{"max_tokens": 1}] * 3


def test_weights_are_sent_once_and_answers_record_their_version(stand: Any, tiny: Path) -> None:
    server = client(stand, tiny)
    expected = [Answer((n,), (-2.0,), (0.0, *[-0.5] * (n - 1))) for n in (1, 2, 3)]
    assert server.answer(ROWS, ASKED) == expected == server.answer(ROWS, ASKED)
    refresh = [
        "/pause?mode=wait",
        "/collective_rpc",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/resume",
    ]
    assert [c for c in stand.calls if "generate" not in c] == refresh
    client(stand, tiny).answer(ROWS, ASKED)
    assert stand.calls.count("/collective_rpc") == 1, "a second worker finds the weights there"
    stand.paused = True
    client(stand, tiny).answer(ROWS, ASKED)
    assert not stand.paused, "a server whose worker died while it refreshed is woken"


def test_a_server_started_here_takes_new_weights_from_files(
    stand: Any, tiny: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By vLLM's weight transfer, with no directory written for it; it started with an untied model."""

    def run(server: Server) -> None:
        server.url = f"http://127.0.0.1:{stand.server_address[1]}"

    monkeypatch.setattr(Server, "_run", run)
    server = Server(profile(python=sys.executable)["vllm"], rows=4)
    engine = VllmEngine(tiny, server)
    assert engine.view is not None and server.model == Path(engine.view.name) and server.takes(other)
    for path in (tiny, other):
        engine.load(path, path.name)
        assert server.answer(ROWS, ASKED) and stand.weights == path.name
        assert stand.sent.pop() == {"update_info": {"files": [str(path / "model.safetensors")]}}
    assert server.model == Path(engine.view.name), "where a restarted server begins"
    assert [c for c in stand.calls if "generate" not in c] == 2 * [
        "/pause?mode=wait",
        "/start_weight_update",
        "/update_weights",
        "/finish_weight_update",
        "/reset_prefix_cache",
        "/update_weight_version",
        "/resume",
    ]


def test_an_output_layer_may_be_tied_in_new_weights_but_not_in_a_tied_server(
    tiny: Path, tmp_path: Path
) -> None:
    view = untied(tiny, None)
    assert view is not None
    assert fits(shape(Path(view.name)), tiny) and fits(shape(tiny), tiny)
    assert not fits(shape(tiny), Path(view.name)), "its output layer would be ignored"
    train_tiny(tmp_path, steps=1, hidden=32, layers=2, batch=2)
    assert not fits(shape(tiny), tmp_path)


@pytest.mark.parametrize(
    ("troubles", "refreshes"), [(["drop"], 1), ([503, "drop"], 1), (["restart"], 2), ([500], 1)]
)
def test_restarted_server_gets_the_weights_and_the_request_again(
    stand: Any, tiny: Path, tmp_path: Path, troubles: list, refreshes: int
) -> None:
    server, calm = client(stand, tiny), client(stand, tiny)
    expected = calm.answer(ROWS, ASKED)
    stand.troubles = troubles
    with progress.report_progress(tmp_path / "steps.json"):
        progress.expect("answers", 9)
        assert server.answer(ROWS, ASKED) == expected
        assert progress._count is not None and progress._count.done == len(ROWS), (
            "an answer that was lost is none"
        )
    assert not stand.troubles and stand.calls.count("/collective_rpc") == refreshes


def test_unreachable_or_foreign_server_is_an_error(stand: Any, tiny: Path) -> None:
    stand.troubles = ["restart"] * 50
    with pytest.raises(ServiceError, match=r"5 tries.*'default'"):
        client(stand, tiny).answer(ROWS, ASKED)
    stand.troubles = [400]
    with pytest.raises(ServiceError, match=r"/inference/v1/generate: HTTP 400: .*why"):
        client(stand, tiny).answer(ROWS, ASKED)
    stand.troubles = [404]
    with pytest.raises(ServiceError, match=r"no /inference/v1/generate; .*--enable-scale-out"):
        client(stand, tiny).answer(ROWS, ASKED)
    stand.frozen, stand.weights = True, "default"
    with pytest.raises(ServiceError, match=r"no /collective_rpc; .*VLLM_SERVER_DEV_MODE=1"):
        client(stand, tiny).answer(ROWS, ASKED)
    gone = Server(profile(server="http://127.0.0.1:9", wait_seconds=0.2)["vllm"], rows=4)
    gone.load(tiny, "mine")
    with pytest.raises(ServiceError, match=r"http://127\.0\.0\.1:9 .*0\.2 s .*`vllm\.server`"):
        gone.answer(ROWS, ASKED)


def test_different_architecture_is_refused_by_the_server(stand: Any, tiny: Path, tmp_path: Path) -> None:
    server = client(stand, tiny)
    config = json.loads((tiny / "config.json").read_text())
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "num_hidden_layers": 9, "transformers_version": "0"})
    )
    with pytest.raises(ContractError, match="architecture"):
        server.load(tmp_path, "bigger")
    (tmp_path / "config.json").write_text(json.dumps({**config, "transformers_version": "0"}))
    server.load(tmp_path, "same")


def test_an_environment_without_vllm_fails_at_once(tiny: Path) -> None:
    python = Path(sys.executable)
    if HERE:
        pytest.skip("vllm is installed here")
    server = Server(profile(python=str(python), wait_seconds=60.0)["vllm"], rows=4)
    server.load(tiny, "mine")
    with pytest.raises(ServiceError, match=r"exit code 1"):
        server.answer(ROWS, ASKED)
    assert server.child is not None and server.child.poll() == 1


# --- the real vLLM
# ----------------------------------------------------------------------------------------------------


def where(mode: str) -> dict[str, Any]:
    if mode == "running server":
        return profile(server=SERVER) if SERVER else pytest.skip("RATCHET_VLLM_SERVER names no server")
    if mode == "server" and not PYTHON:
        pytest.skip("RATCHET_VLLM_PYTHON names no environment with vllm")
    if mode == "process" and not HERE:
        pytest.skip("vllm is not installed in this environment")
    return profile(python=PYTHON) if mode == "server" else profile()


@pytest.fixture(scope="module", params=["process", "server", "running server"])
def engine(request: pytest.FixtureRequest, tiny: Path) -> Iterator[VllmEngine]:
    vllm_engine = sampler(where(request.param), tiny)
    yield vllm_engine
    vllm_engine.close()


def prompts(engine: Any) -> list[list[int]]:
    texts = ["What is 3 + 4?", "hi", "tell me about the sea", "9 + 9 =", "do you like dogs?"]
    return [engine.encode_prompt(Prompt("", ({"role": "user", "content": text},))) for text in texts]


@pytest.mark.slow
def test_greedy_tokens_and_stops_equal_the_torch_engines(engine: VllmEngine, tiny: Path) -> None:
    ours = TorchEngine(tiny, threads=1)
    engine.load(tiny)
    assert engine.weights == ours.weights and engine.contract == ours.contract
    tokens = prompts(ours)
    greedy = ours.generate([Request(t, max_tokens=20, temperature=0.0) for t in tokens])
    middle = greedy[0][0].tokens[3]
    for limit, stops in ((20, ()), (4, ()), (20, (middle,))):
        requests = [Request(t, count=2, max_tokens=limit, temperature=0.0, stop_tokens=stops) for t in tokens]
        theirs, mine = engine.generate(requests), ours.generate(requests)
        assert [[(s.tokens, s.stop) for s in group] for group in theirs] == [
            [(s.tokens, s.stop) for s in group] for group in mine
        ]
    assert theirs[0][0].tokens[-1] == middle and theirs[0][0].stop == "end", (
        "a stop token is part of the answer"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"temperature": 1.0}, {"temperature": 0.7}, {"temperature": 1.3, "top_p": 0.8, "top_k": 20}]
)
def test_logprobs_are_at_temperature_1(engine: VllmEngine, tiny: Path, how: dict[str, float]) -> None:
    engine.load(tiny)
    ours = TorchEngine(tiny, threads=1)
    tokens = prompts(ours)
    answers = engine.generate(
        [Request(t, count=4, max_tokens=16, seed=i, **how) for i, t in enumerate(tokens)]
    )
    groups = sampled_groups(tokens, answers)
    outputs = frozenset({"logprobs"})
    for group, mine, theirs in zip(
        groups, ours.score(groups, outputs), engine.score(groups, outputs), strict=True
    ):
        for trajectory, p, q in zip(group.trajectories, mine["logprobs"], theirs["logprobs"], strict=True):
            assert trajectory.logprobs == pytest.approx(p, abs=TOLERANCE)
            assert q == pytest.approx(p, abs=TOLERANCE)


@pytest.mark.slow
def test_samples_depend_on_index_and_seed_and_are_reproducible(engine: VllmEngine, tiny: Path) -> None:
    engine.load(tiny)
    (first, *_) = prompts(engine)

    def draw(seed: int) -> list[tuple[int, ...]]:
        return [s.tokens for s in engine.generate([Request(first, count=6, max_tokens=12, seed=seed)])[0]]

    assert draw(1) == draw(1)
    assert len(set(draw(1))) == 6
    assert not set(draw(1)) & set(draw(2))


@pytest.mark.slow
def test_samples_follow_the_models_distribution(engine: VllmEngine, tiny: Path) -> None:
    """First tokens of 400 draws at temperature 0.7 against softmax(logits / 0.7), by total variation over the
    likeliest 8.
    """
    engine.load(tiny)
    (first, *_) = prompts(engine)
    with torch.no_grad():
        expected = (load_policy(tiny, attention="sdpa")(torch.tensor([first])).logits[0, -1] / 0.7).softmax(
            -1
        )
    drawn = [
        s.tokens[0]
        for s in engine.generate([Request(first, count=400, max_tokens=1, temperature=0.7, seed=5)])[0]
    ]
    for token in expected.topk(8).indices.tolist():
        p = float(expected[token])
        assert abs(drawn.count(token) / 400 - p) < 4.5 * (p * (1 - p) / 400) ** 0.5


@pytest.mark.slow
def test_new_weights_change_the_answers_in_place(engine: VllmEngine, tiny: Path, other: Path) -> None:
    requests = [Request(t, max_tokens=12, temperature=0.0) for t in prompts(engine)]
    found = []
    for path in (tiny, other, tiny):
        engine.load(path)
        ours = TorchEngine(path, threads=1)
        answers = engine.generate(requests)
        assert [s.tokens for (s,) in answers] == [s.tokens for (s,) in ours.generate(requests)]
        groups = sampled_groups([list(r.tokens) for r in requests], answers)
        for group, mine in zip(groups, ours.score(groups, frozenset({"logprobs"})), strict=True):
            assert group.trajectories[0].logprobs == pytest.approx(mine["logprobs"][0], abs=TOLERANCE)
        backend: Any = engine.backend
        found.append(
            (
                answers,
                (backend.url, backend.child and backend.child.pid)
                if isinstance(backend, Server)
                else id(backend.llm),
            )
        )
    assert found[0] == found[2] and found[0][0] != found[1][0], (
        "other weights, other answers; the first ones again, the first answers"
    )
    assert len({running for _, running in found}) == 1, "the engine was never built again"


@pytest.mark.slow
def test_on_policy_steps_use_current_vllm_samples(tiny: Path, tmp_path: Path) -> None:
    """Two steps at a rate that moves the policy: stale vLLM weights would change the weights after step 2."""
    options = where("server")
    from ratchet.components.data.groups import write_groups
    from ratchet.components.stages.improve import improve

    hardware = Profile(**{**options, "vllm": Vllm(**options["vllm"])})
    recipe, _ = load(
        "rlvr_grpo",
        overrides=[
            "online.rounds=2",
            "online.prompts_per_round=2",
            "online.rollout.responses_per_prompt=4",
            "online.select=[]",
            "online.fit.learning_rate=0.01",
            "online.fit.updates={policy: [{name: clip, old: sampled}, {name: entropy, weight: 1.0}]}",
        ],
    )
    stage = plan(corrected(recipe, hardware), hardware)["improve"]
    (tmp_path / "data").mkdir()
    (tmp_path / "work" / "product").mkdir(parents=True)
    (tmp_path / "work" / "progress").mkdir()
    write_groups(
        tmp_path / "data" / "prompts.parquet",
        [
            Group(Prompt(str(i), ({"role": "user", "content": f"{i} + 1 ="},), answer=str(i + 1)), ())
            for i in range(4)
        ],
    )
    inputs = {name: Artifact("weights", tiny, "a") for name in ("policy", "reference")} | {
        "data": Artifact("data", tmp_path / "data", "b")
    }
    before = family(os.getpid())
    improve(Job(stage.options, inputs, Workspace(tmp_path / "work")))
    steps = [
        json.loads(line)["metrics"]
        for line in (tmp_path / "work" / "product" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [step["policy/clip/importance"] for step in steps] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert abs(steps[0]["policy/entropy/entropy"] - steps[1]["policy/entropy/entropy"]) > 1e-3, (
        "the policy moved, by ten times what rounding may"
    )
    gc.collect()
    assert not alive(family(os.getpid()) - before), "the stage left its server behind"


def family(pid: int) -> set[int]:
    """A process and all its descendants, from /proc."""
    below: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if fields[0] != "Z":
            below.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    found, queue = set(), [pid]
    while queue:
        found.add(one := queue.pop())
        queue += below.get(one, [])
    return found


def alive(pids: set[int]) -> set[int]:
    return {
        pid
        for pid in pids
        if (Path("/proc") / str(pid)).exists()
        and "\nState:\tZ" not in (Path("/proc") / str(pid) / "status").read_text()
    }


@pytest.mark.slow
def test_killed_server_restarts_with_its_weights_and_leaves_no_process(tiny: Path, other: Path) -> None:
    engine = sampler(where("server"), tiny)
    engine.generate([Request(prompts(engine)[0], max_tokens=2)])
    engine.load(other)
    requests = [Request(t, count=2, max_tokens=12, seed=1) for t in prompts(engine)]
    before = engine.generate(requests)
    backend: Any = engine.backend
    first = family(backend.child.pid)
    assert len(first) > 1, "the server has an engine process below it"
    os.kill(backend.child.pid, signal.SIGKILL)
    assert engine.generate(requests) == before
    assert not alive(first)
    second = family(backend.child.pid)
    del engine, backend
    time.sleep(1)
    assert not alive(second), "an engine that nobody holds any more is gone, and its server with it"


@pytest.mark.slow
def test_vllm_server_exits_with_its_parent(tiny: Path, tmp_path: Path) -> None:
    code = (
        "import json, sys, time; from pathlib import Path; from ratchet.components.inference.choose "
        "import sampler; from ratchet.components.types import Request;"
        "e = sampler(json.loads(sys.argv[1]), Path(sys.argv[2])); e.generate([Request([1, 2, 3], "
        "max_tokens=2)]);"
        "print(e.backend.child.pid, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(where("server")), str(tiny)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert owner.stdout
    server = family(
        next(int(line) for line in owner.stdout if line.strip().isdigit())
    )  # vLLM's own warnings come first
    assert len(server) > 1
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    end = time.monotonic() + 60
    while alive(server) and time.monotonic() < end:
        time.sleep(0.5)
    assert not alive(server)
