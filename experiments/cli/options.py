"""The application, and the options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Commands that the workflow's rules call; a person can call them too.",
)

RunId = Annotated[str, typer.Option("--run", help="a run id, as `plan` prints it")]
Scale = Annotated[str, typer.Option(help="smoke, quick, small, gpu or paper")]
StudyName = Annotated[str, typer.Option("--study", help="a file of experiments/studies")]


def check_device(device: str) -> None:
    """Raise `UserError` for a device that has another form, or that this machine lacks."""
    if device not in ("cpu", "auto"):
        from experiments.training.device import resolve

        resolve(device)
