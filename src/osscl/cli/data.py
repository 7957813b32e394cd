"""`osscl data`: list, download and verify data sets."""

from typing import Annotated

import typer

from osscl.cli.options import Data, GroupedHelp

app = typer.Typer(cls=GroupedHelp, help="List, download and verify data sets.", no_args_is_help=True)


@app.command("list")
def list_data(data: Data = None) -> None:
    """List the data sets: licence, whether they are present, expected folder."""
    from osscl.cli.show import DASH, console, new_table
    from osscl.data.benchmarks import DATASETS
    from osscl.places import data_dir

    folder = data_dir(data)
    shown = new_table("set", "description", "licence", "present", "expected in", caption=f"data folder: {folder}")
    for spec in DATASETS.values():
        present = "built in" if spec.layout is None else "yes" if (folder / spec.layout).is_dir() else "no"
        shown.add_row(spec.name, spec.title, spec.licence, present, spec.layout or DASH)
    console().print(shown)


@app.command("fetch")
def fetch_data(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets, as named by `osscl data list`.")],
    data: Data = None,
) -> None:
    """Download, verify and extract the official archives; an archive already in the folder is reused."""
    from osscl.data.benchmarks import dataset
    from osscl.data.fetch import fetch
    from osscl.places import data_dir

    for name in names:
        dataset(name)  # refuse a wrong name before a long download
    for name in names:
        typer.echo(fetch(name, data_dir(data)))


@app.command("verify")
def verify_data(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="Data sets, as named by `osscl data list`.")],
    data: Data = None,
) -> None:
    """Read all files of data sets and compare their content with the official one and with the cache."""
    from osscl.data.benchmarks import dataset, verify_dataset
    from osscl.errors import DataError
    from osscl.places import cache_dir, data_dir

    for name in names:
        dataset(name)
    problems = []
    for name in names:
        found = verify_dataset(name, data_dir(data), cache_dir())
        problems += [found.problem] if found.problem is not None else []
        typer.echo(f"{name}: content {found.content}, {'DIFFERENT' if found.problem else 'as expected'}")
    if problems:
        raise DataError("; ".join(problems))
