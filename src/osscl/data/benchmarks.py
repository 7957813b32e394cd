"""The data sets known by name, and loading them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from osscl import places
from osscl.data import cache, demo, readers
from osscl.data.images import Decoded, ImageBank, as_bank, content_hash, in_canonical_order
from osscl.errors import DataError, require_known
from osscl.vision.augment import Augmentation


@dataclass(frozen=True)
class Archive:
    """The official download of a data set."""

    file: str
    url: str
    md5: str


@dataclass(frozen=True)
class DatasetSpec:
    """The description of a data set, known before it is read."""

    name: str
    title: str
    licence: str
    channels: int
    size: int
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    classes: int
    classes_per_step: int
    draws_per_step: int  # unlabelled images per step, unless the scenario sets another number
    augmentation: Augmentation
    layout: str | None  # its folder in the data folder; None for an embedded set
    archive: Archive | None
    content: str | None = None  # content hash of the official data, as in the records of this repository


# Mirrored or recoloured glyphs would be other glyphs or none.
GLYPHS = Augmentation(scale=(0.7, 1.0), flip=0.0, jitter=0.0, grey=0.0)

LETTERS = DatasetSpec(
    name="letters",
    title="Letters unlike any digit, 8 x 8, drawn by this package",
    licence="drawn here; the font is Aileron (CC0), as shipped with Pillow",
    channels=1,
    size=8,
    mean=(0.309,),
    std=(0.371,),
    classes=22,
    classes_per_step=2,
    draws_per_step=400,
    augmentation=GLYPHS,
    layout=None,
    archive=None,
)

DATASETS: dict[str, DatasetSpec] = {
    "digits": DatasetSpec(
        name="digits",
        title="Handwritten digits, 8 x 8, as shipped with scikit-learn",
        licence="CC BY 4.0 (UCI repository: Optical Recognition of Handwritten Digits)",
        channels=1,
        size=8,
        mean=(0.305,),
        std=(0.376,),
        classes=10,
        classes_per_step=2,
        draws_per_step=400,
        augmentation=GLYPHS,
        layout=None,
        archive=None,
    ),
    "letters": LETTERS,
    "letters-turned": replace(LETTERS, name="letters-turned", title="The letters, rotated by 90 degrees"),
    "letters-faint": replace(
        LETTERS, name="letters-faint", title="The letters, grey on a tinted background", mean=(0.405,), std=(0.185,)
    ),
    "cifar10": DatasetSpec(
        name="cifar10",
        title="CIFAR-10",
        licence="none stated by the authors, who ask to be cited",
        channels=3,
        size=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        classes=10,
        classes_per_step=2,
        draws_per_step=9000,
        augmentation=Augmentation(),
        layout="cifar-10-batches-py",
        archive=Archive(
            file="cifar-10-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            md5="c58f30108f718f92721af3b95e74349a",
        ),
        content="fe7006d9adc868760b12d48211a4cf77",
    ),
    "cifar100": DatasetSpec(
        name="cifar100",
        title="CIFAR-100, fine labels",
        licence="none stated by the authors, who ask to be cited",
        channels=3,
        size=32,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2023, 0.1994, 0.2010),
        classes=100,
        classes_per_step=10,
        draws_per_step=9000,
        augmentation=Augmentation(),
        layout="cifar-100-python",
        archive=Archive(
            file="cifar-100-python.tar.gz",
            url="https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            md5="eb9058c3a382ffc7106e4002c42a8d85",
        ),
        content="d5b873cfb0e39219d764905c158950ab",
    ),
    "tinyimagenet": DatasetSpec(
        name="tinyimagenet",
        title="Tiny-ImageNet-200, at 32 x 32",
        licence="none stated; a part of ImageNet, whose terms allow non-commercial research",
        channels=3,
        size=32,
        mean=(0.4802, 0.4480, 0.3975),
        std=(0.2770, 0.2691, 0.2821),
        classes=200,
        classes_per_step=20,
        draws_per_step=9000,
        augmentation=Augmentation(),
        layout="tiny-imagenet-200",
        archive=Archive(
            file="tiny-imagenet-200.zip",
            url="http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            md5="90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
    "caltech256": DatasetSpec(
        name="caltech256",
        title="Caltech-256, at 32 x 32",
        licence="see data.caltech.edu/records/nyy15-4j048; pictures gathered from the web",
        channels=3,
        size=32,
        mean=(0.485, 0.456, 0.406),  # ImageNet's
        std=(0.229, 0.224, 0.225),
        classes=257,
        classes_per_step=16,
        draws_per_step=9000,
        augmentation=Augmentation(),
        layout="256_ObjectCategories",
        archive=Archive(
            file="256_ObjectCategories.tar",
            url="https://data.caltech.edu/records/nyy15-4j048/files/256_ObjectCategories.tar",
            md5="67b4f42ca05d46448c6bb8ecd2220f6d",
        ),
    ),
}

EMBEDDED: dict[str, Callable[[], Decoded]] = {
    "digits": demo.digits,
    "letters": demo.letters,
    "letters-turned": demo.letters_turned,
    "letters-faint": demo.letters_faint,
}
READERS: dict[str, Callable[[Path], Decoded]] = {
    "cifar10": readers.read_cifar10,
    "cifar100": readers.read_cifar100,
    "tinyimagenet": readers.read_tinyimagenet,
    "caltech256": readers.read_caltech256,
}


def dataset(name: str) -> DatasetSpec:
    """The spec of a data set, by name."""
    require_known("data set", name, DATASETS)
    return DATASETS[name]


def folder_of(name: str, data_dir: Path | str) -> Path | None:
    """The folder of a data set; None for an embedded one. Raises a DataError if it does not exist."""
    layout = dataset(name).layout
    if layout is None:
        return None
    folder = Path(data_dir) / layout
    if not folder.is_dir():
        raise DataError(
            f"{name} not found: there is no folder {layout} in {data_dir}; "
            f"get it with: osscl data fetch {name} --data {data_dir}"
        )
    return folder


def load_bank(name: str, data_dir: Path | str | None = None, cache_dir: Path | None = None) -> ImageBank:
    """A data set as tensors on the CPU. `data_dir` defaults to the folder that runs use; with `cache_dir`, files are
    decoded, and embedded sets made, only once."""
    folder = folder_of(name, places.data_dir(None) if data_dir is None else data_dir)
    if cache_dir is None:
        return as_bank(name, *_read(dataset(name), folder))
    place = decoded_place(name, folder, cache_dir)
    found = cache.load_decoded(place)
    if found is None:
        found = _read(dataset(name), folder)
        cache.store_decoded(place, *found)
    return as_bank(name, *found)


def decoded_place(name: str, folder: Path | None, cache_dir: Path) -> Path:
    """Where the decoded copy of a data set is kept."""
    source = cache.versions() if folder is None else cache.fingerprint(folder)
    return cache_dir / "decoded" / f"{name}-{source}"


def _read(spec: DatasetSpec, folder: Path | None) -> tuple[Decoded, str]:
    """The images of a data set in canonical order, and their content hash."""
    read = in_canonical_order(EMBEDDED[spec.name]() if folder is None else READERS[spec.name](folder))
    if len(read.class_names) != spec.classes:
        raise DataError(f"{folder} has {len(read.class_names)} classes: expected {spec.classes}; are files missing?")
    return read, content_hash(read)


@dataclass(frozen=True)
class Verified:
    """The content of a data set's files, read whole, and what it was compared with."""

    name: str
    content: str
    official: str | None  # content of the official files; None where it is not known
    cached: str | None  # content of the decoded copy that runs use; None where there is none

    @property
    def problem(self) -> str | None:
        """The problem, in one line; None if there is none."""
        if self.official not in (None, self.content):
            return f"{self.name} differs from the official data: content {self.content}, expected {self.official}"
        if self.cached not in (None, self.content):
            return f"{self.name} differs from its decoded copy, so one of its files has changed or is damaged"
        return None


def verify_dataset(name: str, data_dir: Path | str, cache_dir: Path) -> Verified:
    """Read all files of a data set, ignoring the cache, and compare their content with what is expected."""
    spec, folder = dataset(name), folder_of(name, data_dir)
    found = cache.load_decoded(decoded_place(name, folder, cache_dir))
    return Verified(name, _read(spec, folder)[1], spec.content, found and found[1])
