"""`ratchet doctor` and `ratchet join`: check this machine, and lend it to the stages of another."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer
from rich.markup import escape

from ratchet.flows.commands.options import OUT, Home, Json, print_json
from ratchet.flows.display import open_console

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(home: Home = OUT, as_json: Json = False) -> None:
    """Check package versions, servers, disk, GPU and DVC remote. Exit code 1 if a check fails."""
    from ratchet.tasks.machine.doctor import examine

    console, findings = open_console(soft_wrap=True), []
    for finding in examine(home, Path.cwd()):
        findings.append(finding)
        if as_json:
            continue
        do = f" → {escape(finding.do)}" if finding.do else ""
        console.print(
            f"[{COLOURS[finding.state]}]{finding.state:<5}[/] {finding.name:<13} {escape(finding.seen)}{do}"
        )
    if as_json:
        print_json([asdict(finding) for finding in findings])
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(1)


def join(home: Home = OUT) -> None:
    """Join this node to the stages of a home that use several machines (`machines` of the profile), until
    Ctrl-C: training waits for it, sampling and scoring take it when it comes.

    All nodes need the home under the same path, the same code, and a trusted network. Start it on every node
    but the one that runs.
    """
    from ratchet.tasks.process.joining import join as take_part
    from ratchet.tasks.process.orphans import reap_children_on_exit

    reap_children_on_exit()
    console = open_console()
    console.print(f"Waiting for multi-node stages in {home.resolve()}; Ctrl-C stops.", soft_wrap=True)
    try:
        take_part(home, lambda text: console.print(text, markup=False, soft_wrap=True))
    except KeyboardInterrupt:
        console.print(
            "Stopped. A stage with ranks on this machine ends; the same `ratchet run` resumes it from "
            "its last checkpoint. One with engines here continues without them."
        )
        raise typer.Exit(130) from None
