"""`ratchet lineage`: provenance of a checkpoint, as a tree and as an SVG."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from io import StringIO
from pathlib import Path
from textwrap import fill
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.tree import Tree

from ratchet.flows.commands.options import OUT, Home, Json, Model, print_json
from ratchet.flows.display import open_console, print_facts
from ratchet.tasks.tracking.outcome import stage_headline
from ratchet.tasks.tracking.results import as_text


def lineage(model: Model, home: Home = OUT, as_json: Json = False) -> None:
    """Show the provenance of a checkpoint: data digests, recipe, code, packages, parent models, metrics; and
    draw it in lineage/<stage>.svg of the run.
    """
    from ratchet.tasks.registry.lineage import resolve
    from ratchet.tasks.registry.versions import events, fallback

    made, version = resolve(model, home)
    if as_json:
        return print_json(
            {**made, "version": version and asdict(version), "history": events(version) if version else []}
        )
    console = open_console(soft_wrap=True)
    title = f"{version.name} version {version.version}" if version else made["product"]
    aliases = f" ({', '.join(version.aliases)})" if version and version.aliases else ""
    console.print(f"[bold]{title}[/bold]{aliases}")
    if taken := fallback(model, version):
        print_facts(console, [("note", taken)])
    print_facts(console, facts(made))
    if version:
        if "verdict" in version.tags:
            print_facts(console, [("verdict", f"{version.tags['verdict']}: {version.tags['verdict.why']}")])
        for event in events(version):
            happened = f"{event['at'][:16]} {event['action']} ({event['alias']}) by {event['by']}: "
            print_facts(console, [("history", happened + event["why"])])
    console.print(tree(made), soft_wrap=False)
    kept = made["run"] and (home / "runs" / made["run"]).is_dir()
    folder = home / "runs" / made["run"] if kept else Path(".")
    picture = draw(made, folder / "lineage" / f"{made['product']}.svg", title)
    print_facts(console, [("picture", str(picture))])


def draw(made: Mapping[str, Any], path: Path, title: str) -> Path:
    """Write the tree to an SVG file."""
    console = Console(record=True, file=StringIO(), width=140)
    console.print(tree(made))
    path.parent.mkdir(parents=True, exist_ok=True)
    about = f"recipe {made['recipe']}, run {made['run']}, code {made['revision'][:12]}"
    console.save_svg(str(path), title=f"{title}: {about}")
    return path


def facts(made: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(label, folded text) of the output as a whole: recipe, run, code, packages, machine, results."""
    own, metrics = made["stages"][made["product"]], as_text(made.get("results", {}).get("metrics", {}))
    revisions = {stage.get("revision") or made["revision"] for stage in made["stages"].values()}
    others = sorted(one[:12] for one in revisions - {made["revision"]})
    found = {
        "recipe": made["recipe"],
        "run": made["run"],
        "made": own["made"],
        "content": own["content"],
        "code": made["revision"] + (f"; ancestors also by {', '.join(others)}" if others else ""),
        "packages": ", ".join(f"{name} {version}" for name, version in made["packages"].items()),
        "machine": own.get("machine", ""),
        "results": ", ".join(f"{name} {text}" for name, text in list(metrics.items())[:8]),
    }
    indent = " " * 11
    folded = partial(fill, width=120, initial_indent=indent, subsequent_indent=indent, break_long_words=False)
    return [(word, folded(text).strip()) for word, text in found.items() if text]


def tree(made: Mapping[str, Any]) -> Tree:
    """The output with its inputs below it; a repeated node is shown in full only once."""
    seen: set[str] = set()

    def grow(name: str, roles: list[str], into: Any) -> Tree:
        stage = made["stages"][name]
        roles = [r for r in roles if r not in (name, stage.get("kind"))]
        role = f" [dim]as {', '.join(roles)}[/dim]" if roles else ""
        if stage.get("missing"):
            return into.add(f"{name}{role} [red]no longer in the store[/red] {stage['key'][:12]}")
        label = f"[bold]{name}[/bold]{role} [cyan]{stage['kind']}[/cyan] {stage['content'][:12]}"
        if name in seen:
            return into.add(f"{label} [dim]shown above[/dim]")
        seen.add(name)
        summary = escape(stage_headline(stage["meta"]) or stage["meta"].get("source", ""))
        node = (into.add if into else Tree)(f"{label}  {summary}".rstrip())
        by_parent: dict[str, list[str]] = {}
        for as_role, parent in stage["inputs"].items():
            by_parent.setdefault(parent, []).append(as_role)
        for parent, as_roles in by_parent.items():
            grow(parent, as_roles, node)
        return node

    return grow(made["product"], [], None)
