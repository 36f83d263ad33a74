"""`ratchet doctor`: checks of the installation and the machine."""

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
