"""`osscl clean`: show and free the space used by caches, drafts, set-aside checkpoints and earlier agent models."""

import contextlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from osscl.text import counted

CACHES = {
    "decoded data": "decoded", "reference networks": "references", "embeddings": "embeddings",
    "thumbnails": "thumbnails", "index of records": "records.sqlite",
}  # fmt: skip
SET_ASIDE = re.compile(r"(checkpoint|model)\.(damaged|diverged|given-up)(-[0-9]+)?")
EARLIER_MODEL = re.compile(r"model-[0-9]+(-[0-9]+)?\.safetensors")


def clean(
    folders: Annotated[
        list[Path] | None, typer.Argument(metavar="DIR", help="Folders of runs or agents. Default: runs.")
    ] = None,
    models: Annotated[
        bool, typer.Option("--models", help="Also delete earlier models of agents, never the newest.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and exit.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking.")] = False,
) -> None:
    """Show the space used by caches and leftovers, and delete them if confirmed. Records, specs and models are kept."""
    from osscl.cli.show import console, new_table
    from osscl.errors import UserError
    from osscl.places import cache_dir

    for folder in folders or ():
        if not folder.is_dir():
            raise UserError(f"{folder} is not a folder: expected a folder of runs or agents")
    found: list[tuple[str, Path]] = [(kind, cache_dir() / name) for kind, name in CACHES.items()]
    found = [(kind, path) for kind, path in found if path.exists() and not path.is_symlink()]
    for folder in folders or [Path("runs")]:
        found += leftovers(folder, models)
    if not found:
        typer.echo("Nothing to delete.")
        return
    sizes = [size_of(path) for _, path in found]
    shown = new_table("what", "where", "MB")
    for (kind, path), size in zip(found, sizes, strict=True):
        shown.add_row(kind, str(path), f"{size / 1e6:.1f}")
    console().print(shown)
    total = f"{counted(len(found), 'entry', 'entries')}, {sum(sizes) / 1e6:.1f} MB"
    if dry_run:
        typer.echo(f"{total}; nothing was deleted.")
        return
    if not yes:
        typer.confirm(f"Delete {total}? Caches are rebuilt when needed", abort=True)
    for _, path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    typer.echo(f"Deleted {total}.")


def leftovers(folder: Path, models: bool) -> Iterator[tuple[str, Path]]:
    """Kind and path of everything that may be deleted in a folder of runs or agents; folders in use are skipped."""
    from osscl.storage import is_draft, is_locked

    for place in [folder, *(path for path in sorted(folder.glob("*")) if path.is_dir() and not path.is_symlink())]:
        if is_locked(place):
            continue
        for path in sorted(place.iterdir()) if place.is_dir() else ():
            with contextlib.suppress(OSError):
                if path.is_symlink():
                    continue
                if is_draft(path):
                    yield "draft", path
                elif path.is_file() and SET_ASIDE.fullmatch(path.name):
                    yield "set aside", path
                elif models and path.is_file() and EARLIER_MODEL.fullmatch(path.name) and _has_model(place):
                    yield "earlier model", path


def _has_model(folder: Path) -> bool:
    """Whether the newest model can be read: an earlier one may be needed to replace a damaged one."""
    from osscl.errors import DataError
    from osscl.storage import read_state

    try:
        return read_state(folder / "model") is not None
    except DataError:
        return False


def size_of(path: Path) -> int:
    """Bytes of a file or of all files below a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.lstat().st_size for file in files if file.is_symlink() or file.is_file())
