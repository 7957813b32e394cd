"""`osscl demo`: the whole thing on embedded data, in two or three minutes."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from osscl.runs.record import RunRecord


def demo(
    seed: Annotated[int, typer.Option(min=0, help="Of the stream and of everything random in it.")] = 0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where run folders go.")] = Path("runs"),
    smallest: Annotated[bool, typer.Option(help="A few updates only: tries the plumbing, teaches nothing.")] = False,
) -> None:
    """Learn digits two at a time, among letters: from labels alone, with URSL, with ours; end with a report."""
    from tempfile import TemporaryDirectory

    from rich.console import Console

    from osscl.cli.show import comparison, quoted, watching
    from osscl.runs.checkpoint import Options
    from osscl.runs.run import run
    from osscl.runs.spec import demo_specs

    console = Console(markup=False)
    specs = demo_specs(seed, smallest)
    scenario = next(iter(specs.values())).scenario
    console.print(
        f"Five steps of two digit classes, {scenario.labels_per_class} labels a class, memory {scenario.memory}. "
        f"Unlabelled: {scenario.related} digits of all classes and {scenario.unrelated} letters a step.\n",
        highlight=False,
    )
    records = []
    with TemporaryDirectory() as shared:  # both URSLs learn from one reference network, and nothing is left behind
        for name, spec in specs.items():
            with watching(f"{name:<12}") as watcher:
                options = Options(out=out, device="cpu", references=Path(shared), watcher=watcher)
                records.append((name, run(spec, options)))
    console.print()
    console.print(comparison(records))
    folder = out / specs["URSL-plus"].id
    console.print(f"\nrun folder: {folder}", highlight=False, soft_wrap=True)
    console.print(f"predict:    {quoted(*program(), 'predict', folder)}", highlight=False, soft_wrap=True)
    console.print(f"report:     {_report([record for _, record in records], out)}", highlight=False, soft_wrap=True)
    console.print(
        "\nDigits show how it works, not how well. Recorded runs on CIFAR lie in the repository's folder results/.",
        highlight=False,
    )


def _report(records: "list[RunRecord]", out: Path) -> str:
    """Write the page of the demo's runs, over its own earlier one alone; where it lies, or why there is none."""
    from osscl.cli.report import banks_of
    from osscl.errors import UserError
    from osscl.report.page import build_page, is_demo_page
    from osscl.report.paper_comparison import compare_with_paper
    from osscl.storage import write_text

    target = out / "report.html"
    if target.exists() and not is_demo_page(target):
        return f"not written, {target} exists and is not the demo's"
    try:
        banks, paper = banks_of(records, None), compare_with_paper(records)
        write_text(target, build_page(records, banks, paper, title="Digits among letters", demo=True))
    except UserError as error:
        return f"not written, {error}"
    return f"{target} (opens in any browser)"


def program() -> list[str]:
    """How this program can be called from here."""
    if Path(sys.argv[0]).name == "__main__.py":
        return ["python", "-m", "osscl"]
    return ["osscl" if shutil.which("osscl") else os.path.relpath(sys.argv[0])]
