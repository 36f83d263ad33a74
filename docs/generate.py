"""Generated parts of the documentation: the reference pages, the table of recipes, the page of recipe keys,
and the blocks of README.md.

MkDocs loads this file as a hook (`.mkdocs.yml`): the reference pages exist in the built site only, and there
replace the links to the sources that they are made from (`SITE_PAGES`). `<!-- site: NAME -->text<!-- end -->`
is a text of the repository that the site replaces by a generated part.

`python docs/generate.py` rewrites recipe-keys.md, the pages of the families, the tables of claims.md and the
blocks of README.md between `<!-- begin: NAME -->` and `<!-- end: NAME
-->`; a test fails when they are stale.
"""

from __future__ import annotations

import ast
import dataclasses
import html
import inspect
import io
import json
import re
import textwrap
import tokenize
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import ratchet
from ratchet.components.piece import SLOTS, Description, catalogue
from ratchet.components.recipes.phases import sections as phases_of
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.recipe import folder, load, names
from ratchet.components.recipes.schema import Recipe
from ratchet.components.recipes.sections import Parser, Spec
from ratchet.components.recipes.splits import Split
from ratchet.components.recipes.yaml_files import shipped
from ratchet.flows.catalogue import Row, families, rows_of
from ratchet.flows.claim_records import Verdict, claiming, effect, read, sentence, states
from ratchet.flows.claim_records import filled as filled_claims
from ratchet.flows.piece_catalogue import NAMED_IN, option_text
from ratchet.flows.recipe_pieces import equations, own_keys, pieces, yaml_line

ROOT = Path(__file__).resolve().parent.parent
SITE_PAGES = {  # a link in the repository -> the page of the site that is made from it
    "../components/pieces": "reference/pieces.md",
}
KEYS = "recipe-keys.md"
"""Page of the repository with all keys of recipes and profiles."""
ROW, LEFT, PLOT, RIGHT = 26, 330, 360, 190
"""Pixels of an SVG plot: height of a row, and widths of the names, the plot and the verdicts."""
COLOURS = {"holds": "#2e7d32", "does not hold": "#c62828", "undecided": "#757575"}
SYMBOLS = {"gt": "> ", "ge": "≥ ", "lt": "< ", "le": "≤ "}

# --- recipes
# ---------------------------------------------------------------------------------------------------------


def by_family() -> dict[str, dict[str, Recipe]]:
    recipes = {name: load(name)[0] for name in names()}
    return {one: {name: recipes[name] for name in found} for one, found in families(recipes).items()}


def recipe_families() -> str:
    """One row a family, for README.md: the recipes in the top folder by name, the others by number. A family
    without one there has all by name.
    """
    rows = ["| family | recipes |", "|---|---|"]
    for one, recipes in by_family().items():
        top = [name for name in recipes if shipped()[name].parent == folder()]
        first = [f"`{name}`" for name in top or recipes]
        more = [f"{len(recipes) - len(first)} more"] if len(first) < len(recipes) else []
        rows.append(f"| {one} | {', '.join(first + more)} |")
    return "\n".join(rows)


def recipe_table() -> str:
    """One row a recipe, for docs/methods.md."""
    parts, stored = [], read()
    for one, recipes in by_family().items():
        rows = [
            f"### [{one}](methods/{slug(one)}.md)",
            "",
            "| recipe | what it trains | objectives | paper | claim |",
            "|---|---|---|---|---|",
        ]
        for name, recipe in recipes.items():
            trained = [one.section for one in reversed(phases_of(recipe)) if hasattr(one.section, "fit")]
            objectives = (
                {f"`{spec['name']}`": 0 for specs in trained[0].fit.updates.values() for spec in specs}
                if trained
                else {}
            )
            claim = sentence(recipe.claim) if recipe.claim else ""
            if name in stored:
                claim += f": [{stored[name].verdict}](claims.md)"
            rows.append(
                f"| `{name}` | {recipe.about} | {', '.join(objectives)} | {paper(recipe.paper)} | {claim} |"
            )
        parts.append("\n".join(rows))
    return "\n\n".join(parts)


def slug(name: str) -> str:
    """File name of a family's page: `Online learning, in on-policy steps` ->
    `online-learning-in-on-policy-steps`.
    """
    return "-".join(re.findall(r"[a-z0-9]+", name.lower()))


def family_page(title: str, recipes: Mapping[str, Recipe], stored: Mapping[str, Verdict]) -> str:
    """The page of a family, in Markdown: each recipe with its paper, difference from its base, equation,
    pieces and measured claim.
    """
    parts = [
        f"# {title}",
        "`ratchet recipes explain NAME` prints more. [All methods](../methods.md) · [Claims](../claims.md)",
    ]
    if claims_svg(recipes, stored):
        parts += [
            f"![Measured claims of this family]({slug(title)}.svg)",
            "Differences with intervals, each row at its own scale; dashed: the smallest effect of interest.",
        ]
    for name, recipe in recipes.items():
        changed_keys = "; ".join(f"`{key}: {yaml_line(value)}`" for key, value in own_keys(name).items())
        parts += [
            f"## {name}",
            recipe.about,
            "\n".join(
                [
                    f"* Paper: {paper(recipe.paper)}",
                    f"* Base: `{recipe.base}`" + (f"; its own keys: {changed_keys}" if changed_keys else ""),
                    f"* Pieces: {', '.join(pieces(recipe))}",
                    *(f"* `{piece}`: {text}" for piece, text in equations(recipe).items()),
                    f"* Claim: {claim_markdown(recipe, stored)}",
                ]
            ),
        ]
    return "\n\n".join(parts) + "\n"


def claim_markdown(recipe: Recipe, stored: Mapping[str, Verdict]) -> str:
    """The claim in words with its stored verdict, whether or not the verdict is stale."""
    if recipe.claim is None:
        return "none; it is a control or an example"
    verdict = stored.get(recipe.name)
    if verdict is None:
        return f"{sentence(recipe.claim)}: not measured"
    effects = "; ".join(effect(row) for row in verdict.comparisons.values())
    return f"{sentence(recipe.claim)}: **{verdict.verdict}**, {effects}, {verdict.seeds} seeds"


def claims_svg(recipes: Mapping[str, Recipe], stored: Mapping[str, Verdict]) -> str:
    """SVG of the measured claims of a family; empty if there are none."""
    rows = [
        row
        for name, recipe in recipes.items()
        if recipe.claim and name in stored
        for row in rows_of(name, recipe.claim, stored[name])
    ]
    return svg(rows) if rows else ""


def svg(rows: Sequence[Row]) -> str:
    """The intervals of several claims, one a row, each divided by its largest absolute end or bound, so that
    rows with other units share the axis -1 to 1. The tick is the claim's bound.
    """
    height = ROW * (len(rows) + 1)
    middle = LEFT + PLOT / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + PLOT + RIGHT}" height="{height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="100%" height="{height}" fill="white"/>',
        f'<line x1="{middle}" x2="{middle}" y1="4" y2="{height - ROW}" stroke="#bbb"/>',
        f'<text x="{middle}" y="{height - 8}" text-anchor="middle" fill="#555">no difference</text>',
    ]
    for i, row in enumerate(rows):
        y, colour = ROW * i + ROW / 2, COLOURS[row.decision]
        scale = max(abs(row.low), abs(row.high), abs(row.bound)) or 1.0
        low, mean, high, bound = (
            round(middle + PLOT / 2 * value / scale, 1) for value in (row.low, row.mean, row.high, row.bound)
        )
        parts += [
            f'<text x="8" y="{y + 4}">{html.escape(row.name)}</text>',
            f'<line x1="{low}" x2="{high}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>',
            f'<circle cx="{mean}" cy="{y}" r="4" fill="{colour}"/>',
            f'<line x1="{bound}" x2="{bound}" y1="{y - 7}" y2="{y + 7}" stroke="#333" stroke-dasharray="2"/>',
            f'<text x="{LEFT + PLOT + 12}" y="{y + 4}" fill="{colour}">{row.mean:+.3g} {row.decision}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def paper(identifier: str) -> str:
    """An arXiv identifier as a Markdown link."""
    arxiv_id = identifier.removeprefix("arXiv:")
    return f"[{arxiv_id}](https://arxiv.org/abs/{arxiv_id})" if arxiv_id != identifier else identifier


def family_pages() -> dict[str, str]:
    """Files of docs/methods: a page for each family of recipes, and a plot of its measured claims."""
    stored, found = read(), {}
    for one, recipes in by_family().items():
        found[f"{slug(one)}.md"] = family_page(one, recipes, stored)
        if plot := claims_svg(recipes, stored):
            found[f"{slug(one)}.svg"] = plot
    return found


def stale_claims() -> str:
    """Which stored verdicts belong to earlier definitions, and which claims have none."""
    stored = read()
    found = states(stored, claiming())
    lines = []
    for title, state in (
        ("Measured on earlier definitions (stale)", "stale"),
        ("Not measured yet", "missing"),
    ):
        if rows := sorted(name for name in found if found[name] == state):
            lines.append(f"{title}: {', '.join(f'`{name}`' for name in rows)}.")
    return "\n\n".join(lines) or "All stored verdicts belong to the present definitions."


def testbed_page() -> str:
    """Each testbed with its documentation, for docs/testbeds.md."""
    return "\n\n".join(piece_entry(name, one) for name, one in catalogue("testbed").items())


# --- recipe keys
# -----------------------------------------------------------------------------------------------------


def kind(hint: Any) -> str:
    """A type of the schema in words, `integer ≥ 1`."""
    if hint == Parser:
        return "`auto` or a [parser](data.md#layouts)"
    if hint == Spec:
        return "piece"
    if hint == Split:
        return "split"
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        bounds = [
            f"{SYMBOLS[name]}{bound:g}"
            for info in parts[1:]
            for limit in getattr(info, "metadata", ())
            for name in SYMBOLS
            if isinstance(bound := getattr(limit, name, None), (int, float))
        ]
        return " ".join([kind(parts[0]), ", ".join(bounds)]).strip()
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in parts)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(kind(part) for part in parts)
    if origin is not None and issubclass(origin, Mapping):
        return f"mapping of {kind(parts[1])}"
    if origin is not None and issubclass(origin, Sequence):
        return f"list of {kind(parts[0])}"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "`null`"}.get(
        hint, "any value"
    )


def sections(hint: Any, path: str, found: dict[type, list[str]]) -> dict[type, list[str]]:
    """The sections that a type reaches, with the paths at which a recipe writes them."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        found.setdefault(hint, []).append(path)
        for key, inner in typing.get_type_hints(hint, include_extras=True).items():
            sections(inner, f"{path}.{key}".lstrip("."), found)
    for part in typing.get_args(hint):
        mapping = isinstance(origin := typing.get_origin(hint), type) and issubclass(origin, Mapping)
        sections(part, f"{path}.NAME" if mapping else path, found)
    return found


def notes(section: type) -> dict[str, str]:
    """The comment of each key of a section, on its line or on the lines above, from its source."""
    above = notes(section.__base__) if dataclasses.is_dataclass(section.__base__) else {}
    source = textwrap.dedent(inspect.getsource(section))
    lines = source.splitlines()
    trailing = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }

    def comment(node: ast.AnnAssign) -> str | None:
        if node.end_lineno in trailing:
            return trailing[node.end_lineno]
        first = node.lineno
        while lines[first - 2].lstrip().startswith("#"):
            first -= 1
        return " ".join(trailing[line] for line in range(first, node.lineno)) or None

    (body,) = [node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef)]
    keys = {
        node.target.id: comment(node)
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return {**above, **{key: text for key, text in keys.items() if text}}


def default(field: dataclasses.Field[Any]) -> str:
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
        return "required"
    value = field.default_factory() if field.default_factory is not dataclasses.MISSING else field.default
    if dataclasses.is_dataclass(value):
        return "its defaults"
    return f"`{json.dumps(value)}`"


def cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def recipe_reference() -> str:
    parts = [
        "# Recipe keys",
        "Every key of a recipe and of a hardware profile, with its type and default, by section. "
        "`python docs/generate.py` makes this page from `components/recipes`. A *piece* is a mapping "
        "with a `name` and options, or the name alone: `ratchet recipes pieces` lists them. "
        "`ratchet recipes explain NAME --defaults` writes a recipe out with every default, `ratchet "
        "recipes check FILE` checks yours. What the sections are for: [Recipes](recipes.md).",
    ]
    for section, paths in {**sections(Recipe, "", {}), **sections(Profile, "profile", {})}.items():
        hints, beside = typing.get_type_hints(section, include_extras=True), notes(section)
        doc = inspect.getdoc(section) or ""
        parts += [
            f"## {section.__name__}",
            ", ".join(f"`{path}`" for path in paths if path),
            "" if doc.startswith(f"{section.__name__}(") else doc,
            "| key | type | default | |\n|---|---|---|---|\n"
            + "\n".join(
                f"| `{field.name}` | {cell(kind(hints[field.name]))} | {cell(default(field))} | "
                f"{cell(beside.get(field.name, ''))} |"
                for field in dataclasses.fields(section)
            ),
        ]
    return "\n\n".join(part for part in parts if part)


# --- pieces
# ----------------------------------------------------------------------------------------------------------


def piece_entry(name: str, one: Description) -> str:
    facts = [
        f"reads {', '.join(f'`{column}`' for column in sorted(one.reads))}" if one.reads else "",
        f"writes {', '.join(f'`{column}`' for column in sorted(one.writes))}" if one.writes else "",
        f"unit {one.unit}" if one.slot == "objective" else "",
        paper(one.paper) if one.paper else "",
    ]
    prose = one.doc.split(">>>")[0].strip()
    options = "\n".join(
        f"* `{declared}`, " + (value if value == "required" else f"default `{value}`")
        for declared, value in map(option_text, one.options.values())
    )
    return "\n\n".join(
        part for part in (f"### {name}", " · ".join(fact for fact in facts if fact), prose, options) if part
    )


def piece_reference() -> str:
    parts = [
        "# Pieces",
        "What a recipe can name, by slot, generated from the sources: `clip` is "
        "`components/pieces/objectives/clip.py`, `clip.row` the function "
        "`row` of that file. Objectives also take `weight`, `weight_column`, `where`, `label` and `reduce` "
        "(how unreduced terms become the loss).",
    ]
    for slot in SLOTS:
        parts += [
            f"## {slot}",
            f"Named in {NAMED_IN[slot]}.",
            *(piece_entry(name, one) for name, one in catalogue(slot).items()),
        ]
    return "\n\n".join(parts)


# --- commands
# --------------------------------------------------------------------------------------------------------


def command_reference() -> str:
    """What `typer ratchet.flows.cli utils docs` prints."""
    from typer.cli import get_docs_for_click
    from typer.main import get_command

    from ratchet.flows.cli import app

    command = get_command(app)
    return html.unescape(
        get_docs_for_click(
            obj=command, ctx=command.make_context("ratchet", [], resilient_parsing=True), name="ratchet"
        )
    )


# --- Python
# ----------------------------------------------------------------------------------------------------------


def python_reference() -> str:
    """Signature and docstring of every name that `ratchet` exports, and of the public members of its
    classes.
    """
    return "\n\n".join(
        entry
        for name in ratchet.__all__
        for entry in (
            python_entry(f"### ratchet.{name}", name, getattr(ratchet, name)),
            *python_members(getattr(ratchet, name)),
        )
    )


def python_example() -> str:
    return f"```python\n{(ROOT / 'docs' / 'examples' / 'python_api.py').read_text()}```"


def python_members(value: Any) -> list[str]:
    if not isinstance(value, type) or issubclass(value, Exception):
        return []
    return [
        python_entry(f"#### {value.__name__}.{name}", name, member)
        for name, member in vars(value).items()
        if not name.startswith("_") and isinstance(member, (types.FunctionType, property))
    ]


class Annotation(str):
    """An annotation that `inspect` writes as it stands in the source."""

    __repr__ = str.__str__


def python_entry(heading: str, name: str, value: Any) -> str:
    code = []
    if isinstance(value, property):
        code = [f"```python\n{name}: {inspect.signature(value.fget).return_annotation}\n```"]
    elif isinstance(value, types.FunctionType):
        written = inspect.signature(value)
        parameters = [
            one.replace(annotation=Annotation(one.annotation))
            for one in written.parameters.values()
            if one.name != "self"
        ]
        returned = Annotation(written.return_annotation)
        code = [f"```python\n{name}{written.replace(parameters=parameters, return_annotation=returned)}\n```"]
    return "\n\n".join([heading, *code, inspect.getdoc(value) or ""]).rstrip()


# --- README.md
# -------------------------------------------------------------------------------------------------------


def definition(path: str, name: str) -> str:
    """The source of one function with its decorators, as a code block."""
    text = (ROOT / path).read_text()
    (node,) = [node for node in ast.parse(text).body if getattr(node, "name", "") == name]
    lines = text.splitlines()[min(one.lineno for one in [node, *node.decorator_list]) - 1 : node.end_lineno]
    return "\n".join([f"```python\n# {path}", *lines, "```"])


TESTED = "<!-- tested -->", "<!-- end -->"
FEATURES = {  # key of config.json -> what it adds to full attention over a plain MLP
    "sliding_window": "sliding window",
    "attn_logit_softcapping": "soft cap of attention",
    "final_logit_softcapping": "soft cap of logits",
    "logits_scaling": "scaled logits",
    "logit_scale": "scaled logits",
    "num_local_experts": "experts",
    "num_experts": "experts",
}


def model_families() -> str:
    """Table of the tested model types, with what their configuration has besides full attention. The checks
    are those of tests/components/inference/test_verify.py, which every type must pass.
    """
    from transformers import AutoConfig

    source = (ROOT / "components" / "inference" / "verify.py").read_text()
    node = next(
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TESTED"
    )
    kinds = re.findall(r"'(\w+)'", ast.unparse(node.value))
    checks = ["load, save", "log-probs, gradients", "sampled log-probs", "loss of SFT", "loss of DPO"]
    lines = [f"| `model_type` | {' | '.join(checks)} | besides full attention |", "|---" * 7 + "|"]
    for kind in sorted(kinds):
        config = AutoConfig.for_model(kind)
        known = set(config.to_dict()) | set(config.attribute_map)
        found = dict.fromkeys(name for key, name in FEATURES.items() if key in known)
        if kind == "gpt_oss":
            found["attention sinks"] = None
        lines.append(f"| `{kind}` | {' | '.join(['equal'] * len(checks))} | {', '.join(found) or '–'} |")
    return "\n".join(lines)


def with_families(text: str) -> str:
    """The page of models with the table of model families made anew."""
    before, _, rest = text.partition(TESTED[0])
    return f"{before}{TESTED[0]}\n{model_families()}\n{TESTED[1]}{rest.partition(TESTED[1])[2]}"


def blocks() -> dict[str, str]:
    return {
        "recipe": f"```yaml\n# flows/recipes/rlvr_grpo.yaml\n{(folder() / 'rlvr_grpo.yaml').read_text()}```",
        "piece": definition("components/pieces/objectives/reinforce.py", "reinforce"),
        "recipes": recipe_families(),
    }


def filled(text: str) -> str:
    """README.md with its generated blocks up to date."""
    for name, block in blocks().items():
        marks = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
        text = re.sub(
            f"{marks[0]}.*?{marks[1]}",
            lambda _, b=block, m=marks: f"{m[0]}\n{b}\n{m[1]}",
            text,
            flags=re.DOTALL,
        )
    return text


# --- MkDocs
# ----------------------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    """README.md becomes the first page, so that its links are checked too; the reference pages are added."""
    from mkdocs.structure.files import File

    home = (
        (ROOT / "README.md")
        .read_text()
        .replace("](docs/", "](")
        .replace("](LICENSE)", "](https://www.apache.org/licenses/LICENSE-2.0)")
    )
    pages = {
        "index.md": home,
        "reference/pieces.md": piece_reference(),
        "reference/commands.md": command_reference(),
    }
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A page of the site: the generated parts in place of their markers, links to pages that exist here."""
    generated = {
        "methods.md": {"recipes": recipe_table},
        "testbeds.md": {"testbeds": testbed_page},
        "python.md": {"reference": python_reference, "example": python_example},
    }
    for name, part in generated.get(page.file.src_uri, {}).items():
        mark = re.compile(f"<!-- site: {name} -->.*?<!-- end -->", re.DOTALL)
        markdown = mark.sub(lambda _, p=part: p(), markdown)
    if page.file.src_uri == "claims.md":
        markdown = markdown.replace("<!-- stale -->", stale_claims())
    for source, made in SITE_PAGES.items():
        markdown = markdown.replace(f"]({source})", f"]({made})")
    return markdown


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(filled(readme.read_text()))
    methods = ROOT / "docs" / "methods"
    methods.mkdir(exist_ok=True)
    written = family_pages()
    for name, text in written.items():
        (methods / name).write_text(text)
    for file in set(methods.iterdir()) - {methods / name for name in written}:
        file.unlink()
    (ROOT / "docs" / KEYS).write_text(recipe_reference() + "\n")
    claims = ROOT / "docs" / "claims.md"
    claims.write_text(filled_claims(claims.read_text(), read()))
    models = ROOT / "docs" / "models.md"
    models.write_text(with_families(models.read_text()))
