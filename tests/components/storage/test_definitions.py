"""Source-code digests: which definitions they cover, on small packages and on the stages of real recipes."""

from __future__ import annotations

import ast
import random
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from ratchet.components.errors import FATAL
from ratchet.components.piece import ROOT
from ratchet.components.recipes.plan import our_sources, plan, starts
from ratchet.components.recipes.recipe import load
from ratchet.components.stages.job import Job, run_job
from ratchet.components.storage.definitions import Sources
from ratchet.components.storage.syntax import PREFIX, Module
from ratchet.tasks.pipeline import Pipeline

STAGE = f"{PREFIX}components.stage"
USES = """
'''A stage.'''
import math
from {p}components import shapes, table
from {p}components.shapes import Circle as Round
from {p}components.tools import helper

LIMIT = 3   # the largest
UNUSED = 4

def stage(x: int) -> float:
    '''Do it.'''
    from {p}components.late import late
    return helper(x) + late() + shapes.area(Round(LIMIT)) + math.pi + len(table.find('a'))
"""
FILES = {
    "stage.py": USES,
    "tools.py": "from {p}components.deep import FACTOR as F\n\ndef helper(x: int):\n    return F * "
    "x\n\ndef other():\n    return 1\n",
    "deep.py": "FACTOR = 2\nSIBLING = 3\n",
    "late.py": "from {p}components import registry\n\ndef late():\n    return registry.KNOWN['one']()\n",
    "registry.py": "KNOWN = {}\n\ndef register(f):\n    KNOWN['one'] = f\n    return f\n\nimport "
    "{p}components.registered\n",
    "registered.py": "from {p}components.registry import register\n\n@register\ndef one():\n    return "
    "scale()\n\ndef scale():\n    return 1.5\n\n"
    "def free():\n    return 0\n",
    "shapes.py": "from {p}components.base import Shape\n\nclass Circle(Shape):\n    side: float = "
    "1.0\n\n    def size(self) -> float:\n        return self.side\n\n"
    "class Square(Shape):\n    pass\n\ndef area(shape):\n    return shape.size()\n",
    "base.py": "from {p}components.errors import ContractError, DataError\n\nclass Shape:\n    def "
    "__init__(self, side):\n        self.side = corrected(side)\n\ndef corrected(side):\n"
    "    if side == 7:\n        raise ContractError(f'{side} is {worded(side)}')\n"
    "    if side < 0:\n        raise DataError('too small')\n"
    "    if side == 9:\n        raise ValueError('odd')\n"
    "    return abs(side)\n\ndef worded(side):\n    return 'wrong'\n",
    "errors.py": "class ContractError(Exception):\n    def __init__(self, *a):\n        "
    "super().__init__(*a)\n\nclass DataError(Exception):\n    pass\n",
    "table.py": "from pathlib import Path\n\nNAME = 'table.txt'\n\ndef find(x):\n    return (Path('.') / "
    "NAME).read_text()\n",
    "table.txt": "a b c\n",
}


@pytest.fixture
def code(tmp_path: Path) -> Any:
    """code() is the digest of the function `stage`; code("tools.py", "old", "new") with one file changed."""
    folder = tmp_path / "components"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name, text in FILES.items():
        (folder / name).write_text(text.replace("{p}", PREFIX))

    def digest(file: str = "", old: str = "", new: str = "") -> str:
        if not file:
            return Sources(tmp_path).digest([(STAGE, "stage")])
        path = folder / file
        before = path.read_text()
        assert old in before
        path.write_text(before.replace(old, new.replace("{p}", PREFIX), 1))
        try:
            return Sources(tmp_path).digest([(STAGE, "stage")])
        finally:
            path.write_text(before)

    return digest


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stage.py", "LIMIT = 3", "LIMIT = 4"),  # a constant of its own module
        ("stage.py", "import math", "import cmath as math"),  # what another package's name means
        ("deep.py", "FACTOR = 2", "FACTOR = 2.0"),  # a constant two imports away, by another name
        (
            "tools.py",
            "deep import FACTOR as F",
            "deep import SIBLING as F",
        ),  # an import that means another definition
        ("late.py", "['one']", "['two']"),  # imported within the function
        ("base.py", "abs(side)", "side"),  # called by a method of a base class
        ("base.py", "side == 7", "side == 8"),  # when a stage fails
        ("base.py", "raise ContractError", "raise DataError"),  # an error that may end one row only
        ("base.py", "'too small'", "'below 0'"),  # its message, which may be in an output
        ("base.py", "ValueError('odd')", "ValueError('uneven')"),  # an error that anything may catch
        ("shapes.py", "return self.side", "return 2 * self.side"),  # a method
        ("shapes.py", "side: float", "side: int"),  # a field of a class, which may be read at run time
        ("shapes.py", "return shape.size()", "return -shape.size()"),  # an attribute of a module
        ("registry.py", "KNOWN['one'] = f", "KNOWN['one'] = print"),
        ("registered.py", "1.5", "1.6"),  # only registered, and never named
        (
            "registered.py",
            "def free",
            "import os\nos.environ['X'] = 'y'\n\ndef free",
        ),  # a statement with an effect
        ("table.py", "read_text()", "read_text('ascii')"),
        ("table.txt", "a b", "a  b"),  # a data file that a string names
    ],
)
def test_changed_reachable_code_changes_the_digest(code: Any, file: str, old: str, new: str) -> None:
    assert code() != code(file, old, new)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("stage.py", "# the largest", "# the greatest, which is three"),
        ("stage.py", "\nLIMIT", "\n\n\nLIMIT"),
        ("stage.py", "'''A stage.'''", "'''The stage.'''"),
        ("stage.py", "'''Do it.'''", ""),
        ("stage.py", "x: int) -> float", "x: float)"),
        ("stage.py", "UNUSED = 4", "UNUSED = 5"),
        ("stage.py", "LIMIT = 3", "LIMIT: int = 3"),
        ("tools.py", "return 1", "return 2"),
        ("deep.py", "SIBLING = 3", "SIBLING = 4\n\ndef new():\n    return SIBLING"),
        ("registered.py", "return 0", "return 1"),
        ("shapes.py", "class Square(Shape):\n    pass", "class Square(Shape):\n    side = 4"),
        ("registry.py", "def register(f)", "def register(f: object) -> object"),
        ("base.py", "f'{side} is {worded(side)}'", "f'expected a number, got {side}'"),
        ("base.py", "return 'wrong'", "return 'invalid'"),
        ("errors.py", "super().__init__(*a)", "super().__init__('error:', *a)"),
    ],
)
def test_changed_unreachable_code_keeps_the_digest(code: Any, file: str, old: str, new: str) -> None:
    assert code() == code(file, old, new)


def test_moved_definition_keeps_its_digest(code: Any, tmp_path: Path) -> None:
    before = code()
    (tmp_path / "components/elsewhere.py").write_text(
        f"from {PREFIX}components.deep import FACTOR as F\n\ndef helper(x):\n    return F * x\n"
    )
    assert code("stage.py", f"{PREFIX}components.tools import", "{p}components.elsewhere import") == before


@pytest.mark.parametrize(
    "use",
    [
        "from {p}components import deep\n    return getattr(deep, x)",
        "from {p}components import deep\n    return deep.nowhere",
        "from importlib import import_module as i\n    return vars(i('{p}components.deep'))[x]",
        "from {p}components.deep import *\n    return SIBLING",
        "import {p}components.deep\n    return [{p}components.deep]",
    ],
)
def test_module_with_dynamic_names_is_digested_whole(code: Any, tmp_path: Path, use: str) -> None:
    stage, deep = tmp_path / "components/stage.py", tmp_path / "components/deep.py"
    if "import *" in use:
        use = f"return SIBLING\n\n{use.splitlines()[0]}"
    stage.write_text(f"def stage(x):\n    {use}\n".replace("{p}", PREFIX))
    before = code()
    deep.write_text(deep.read_text().replace("3", "4"))
    assert code() != before


def test_script_started_by_a_module_is_digested(code: Any, tmp_path: Path) -> None:
    script = (
        "def main():\n    print({})\n\ndef idle():\n    print({})\n\nif __name__ == '__main__':\n    main()\n"
    )
    (tmp_path / "components/child.py").write_text(script.format(1, 1))
    (tmp_path / "components/stage.py").write_text(
        f"from {PREFIX}components import child\n\ndef stage():\n    return child.__file__\n"
    )
    before = code()
    assert code("child.py", "print(1)", "print(2)") != before
    (tmp_path / "components/child.py").write_text(script.format(1, 2))
    assert code() == before


# --- the stages of real recipes
# ---------------------------------------------------------------------------------------

CHOSEN = [("instruct", "drafts"), ("instruct", "reward"), ("instruct", "optimise_1"), ("rloo", "improve")]


def changed(module: Module, numbers: set[int]) -> dict[Path, str]:
    """The text of a module in which some of its top-level statements do something else."""
    tree = ast.parse(module.path.read_text())
    for number in numbers:
        match tree.body[number]:
            case ast.Assign() | ast.AnnAssign() as node:
                node.value = ast.Constant("changed")
            case ast.FunctionDef() | ast.ClassDef() | ast.For() | ast.If() as node:
                node.body.append(ast.Assert(ast.Constant(True)))
            case ast.Expr(value=ast.Call() as call):
                call.args.append(ast.Constant("changed"))
    return {module.path: ast.unparse(tree)}


def can_change(module: Module) -> set[int]:
    return {
        number
        for number, node in enumerate(module.body)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.FunctionDef | ast.ClassDef | ast.For)
        or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call))
    }


@pytest.mark.parametrize(("recipe", "name"), CHOSEN)
def test_changed_definition_changes_the_key_only_if_reached(recipe: str, name: str) -> None:
    stage, sources = plan(*load(recipe))[name], our_sources()
    begin = starts(stage.does, stage.options)
    before, reached, read = sources.digest(begin), sources.reached(begin), {}
    modules = {module.name: module for node in reached if (module := sources.module(node.module))}

    def after(files: Mapping[Path, str]) -> str:
        return Sources(ROOT.parent, sources.pieces, files).digest(begin)

    for module in modules.values():
        used = {node.what for node in reached if node.module == module.name}
        if "<all>" in used:
            continue
        read |= changed(module, can_change(module) - used)
        read[module.path] += "\n\ndef never_called():\n    return 1\n"
    assert after(read) == before
    wanted = sorted(
        node
        for node in reached
        if isinstance(node.what, int) and node.what in can_change(modules[node.module])
    )
    for node in random.Random(0).sample(wanted, 8):
        assert isinstance(node.what, int)
        assert after(changed(modules[node.module], {node.what})) != before, (
            f"{node.module}: {ast.unparse(modules[node.module].body[node.what])[:80]}"
        )


def test_messages_of_errors_that_may_end_one_row_count() -> None:
    """`parse` drops a row that a `DataError` refuses, and its output names the reason."""
    assert {"RecipeError", "ContractError", "StageError", "DamageError"} < FATAL
    assert not {"DataError", "GateError", "ValueError", "Exception"} & FATAL


def test_comments_docstrings_and_annotations_keep_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them changed in all files at once, and every line written anew."""

    def bared(text: str) -> str:
        tree = ast.parse(text)
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Expr)
                and isinstance(node.value, ast.Constant)
                and isinstance(node.value.value, str)
            ):
                node.value.value = "another docstring"
            elif isinstance(node, ast.FunctionDef):
                node.returns = None
            elif isinstance(node, ast.arg) and node.annotation:
                node.annotation = ast.Name("object")
        return ast.unparse(tree)

    recipes = ("instruct", "ppo", "rlvr_gsm8k")
    before = [{name: stage.key for name, stage in plan(*load(recipe)).items()} for recipe in recipes]
    bare = {
        path: bared(path.read_text())
        for folder in ("components", "tasks")
        for path in (ROOT.parent / folder).rglob("*.py")
    }
    pieces = our_sources().pieces
    monkeypatch.setattr(
        "ratchet.components.recipes.plan.our_sources", lambda: Sources(ROOT.parent, pieces, bare)
    )
    assert [{name: stage.key for name, stage in plan(*load(recipe)).items()} for recipe in recipes] == before


@pytest.mark.parametrize(
    ("file", "old", "new", "moved"),
    [
        ("components/training/trainer.py", "from __future__", "# a comment\nfrom __future__", []),
        (
            "components/data/group_rows.py",
            "ROLES =",
            "NEW = 1\n\n\ndef new():\n    return NEW\n\n\nROLES =",
            [],
        ),
        ("components/evaluation/report.py", '"report.html.j2"', '"report.css.j2"', ["evaluate"]),
    ],
)
def test_keys_changed_by_a_recipe_option(
    file: str, old: str, new: str, moved: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, path, pieces = plan(*load("instruct")), ROOT.parent / file, our_sources().pieces
    text = path.read_text()
    assert old in text
    monkeypatch.setattr(
        "ratchet.components.recipes.plan.our_sources",
        lambda: Sources(ROOT.parent, pieces, {path: text.replace(old, new, 1)}),
    )
    assert [name for name, stage in plan(*load("instruct")).items() if stage.key != before[name].key] == moved


@pytest.mark.parametrize(
    "options",
    [
        {"select": [{"name": "contrast", "verifier": "rewards.format"}]},
        {"annotate": [{"name": "rewards.format", "label": "x"}]},
        {"verifier": "rewards.format"},
    ],
)
def test_a_piece_that_options_name_anywhere_is_reached(options: Mapping[str, Any]) -> None:
    assert ("ratchet.components.pieces.rewards.format", "format") in starts("select", options)
    assert ("ratchet.components.pieces.rewards.format", "format") not in starts(
        "select", {"select": [{"name": "contrast"}]}
    )


def test_every_function_that_a_stage_calls_is_reached(
    fresh_home: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is Python's tracer: all project functions called while real stages run must be in the
    digest.
    """
    called: set[CodeType] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if (
            event == "call"
            and frame.f_code.co_filename.startswith(str(ROOT.parent))
            and frame.f_code.co_filename.endswith(".py")
        ):
            called.add(frame.f_code)

    def traced(function: Callable[[Job], Any], request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            sys.setprofile(note if request["does"] in ("curate", "improve") else None)
            return run_job(function, request)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr("ratchet.components.stages.run.run_job", traced)
    small = [
        "online.rounds=1",
        "online.prompts_per_round=2",
        "online.rollout.responses_per_prompt=2",
        "online.fit.batch=2",
    ]
    pipeline, sources = (
        Pipeline.open("rloo", home=fresh_home("traced"), profile="test", overrides=small),
        our_sources(),
    )
    for name, stage in pipeline.stages.items():
        if name == "evaluate":
            break
        called.clear()
        pipeline.make(name)
        lines = set()
        for node in sources.reached(starts(stage.does, stage.options)):
            module = sources.module(node.module)
            if module and isinstance(node.what, int):
                statement = module.body[node.what]
                first = min([statement.lineno, *(d.lineno for d in getattr(statement, "decorator_list", ()))])
                lines |= {
                    (str(module.path), line) for line in range(first, (statement.end_lineno or first) + 1)
                }
        assert len(called) > 100 or stage.does not in ("curate", "improve")
        assert not {
            (c.co_filename, c.co_qualname)
            for c in called
            if c.co_name != "<module>" and (c.co_filename, c.co_firstlineno) not in lines
        }


def test_sources_are_traced_again_when_a_file_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("ratchet.components.recipes.source_keys.ROOT", tmp_path / "components")
    file = tmp_path / "components" / "one.py"
    file.parent.mkdir()
    file.write_text("A = 1\n")
    start = [("ratchet.components.one", "A")]
    before = our_sources()
    digest = before.digest(start)
    assert our_sources() is before
    file.write_text("A = 12\n")
    assert our_sources().digest(start) != digest == before.digest(start)
