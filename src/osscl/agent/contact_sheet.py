"""A contact sheet: an HTML page that shows sorted pictures, folder by folder."""

import os
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path, PurePosixPath
from urllib.parse import quote

from jinja2 import Environment
from PIL import ImageOps

from osscl.agent.sorting import SortedPicture
from osscl.data.pictures import read_photo
from osscl.errors import DataError

MOST_SHOWN = 60  # pictures of a folder on the page
THUMBNAIL = 128  # pixels per side
PAGE = """\
<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
h2 small { font-weight: normal; opacity: .7; }
ul { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; padding: 0; margin: 0; }
li { width: 6rem; font-size: .7rem; overflow-wrap: anywhere; }
img { width: 6rem; height: 6rem; object-fit: cover; border: 1px solid var(--line); border-radius: 4px; display: block; }
</style></head><body><h1>{{ title }}</h1>
{% for note in notes %}<p>{{ note }}</p>{% endfor %}
{% for folder, count, pictures in folders %}<section><h2>{{ folder }} <small>{{ count }}</small></h2><ul>
{% for picture in pictures %}<li><a href="{{ picture.address }}"><img src="{{ picture.thumbnail }}" \
alt="{{ picture.path.name }}" title="{{ picture.details }}" loading="lazy"></a>{{ picture.caption }}</li>
{% endfor %}</ul></section>{% endfor %}</body></html>
"""


@dataclass(frozen=True)
class ShownPicture:
    """A picture on a contact sheet."""

    path: PurePosixPath  # relative to the page
    caption: str
    details: str  # shown as a tooltip
    file: Path  # that the thumbnail is made from

    @property
    def address(self) -> str:
        return quote(os.fsencode(str(self.path)))

    @property
    def thumbnail(self) -> str:
        """A small JPEG inside the page: browsers cannot show every format that Pillow reads."""
        try:
            picture = read_photo(self.file, THUMBNAIL).image
        except DataError:
            return self.address
        picture = ImageOps.fit(picture, (THUMBNAIL, THUMBNAIL))
        made = BytesIO()
        picture.save(made, "JPEG", quality=80)
        return "data:image/jpeg;base64," + b64encode(made.getvalue()).decode()


def contact_sheet(
    title: str, notes: Sequence[str], folders: Mapping[str, Sequence[ShownPicture]], counts: Mapping[str, int]
) -> str:
    """Render the page, which is stored beside the folders it shows; `counts` are the pictures in each folder."""
    parts = [(folder, _count(counts[folder]), pictures[:MOST_SHOWN]) for folder, pictures in folders.items()]
    page = Environment(autoescape=True).from_string(PAGE).render(title=title, notes=notes, folders=parts)
    return page.encode("utf-8", "replace").decode()  # file names need not be valid text


def _count(n: int) -> str:
    return f"{n} picture{'s' * (n != 1)}" + (f", the first {MOST_SHOWN} shown" if n > MOST_SHOWN else "")


def sheet_of(pictures: Sequence[SortedPicture]) -> str:
    """The contact sheet of sorted pictures, unknown ones first."""
    folders: dict[str, list[ShownPicture]] = {}
    counts = Counter(str(picture.target.parent) for picture in pictures)
    for picture in sorted(pictures, key=lambda picture: (picture.known is not False, *rank(picture))):
        shown = folders.setdefault(str(picture.target.parent), [])
        if len(shown) == MOST_SHOWN:
            continue
        caption = f"nearest: {picture.name}" if picture.known is False else f"{picture.probability:.2f}"
        score = "" if picture.score is None else f", score {picture.score:.3f}"
        details = f"{picture.file}: {picture.name} {picture.probability:.2f}{score}"
        shown.append(ShownPicture(picture.target, caption, details, picture.file))
    notes = ["Captions: the probability of the class, or the nearest class of an unknown picture."]
    if any(picture.known is None for picture in pictures):
        notes.append("This method does not detect unknown pictures: each went to its most likely class.")
    return contact_sheet(f"{len(pictures)} sorted pictures", notes, folders, counts)


def rank(picture: SortedPicture) -> tuple[bool, str, int, float]:
    """Classes by name, then groups by number; the most certain picture of a folder first."""
    certainty = picture.score if picture.score is not None else picture.probability
    is_unknown = picture.known is False
    number = int(picture.target.parent.name.removeprefix("group-")) if is_unknown else 0
    return is_unknown, "" if is_unknown else str(picture.target.parent), number, -certainty
