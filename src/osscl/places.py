"""The folders of data sets and caches."""

import os
import sys
from pathlib import Path

from osscl.errors import UserError


def data_dir(flag: Path | None) -> Path:
    """The folder of the extracted data sets: the flag, else $OSSCL_DATA, else a folder in the user's cache."""
    if flag is not None:
        return flag
    named = os.environ.get("OSSCL_DATA")
    return Path(named) if named else _user_cache() / "data"


def cache_dir() -> Path:
    """The folder for files that can be recomputed: $OSSCL_CACHE, else the user's cache."""
    named = os.environ.get("OSSCL_CACHE")
    return Path(named) if named else _user_cache()


def _user_cache() -> Path:
    """This package's folder in the cache folder of the platform; XDG_CACHE_HOME takes precedence on all of them."""
    xdg = os.environ.get("XDG_CACHE_HOME")
    if xdg:
        return Path(xdg) / "osscl"
    try:
        home = Path.home()
    except RuntimeError:  # a user without a home, as in some containers
        raise UserError("there is no home folder for a cache: set XDG_CACHE_HOME to a folder") from None
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "osscl"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else home / "AppData" / "Local") / "osscl"
    return home / ".cache" / "osscl"
