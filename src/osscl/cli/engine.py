"""Flags that say where runs are carried out and who looks on, for every command that carries out several."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from osscl.experiments.checkpoint import Options, Watcher
    from osscl.experiments.engine import Engine, Watch
    from osscl.experiments.spec import RunSpec

EngineName = Annotated[str, typer.Option("--engine", help="local: one run after another, here; ray: a Ray cluster.")]
Address = Annotated[
    str | None,
    typer.Option(metavar="HOST:PORT", help="Of a Ray cluster; else one is started here.", show_default=False),
]
GpuShare = Annotated[
    float | None, typer.Option(help="Ray: how much of a GPU one run holds; a whole one by default.", show_default=False)
]
SharedDevice = Annotated[
    bool, typer.Option("--shared-device", help="Other work goes on on the device: keep times out of the tables.")
]
ShareReferences = Annotated[bool, typer.Option(help="Share reference networks between runs.")]
Track = Annotated[str | None, typer.Option(metavar="tensorboard", help="Write scalars to each run's folder.")]


def watch_for(engine: "Engine", options: "Options", track: str | None) -> "Watch | None":
    """Who looks on: here a line for every run, on Ray nobody; and whoever writes scalars, anywhere."""
    from functools import partial

    from osscl.experiments.track import refuse_tracker

    if track is not None:
        refuse_tracker(track)
    if engine.name == "ray":
        return partial(tracked, options.out.resolve()) if track is not None else None
    return partial(watched, options.out, track)


@contextlib.contextmanager
def watched(out: Path, track: str | None, spec: "RunSpec") -> "Iterator[Watcher]":
    """What this run is, then how far it has come."""
    from osscl.cli.show import watching
    from osscl.experiments.spec import name_of

    announce(spec, out)
    with (
        watching(f"{name_of(spec)} on {spec.scenario.main}, seed {spec.seed}") as watcher,
        tracked(out, spec, watcher) if track else contextlib.nullcontext(watcher) as all_,
    ):
        yield all_


def tracked(out: Path, spec: "RunSpec", beside: "Watcher | None" = None) -> Any:
    """A module's function: Ray sends it to its workers by name."""
    from osscl.experiments.track import tracking

    return tracking(out / spec.id / "tensorboard", beside)


def announce(spec: "RunSpec", out: Path, *, whole: bool = False) -> None:
    """Its id and its folder; before them the spec in full, of a finished run where the `whole` is asked for."""
    import yaml

    from osscl.experiments.spec import describe_schedule, name_of, spec_to_plain

    finished = (out / spec.id / f"{spec.id}.json").exists()
    if whole or not finished:
        typer.echo(yaml.safe_dump(spec_to_plain(spec), sort_keys=False).rstrip())
    typer.echo(f"# {name_of(spec)}, schedule {describe_schedule(spec)}\n# id: {spec.id}\n# run folder: {out / spec.id}")
    if finished:
        typer.echo("# finished before; nothing is run again")
