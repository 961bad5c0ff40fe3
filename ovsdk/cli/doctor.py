"""`ovsdk doctor`: one page on this machine: what is here for an NPU, what stands in the way of overlap, what to change."""

from __future__ import annotations

from itertools import groupby

import typer

from ..backends.ascend.doctor import CHANGE, NOTE, Diagnosis, diagnose
from ..backends.ascend.machine import here
from .output import console, print_json, print_table


def command(as_json: bool = typer.Option(False, "--json", help="Print JSON.")) -> None:
    """Check this machine for overlap on an Ascend NPU. Exit 1 if there is one and something must be changed."""
    diagnosis = diagnose(here())
    if as_json:
        print_json(diagnosis.as_dict())
    else:
        show(diagnosis)
    if diagnosis.bad:
        raise typer.Exit(1)


def show(diagnosis: Diagnosis) -> None:
    """The page, for people: a table a group, what to do, a line of summary."""
    for group, findings in groupby(diagnosis.findings, key=lambda finding: finding.group):
        print_table([group, "seen", "", "effect on overlap"], [(f.name, f.seen, f.state, f.effect) for f in findings])
        print()
    todo = [(f.state, f.name, f.remedy) for f in diagnosis.findings if f.state in (CHANGE, NOTE)]
    if todo:
        print_table(["", "what to do", ""], todo)
        print()
    console().print(str(diagnosis))
