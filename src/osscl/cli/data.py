"""`osscl data`: which data sets there are, and getting them."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Which data sets there are, and getting them.", no_args_is_help=True)

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Folder that holds the data sets; by default $OSSCL_DATA, else the user's cache.",
        show_default=False,
    ),
]


@app.command("list")
def show(data: DataOption = None) -> None:
    """Show every data set: its licence, whether it is there, and where it is looked for."""
    from osscl.cli.show import DASH, console, table
    from osscl.data.benchmarks import DATASETS
    from osscl.data.cache import data_dir

    folder = data_dir(data)
    shown = table("set", "what", "licence", "there", "looked for in", caption=f"data folder: {folder}")
    for spec in DATASETS.values():
        if spec.layout is None:
            there, where = "embedded", DASH
        else:
            there, where = "yes" if (folder / spec.layout).is_dir() else "no", spec.layout
        shown.add_row(spec.name, spec.title, spec.licence, there, where)
    console().print(shown)


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets, by the names that `list` shows.")],
    data: DataOption = None,
) -> None:
    """Download the official archives, check and extract them; an archive already in the folder is used as it is."""
    from osscl.data.benchmarks import dataset
    from osscl.data.cache import data_dir
    from osscl.data.fetch import fetch as fetch_one

    for name in names:
        dataset(name)  # a wrong name is told before the first long download
    for name in names:
        typer.echo(fetch_one(name, data_dir(data)))
