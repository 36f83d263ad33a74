"""`ratchet label`: a page on which people compare answers, and the preference data that they make."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ratchet.components.errors import RecipeError, ServiceError, nearest
from ratchet.components.labels.forget import forget as delete_labels
from ratchet.components.labels.labels import read_labels
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.queue_files import close_queue
from ratchet.components.labels.settings import Settings
from ratchet.flows.commands.label_files import take_labels, write_labels, write_report
from ratchet.flows.commands.options import OUT, Home
from ratchet.tasks.labels.tokens import FILE, checked, digests, issue, revoke, uses_tokens
from ratchet.tasks.tracking.outcome import find_run, outcome, run_at

OVERLAP = 0.2
"""Share of the pairs that two annotators judge, where there are two."""
RESUME_AGAIN = 10.0
"""Seconds until a Prefect server that did not resume a run is asked again."""


def label(
    source: Annotated[
        str,
        typer.Argument(metavar="QUEUE|RUN", help="Folder of a labelling queue, or a run to make one from."),
    ],
    home: Home = OUT,
    labels: Annotated[
        int | None,
        typer.Option(min=1, help="Labels that a new queue asks for. Default: one pair of answers a prompt."),
    ] = None,
    overlap: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1,
            help="Share of the pairs of a new queue that two annotators judge. Default: 0.2 with two or more "
            "--annotators, else 0, since one annotator alone could not finish.",
        ),
    ] = None,
    common: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Pairs that every annotator judges first, to find careless ones. Default: 32, at most a "
            "quarter; 0 without overlap.",
        ),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option(help="Stage of the run whose answers are compared. Default: its last answers."),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(help="Selector that proposes the pairs, such as best_worst. Default: at random."),
    ] = None,
    repeats: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the pairs that an annotator sees a second time.")
    ] = 0.05,
    planted: Annotated[
        Path | None, typer.Option(help="File of preference pairs to mix in, to measure annotators' errors.")
    ] = None,
    aspects: Annotated[str, typer.Option(help="More questions, separated by commas: helpful,honest")] = "",
    guidelines: Annotated[Path | None, typer.Option(help="Text file with guidelines for the page.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the pairs and of the order of answers.")] = 0,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Others than loopback need --annotators or --team.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8765,
    annotators: Annotated[
        str, typer.Option(help="Pseudonyms to make personal links for, separated by commas: ann,ben")
    ] = "",
    team: Annotated[
        bool,
        typer.Option("--team", help="Annotators sign in with their account of the MLflow server."),
    ] = False,
    export: Annotated[
        Path | None, typer.Option(help="Write the labels as preference pairs (.parquet) and exit.")
    ] = None,
    layout: Annotated[
        str,
        typer.Option(
            help="Layout of --export: pairs, or all labels as jsonl, parquet, argilla, label_studio."
        ),
    ] = "pairs",
    take: Annotated[
        Path | None,
        typer.Option(
            "--import", help="Add items and labels of a file in such a layout to the folder QUEUE, and exit."
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(help="Write a report on the quality of the labels (.html or .json) and exit."),
    ] = None,
    close: Annotated[
        bool, typer.Option("--close", help="Take no more labels: a run that waits goes on with what it has.")
    ] = False,
    forget: Annotated[
        str | None, typer.Option(metavar="NAME", help="Delete the labels of an annotator and exit.")
    ] = None,
) -> None:
    """Serve a page on which people compare answers, over a queue that a run's answers fill. Ctrl-C stops it;
    the same command continues.
    """
    folder = Path(source) if take is not None else _queue_folder(source, home, stage)
    if (folder / "manifest.json").exists() and export is None and report is None:
        raise RecipeError(
            f"{folder}: the labels that a finished stage keeps; only --export and --report read them"
        )
    if take is not None:
        return take_labels(folder, take)
    if close:
        return _close(folder)
    for option, file in (("export", export), ("report", report)):
        if file is not None and not (folder / "items.jsonl").exists():
            raise RecipeError(f"{folder}: no labelling queue; `ratchet label` without --{option} makes one")
    if report is not None:
        return write_report(folder, report)
    if export is not None:
        return write_labels(folder, export, layout)
    if forget is not None:
        return _forget(folder, forget, home)
    from ratchet.tasks.labels.accounts import checked_server
    from ratchet.tasks.labels.fill import fill
    from ratchet.tasks.labels.server import is_loopback
    from ratchet.tasks.labels.waiting import reopen_without_labels
    from ratchet.tasks.tracking.server import tracking_uri

    server = checked_server(tracking_uri(home)) if team else ""
    names = tuple(map(checked, _names(annotators)))
    closed = not is_loopback(host) or uses_tokens(folder)
    if closed and not team and not names and not digests(folder):
        why = (
            f"{folder / FILE} has no annotator any more; delete it for a page without personal links, or"
            if is_loopback(host)
            else f"--host {host} is reached from other machines:"
        )
        raise RecipeError(
            f"{why} name the annotators who get a personal link, such as --annotators ann,ben, "
            "or pass --team, for accounts of the team server"
        )
    if not (folder / "items.jsonl").exists():
        text = guidelines.read_text().strip() if guidelines else ""
        shared = OVERLAP if overlap is None and len(names) > 1 else overlap or 0.0
        settings = Settings(overlap=shared, aspects=_names(aspects), seed=seed, guidelines=text)
        run = find_run(source, home)
        pairs = {"labels": labels, "common": common, "select": select, "repeats": repeats, "planted": planted}
        typer.echo(fill(folder, run, settings, stage=stage, seed=seed, **pairs))
    if reopen_without_labels(folder):
        typer.echo("the queue was closed without a label and takes some again; `ratchet run` waits for them")
    _serve(folder, host, port, names, server)


def _names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _queue_folder(source: str, home: Path, stage: str | None) -> Path:
    """The folder itself if it has a queue, else that of the run's queue, which may not exist yet."""
    for folder in (Path(source), home / "runs" / source):  # the latter: RUN/stages/ask_1
        if (folder / "items.jsonl").is_file():
            return folder
    from ratchet.tasks.labels.waiting import queue_of

    if Path(source).is_dir() and run_at(source, home) is None:
        raise RecipeError(
            f"{source}: neither a labelling queue (items.jsonl expected) nor a run (run.json expected); name "
            f"a run under {home / 'runs'} to make a queue from, or fill this folder with --import FILE"
        )
    run = find_run(source, home)
    for one in outcome(run)["stages"] if stage is None else ():
        folder = queue_of(run.resolve().parent.parent, one["name"], one["key"])
        if not one["made"] and (folder / "items.jsonl").exists():  # the run waits for labels
            return folder
    return home / "labels" / run.name / (stage or "newest")


def _serve(folder: Path, host: str, port: int, names: Sequence[str], team: str) -> None:
    """Serve the page until Ctrl-C, or until the run that asked has closed the queue. The named annotators get
    new links, which replace their old ones, once the page is served; accounts of the MLflow server `team` may
    sign in.
    """
    from ratchet.tasks.labels.run_page import link_shown
    from ratchet.tasks.labels.server import links, make_app, serving

    with Queue(folder) as queue, serving(make_app(queue, host=host, team=team), host, port) as base:
        tokens, progress = issue(folder, names), queue.progress()
        typer.echo(f"queue      {folder}: {progress.judged} of {progress.wanted} labels")
        for name, link in links(base, tokens).items():
            typer.echo(f"{name:<10} {link}")
        typer.echo(f"page       {base}")
        typer.echo("Ctrl-C stops it; every label is on disk already.")
        with link_shown(folder, base, host, team=bool(team)), contextlib.suppress(KeyboardInterrupt):
            while not queue.closed:
                failed = _resume(folder)
                time.sleep(RESUME_AGAIN if failed else 1.0)  # the Prefect server may come back
            return typer.echo("the run has its labels and went on; the same command serves its next round")
        progress = queue.progress()
        typer.echo(f"stopped at {progress.judged} of {progress.wanted} labels; the same command continues")


def _resume(folder: Path) -> bool:
    """Resume the flow run that is suspended until the queue in `folder` is over; whether that failed."""
    from ratchet.tasks.labels.waiting import resume_if_over

    try:
        if resume_if_over(folder, time.time()):
            typer.echo("the queue has its labels; the run goes on at its worker")
    except ServiceError as error:
        typer.echo(f"warning: {error}", err=True)
        return True
    return False


def _close(folder: Path) -> None:
    if not (folder / "items.jsonl").exists():
        raise RecipeError(f"{folder}: no labelling queue to close; `ratchet label` without --close makes one")
    if not read_labels(folder):
        raise RecipeError(f"{folder}: no label yet, without which a run cannot go on; not closed")
    typer.echo(f"{folder}: closed with {len(close_queue(folder))} labels")
    _resume(folder)


def _forget(folder: Path, name: str, home: Path) -> None:
    from ratchet.tasks.labels.readers import readers

    reading_runs = readers(home, name)
    if not (folder / "items.jsonl").exists():
        typer.echo(f"there is no queue {folder}; nothing to delete there")
    else:
        known = {*digests(folder), *(label.annotator for label in read_labels(folder))}
        deleted = delete_labels(folder, checked(name))
        revoke(folder, name)
        if name not in known and not reading_runs:
            raise RecipeError(f"{folder}: no labels by an annotator {name!r}{nearest(name, known)}")
        typer.echo(
            f"{folder}: {deleted} labels of {name} deleted; files that were exported before still have them"
        )
    for reading in reading_runs:
        typer.echo(
            f"read by    run {reading.run}: {reading.labels} labels; "
            f"models {', '.join(reading.models) or 'none yet'}"
        )
    if not reading_runs:
        typer.echo(f"no run under {home / 'runs'} read them")
