"""`ratchet doctor`: is this installation fit to run?"""

from __future__ import annotations

from pathlib import Path

import typer

from flows.commands.options import OUT, Home

COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(home: Home = OUT) -> None:
    """Check packages, servers, disk, GPU, DVC remote and downloads in seconds. Exit code 1 when something fails."""
    from rich.markup import escape

    from flows.display import open_console
    from tasks.doctor import examine

    console, worst = open_console(highlight=False, soft_wrap=True), set()
    for finding in examine(home, Path.cwd()):
        worst.add(finding.state)
        do = f" → {escape(finding.do)}" if finding.do else ""
        console.print(f"[{COLOURS[finding.state]}]{finding.state:<5}[/] {finding.name:<13} {escape(finding.seen)}{do}")
    if "fail" in worst:
        raise typer.Exit(1)
