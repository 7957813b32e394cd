"""`osscl demo`: the whole method on built-in data, in two or three minutes."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from osscl.cli.options import Out

if TYPE_CHECKING:
    from osscl.runs.record import RunRecord
    from osscl.runs.spec import RunSpec


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Seed of the stream and the training.")] = 0,
    out: Out = Path("runs"),
    smallest: Annotated[
        bool, typer.Option("--smallest", help="Make only a few updates, to check the installation.")
    ] = False,
    photos: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write folders of drawn pictures for `osscl fit`, and exit.")
    ] = None,
) -> None:
    """Learn digits among letters with labels only, URSL and URSL-plus unlimited; then write a report."""
    if photos is not None:
        from osscl.data.demo_photos import write_demo_photos

        write_demo_photos(photos, seed)
        typer.echo(f"wrote {photos}/week1, week2, pile and test")
        return
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from osscl.cli.show import comparison, quoted, watching
    from osscl.runs.checkpoint import Options
    from osscl.runs.run import run
    from osscl.runs.spec import demo_specs

    console = Console(markup=False, highlight=False)
    specs = demo_specs(seed, smallest)
    first = next(iter(specs.values()))
    scenario = first.scenario
    console.print(
        f"Learning ten digits in five steps of two, with {scenario.labels_per_class} labels per class and a memory of "
        f"{scenario.memory} images. Each step adds {unlabelled_words(first)}.\n"
    )
    records = []
    with TemporaryDirectory() as shared:  # both URSLs share one reference network, which is not kept
        for name, spec in specs.items():
            with watching(f"{name:<20}") as watcher:
                options = Options(out=out, device="cpu", references=Path(shared), watcher=watcher)
                records.append((name, run(spec, options)))
    console.print()
    console.print(comparison(records))
    folder = out / list(specs.values())[-1].id
    typer.echo(f"\nRun folder:  {folder}")
    typer.echo(f"Try it:      {quoted(*program(), 'predict', folder)}")
    typer.echo(f"Report:      {_report([record for _, record in records], out)}")
    console.print(
        "\nThe digits only illustrate the method. For its accuracy, see the recorded CIFAR runs in results/ of the "
        "repository."
    )


def unlabelled_words(spec: "RunSpec") -> str:
    """The unlabelled images in each step of the demo, as limited by its schedule."""
    related, unrelated, cap = spec.scenario.related or 0, spec.scenario.unrelated or 0, spec.schedule.row_cap
    if cap is not None and cap < related + unrelated:
        return f"{cap} unlabelled images, digits of all classes and letters"
    return f"{related} unlabelled digits of all classes and {unrelated} letters"


def _report(records: "list[RunRecord]", out: Path) -> str:
    """Write a report of the demo's runs, replacing only an earlier one; return its path, or why there is none."""
    from osscl.cli.report import banks_of
    from osscl.errors import UserError
    from osscl.report.page import build_page, is_demo_page
    from osscl.report.paper_comparison import compare_with_paper
    from osscl.storage import write_text

    target = out / "report.html"
    if target.exists() and not is_demo_page(target):
        return f"not written: {target} exists and is not a demo report"
    try:
        banks, paper = banks_of(records, None), compare_with_paper(records)
        write_text(target, build_page(records, banks, paper, title="Digits among letters", demo=True))
    except UserError as error:
        return f"not written: {error}"
    return f"{target} (open it in a browser)"


def program() -> list[str]:
    """The command that starts this program from the current folder."""
    if Path(sys.argv[0]).name == "__main__.py":
        return ["python", "-m", "osscl"]
    return ["osscl" if shutil.which("osscl") else os.path.relpath(sys.argv[0])]
