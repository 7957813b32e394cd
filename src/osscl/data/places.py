"""Where data sets are looked for, and where what is made of them is kept."""

import os
import sys
from pathlib import Path

from osscl.errors import UserError


def data_dir(flag: Path | None) -> Path:
    """The folder that holds the extracted data sets: the flag, else $OSSCL_DATA, else a folder of the user's cache."""
    if flag is not None:
        return flag
    named = os.environ.get("OSSCL_DATA")
    return Path(named) if named else _user_cache() / "data"


def cache_dir() -> Path:
    """The folder for what can be made again: $OSSCL_CACHE, else the user's cache."""
    named = os.environ.get("OSSCL_CACHE")
    return Path(named) if named else _user_cache()


def _user_cache() -> Path:
    """This package's folder where the platform keeps caches; XDG_CACHE_HOME wins everywhere."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg) / "osscl"
    try:
        home = Path.home()
    except RuntimeError:  # a user without one, as in some containers
        raise UserError("there is no home folder to keep a cache in: set XDG_CACHE_HOME to a folder") from None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "osscl"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "osscl"
    return home / ".cache" / "osscl"
