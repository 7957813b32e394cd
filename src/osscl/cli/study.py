"""`osscl study` and `study-heads`: recipes side by side."""

import re
from pathlib import Path
from typing import Annotated

import typer


def study(
    name: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="A named experiment; see `osscl list`.")],
    variant: Annotated[list[str] | None, typer.Option(metavar="A.B=C[,D=E]", help="Changes; may be repeated.")] = None,
    epochs: Annotated[int, typer.Option(min=1, help="On U_1 alone.")] = 60,
    schedule: Annotated[str, typer.Option(help="paper, or smoke to try the plumbing.")] = "paper",
    seed: Annotated[int, typer.Option(min=0)] = 0,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table there too, as JSON.")] = None,
) -> None:  # fmt: skip
    """Train the reference on U_1 in several ways; n-shot accuracy and the gate's AUROC on validation rows."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from osscl.cli.show import number
    from osscl.runs.spec import make_spec
    from osscl.storage import refuse_to_overwrite
    from osscl.tools.study import study_references

    refuse_to_overwrite(out)
    spec = make_spec(name, "ursl", schedule, seed)
    found = study_references(spec, changes_of(variant, "reference"), epochs, data, device)
    trained = (
        f"{spec.schedule.epochs(epochs)} epochs on U_1 (schedule {schedule}: {found[0].updates} updates as in ursl)"
    )
    protocol = f"{name}, {trained}, seed {seed}"
    caption = f"{protocol}; n-shot: nearest class mean in % over all classes, validation rows"
    columns = ("reference", "last loss", "25-shot", "5-shot", "AUROC, t=1", "seconds")
    table = Table(*columns, box=box.SIMPLE_HEAD, caption=caption)
    for row in found:
        words = ", ".join(row.changes) or "as in ursl"
        shots = [number(row.shots[n]) for n in ("25", "5")]
        table.add_row(words, number(row.loss, 3), *shots, number(row.auroc, 3), number(row.seconds, 0))
    Console().print(table)
    keep(out, {"experiment": name, "epochs": epochs, "schedule": schedule, "seed": seed}, found, device)


def study_heads(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run with --validation.")],
    variant: Annotated[list[str] | None, typer.Option(metavar="A=B[,C=D]", help="Changes; may be repeated.")] = None,
    data: Annotated[Path | None, typer.Option(metavar="DIR", help="Where data sets lie.", show_default=False)] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table there too, as JSON.")] = None,
) -> None:
    """Fit the head of a trained agent in several ways; accuracy on validation rows."""
    from osscl.cli.show import console, number, table
    from osscl.storage import refuse_to_overwrite
    from osscl.tools.study import study_heads

    refuse_to_overwrite(out)
    found = study_heads(folder, changes_of(variant, "head"), data, device)
    shown = table("head", "final %", "seconds")
    for row in found:
        shown.add_row(", ".join(row.changes) or "as in the run", number(row.final), number(row.seconds, 1))
    console().print(shown)
    typer.echo(f"{folder.name}; validation rows; memory as updated after the last step")
    keep(out, {"run": folder.name}, found, device)


def keep(out: Path | None, protocol: dict[str, object], variants: object, device: str) -> None:
    """What was found, beside how and with what it was found, where a file is asked for."""
    import json

    from osscl.config import plain
    from osscl.device import device_name, pick_device
    from osscl.runs.record import commit
    from osscl.runs.run import command_line
    from osscl.storage import write_text

    if out is not None:
        made_by = {"command": command_line(), "commit": commit(), "device": device_name(pick_device(device))}
        write_text(out, json.dumps({**protocol, "made_by": made_by, "variants": plain(variants)}, indent=1) + "\n")


def changes_of(variants: list[str] | None, part: str) -> list[list[str]]:
    """No change, then those that were given, with or without the name of the part that they are of."""
    commas = re.compile(r",(?![^\[]*\])")  # those of a list stay
    given = ([change for change in commas.split(entry) if change] for entry in variants or [])
    return [[], *([change.strip().removeprefix(f"{part}.") for change in one] for one in given)]
