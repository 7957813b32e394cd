"""A contact sheet: pictures that were sorted into folders, on one page among those folders."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import PurePosixPath
from urllib.parse import quote

MOST = 60  # pictures of a folder on the page; all are in the folder
STYLE = """
:root { color-scheme: light dark; --line: #8884; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; border-bottom: 1px solid var(--line); }
h2 small { font-weight: normal; opacity: .7; }
ul { display: flex; flex-wrap: wrap; gap: .5rem; list-style: none; padding: 0; margin: 0; }
li { width: 6rem; font-size: .7rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
img { width: 6rem; height: 6rem; object-fit: cover; border: 1px solid var(--line); border-radius: 4px; display: block; }
"""


@dataclass(frozen=True)
class Picture:
    """A picture on a contact sheet."""

    path: PurePosixPath  # from the page
    words: str  # under it
    more: str  # told where one points at it


def contact_sheet(title: str, notes: Sequence[str], folders: Mapping[str, Sequence[Picture]]) -> str:
    """A page that lies beside the folders: a part for each, with its pictures."""
    told = "".join(f"<p>{escape(note)}</p>" for note in notes)
    parts = "".join(_part(folder, pictures) for folder, pictures in folders.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{told}{parts}</body></html>\n"
    )


def _part(folder: str, pictures: Sequence[Picture]) -> str:
    n = len(pictures)
    count = f"{n} picture{'s' * (n != 1)}" + (f", {MOST} of them here" if n > MOST else "")
    cells = "".join(map(_cell, pictures[:MOST]))
    return f"<section><h2>{escape(folder)} <small>{count}</small></h2><ul>{cells}</ul></section>"


def _cell(picture: Picture) -> str:
    address, name = quote(os.fsencode(str(picture.path))), escape(picture.path.name)
    image = f'<img src="{address}" alt="{name}" title="{escape(picture.more)}" loading="lazy">'
    return f'<li><a href="{address}">{image}</a>{escape(picture.words)}</li>'
