"""Download the official archive of a data set and extract it to the folder that the readers expect."""

import hashlib
import logging
import sys
import tarfile
import zipfile
from pathlib import Path
from types import TracebackType

from osscl.data.benchmarks import Archive, dataset
from osscl.errors import DataError, UserError
from osscl.storage import draft_folder
from osscl.text import unguarded


def fetch(name: str, data_dir: Path) -> str:
    """Download, verify and extract a data set unless it is present; return a one-line summary."""
    spec = dataset(name)
    if spec.layout is None or spec.archive is None:
        return f"{name} is built in: nothing to fetch"
    folder = data_dir / spec.layout
    if folder.is_dir():
        return f"{name} is already in {folder}"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot create {data_dir} ({error.strerror}): choose another folder with --data") from None
    _extract(_archive(spec.archive, data_dir), spec.layout, data_dir)
    return f"{name} is now in {folder}"


def _archive(archive: Archive, data_dir: Path) -> Path:
    """The verified archive in the data folder, downloaded if it is missing."""
    path = data_dir / archive.file
    if not path.exists():
        _download(archive, data_dir)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}): expected the official archive") from None
    if found != archive.md5:
        raise DataError(
            f"{path} is not the official archive (md5 {found}, expected {archive.md5}): delete it and try again"
        )
    return path


def _download(archive: Archive, data_dir: Path) -> None:
    """Download the archive to the data folder; it appears there only once complete and verified."""
    try:
        import pooch
    except ImportError:
        raise UserError('downloading needs pooch: pip install "osscl[fetch]"') from None

    pooch.get_logger().setLevel(logging.WARNING)  # the bar is enough
    try:
        with _Bar(archive.file) as bar:
            pooch.retrieve(
                url=archive.url,
                known_hash=f"md5:{archive.md5}",
                fname=archive.file,
                path=data_dir,
                downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
            )
    except ValueError:
        raise DataError(
            f"the file from {archive.url} is not the official archive (expected md5 {archive.md5})"
        ) from None
    except OSError as error:  # the base class of all errors of requests
        raise DataError(
            f"cannot download {archive.url} ({type(error).__name__}): download {archive.file} another way, "
            f"put it in {data_dir} and run the same command again"
        ) from error


class _Bar:
    """A progress bar on stderr with the part of tqdm's interface that pooch uses."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(file=unguarded(sys.stderr)))
        self._task = self._progress.add_task(title, total=None)
        self.total = 0

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, size: int) -> None:
        """Add received bytes."""
        self._progress.update(self._task, advance=size, total=self.total or None)

    def reset(self) -> None:
        """Reset the bar; pooch calls it at the end and then adds all bytes at once."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """Do nothing: the bar ends with its context."""


def _extract(path: Path, layout: str, data_dir: Path) -> None:
    """Extract to a temporary folder, then rename it: a folder under its official name is always complete."""
    try:
        with draft_folder(data_dir / layout) as aside:
            if zipfile.is_zipfile(path):
                _unzip(path, aside)
            else:
                with tarfile.open(path) as tar:
                    tar.extractall(aside, filter="data")
            if not (aside / layout).is_dir():
                raise DataError(f"{path} contains no folder {layout}")
            (aside / layout).rename(data_dir / layout)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"cannot extract {path} to {data_dir} ({error})") from error


def _unzip(path: Path, target: Path) -> None:
    """Extract a zip; refuse members that would be extracted outside the target."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if not (target / member).resolve().is_relative_to(target.resolve()):
                raise DataError(f"{path} contains {member!r}, which would be extracted outside the data folder")
        archive.extractall(target)
