"""The lock file of CI pins every package with a hash, and agrees with the constraints and the dependencies."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCKS = sorted((ROOT / "locks").glob("*.txt"))
ELSEWHERE = {"torch"}  # its builds differ by machine, and so do their hashes: see docs/security.md


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def locked(file):
    """Versions by package, from lines such as `numpy==2.4.6 --hash=sha256:...`."""
    text = re.sub(r"\\\n\s*", "", file.read_text())
    found = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in text.splitlines())):
        match = re.fullmatch(r"([\w.-]+)==([\w.+!]+)((?: --hash=sha256:[0-9a-f]{64})+)", line)
        assert match, line
        assert canonical(match[1]) not in found, line
        found[canonical(match[1])] = match[2]
    return found


def constraints():
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    return {canonical(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def test_there_is_a_lock_file():
    assert LOCKS


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.stem)
def test_the_locked_versions_are_those_of_the_constraints(file):
    pinned = constraints()
    found = locked(file)
    assert {name: found.get(name) for name in pinned if name not in ELSEWHERE} == {
        name: version for name, version in pinned.items() if name not in ELSEWHERE
    }
    assert not ELSEWHERE & found.keys()


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.stem)
def test_every_dependency_is_locked(file):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {canonical(re.match(r"[\w.-]+", one)[0]) for one in wanted}
    assert names - ELSEWHERE <= locked(file).keys()


@pytest.mark.parametrize("file", LOCKS, ids=lambda file: file.stem)
def test_a_lock_file_names_no_machine(file):
    assert not re.search(r"://|(^|\s)/|@|--(index|find|trusted)", file.read_text())
