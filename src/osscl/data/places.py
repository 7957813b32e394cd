"""Where data sets are looked for, and where what is made of them is kept."""

import os
import sys
from pathlib import Path


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
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "osscl"
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "osscl"
    return Path.home() / ".cache" / "osscl"
