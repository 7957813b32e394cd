"""Flags that say where runs are carried out and who looks on, for every command that carries out several."""

import contextlib
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from osscl.runs.checkpoint import Options, Watcher
    from osscl.runs.engine import Engine, Watch
    from osscl.runs.record import RunRecord
    from osscl.runs.spec import RunSpec

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


@dataclass(frozen=True)
class How:
    """How the runs of a table are carried out."""

    options: "Options"
    engine: "Engine"
    track: str | None = None
    begun: float = field(default_factory=time.monotonic)

    @property
    def timed(self) -> bool:
        """Whether the times of such runs count: nothing else goes on on their device."""
        share = self.engine.gpu_share
        return not self.options.shared_device and (share is None or share >= 1)

    def anew(self) -> "How":
        """In a folder of their own, beside records that stay; with references of their own, for one that is shared may
        have been trained beside other work."""
        from osscl.runs.record import TIMED

        return replace(self, options=replace(self.options, out=self.options.out / TIMED, share_references=False))

    def carry_out(self, specs: "Sequence[RunSpec]", title: str, quiet: bool) -> "Iterator[RunRecord]":
        """The record of each, as it is finished; the minutes of all calls together are bounded where they are here."""
        from osscl.runs.engine import carry_out

        options = self.options
        if options.max_minutes is not None and self.engine.name == "local":
            left = max(0.0, options.max_minutes - (time.monotonic() - self.begun) / 60)
            options = replace(options, max_minutes=left)
        return carry_out(specs, options, self.engine, watch_for(self.engine, options, self.track, title, quiet))


def how_of(
    out: Path, data: Path | None, device: str, max_minutes: float | None, engine: str, address: str | None,
    gpu_share: float | None, share_references: bool, shared_device: bool, track: str | None,
) -> How:  # fmt: skip
    """What the flags say that every command about cells has."""
    from osscl.runs.checkpoint import Options
    from osscl.runs.engine import Engine
    from osscl.runs.track import refuse_tracker

    if track is not None:
        refuse_tracker(track)
    options = Options(out, data, device, max_minutes, share_references=share_references, shared_device=shared_device)
    return How(options, Engine(engine, address, gpu_share), track)


def watch_for(
    engine: "Engine", options: "Options", track: str | None, title: str | None = None, quiet: bool = False
) -> "Watch | None":
    """Who looks on: here a line for every run, under the title or, without one, after its spec in full; nobody on Ray
    and where it is `quiet`; and whoever writes scalars, anywhere."""
    from functools import partial

    from osscl.runs.track import refuse_tracker

    if track is not None:
        refuse_tracker(track)
    if engine.name == "ray" or quiet:
        return partial(tracked, options.out.resolve()) if track is not None else None
    return partial(watched, options.out, track, title)


@contextlib.contextmanager
def watched(out: Path, track: str | None, title: str | None, spec: "RunSpec") -> "Iterator[Watcher]":
    """What this run is, then how far it has come."""
    from osscl.cli.show import announce, watching
    from osscl.runs.spec import name_of

    if title is None:
        announce(spec, out)
    name = f"{name_of(spec)} on {spec.scenario.main}, seed {spec.seed}" if title is None else f"{title} {spec.id}"
    with (
        watching(name) as watcher,
        tracked(out, spec, watcher) if track else contextlib.nullcontext(watcher) as all_,
    ):
        yield all_


def tracked(out: Path, spec: "RunSpec", beside: "Watcher | None" = None) -> Any:
    """A module's function: Ray sends it to its workers by name."""
    from osscl.runs.track import tracking

    return tracking(out / spec.id / "tensorboard", beside)
