"""Getting the official archive of a data set and laying its folder where the readers look for it."""

import hashlib
import logging
import secrets
import shutil
import tarfile
import zipfile
from pathlib import Path
from types import TracebackType

from osscl.data.benchmarks import Archive, dataset
from osscl.errors import DataError, UserError


def fetch(name: str, data_dir: Path) -> str:
    """Download, check and extract a data set unless it is there; returns what was done, in one sentence."""
    spec = dataset(name)
    if spec.layout is None or spec.archive is None:
        return f"{name} is embedded: nothing to fetch"
    folder = data_dir / spec.layout
    if folder.is_dir():
        return f"{name} is already there: {folder}"
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{data_dir} cannot be made ({error.strerror}): name another folder with --data") from None
    _extract(_archive(spec.archive, data_dir), spec.layout, data_dir)
    return f"{name} is now there: {folder}"


def _archive(archive: Archive, data_dir: Path) -> Path:
    """The archive in the data folder: the one that lies there, if it is the official one, else downloaded."""
    path = data_dir / archive.file
    if not path.exists():
        _download(archive, data_dir)
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): expected the official archive") from None
    if found != archive.md5:
        raise DataError(
            f"{path} is not the official archive (md5 {found}, expected {archive.md5}): delete it and retry"
        )
    return path


def _download(archive: Archive, data_dir: Path) -> None:
    """Fetch the archive into the data folder; it appears there only when whole and right."""
    try:
        import pooch
    except ImportError:
        raise UserError('downloading needs pooch: pip install "osscl[fetch]"') from None

    pooch.get_logger().setLevel(logging.WARNING)  # the bar says it
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
        raise DataError(f"what {archive.url} sent is not the official archive (md5 {archive.md5} expected)") from None
    except OSError as error:  # all errors of requests are
        raise DataError(
            f"cannot download {archive.url} ({type(error).__name__}): get {archive.file} from there by other means, "
            f"put it in {data_dir}, and run the same command again to extract it"
        ) from error


class _Bar:
    """A progress bar on stderr, with the four names that pooch asks of one (those of tqdm)."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        self._progress = Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task(title, total=None)
        self.total = 0

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.stop()

    def update(self, size: int) -> None:
        """So many bytes more have come."""
        self._progress.update(self._task, advance=size, total=self.total or None)

    def reset(self) -> None:
        """Back to none: pooch does so at the end, to count all bytes at once."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """All bytes have come."""


def _extract(path: Path, layout: str, data_dir: Path) -> None:
    """Unpack aside, then rename: a folder under its official name is always whole."""
    aside = data_dir / f".{layout}-{secrets.token_hex(4)}"
    try:
        if zipfile.is_zipfile(path):
            _unzip(path, aside)
        else:
            with tarfile.open(path) as tar:
                tar.extractall(aside, filter="data")
        if not (aside / layout).is_dir():
            raise DataError(f"{path} holds no folder {layout}")
        (aside / layout).rename(data_dir / layout)
    except (OSError, tarfile.TarError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be extracted into {data_dir} ({error})") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _unzip(path: Path, target: Path) -> None:
    """Extract a zip, unless a member would land outside of the target."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            if not (target / member).resolve().is_relative_to(target.resolve()):
                raise DataError(f"{path} holds {member!r}, which would land outside of the data folder: refused")
        archive.extractall(target)
