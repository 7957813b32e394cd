"""Imports point down; functions and files stay small enough to see."""

import ast
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "osscl"
FILES = sorted(SRC.rglob("*.py"))
ORDER = (
    ("errors", "text", "config", "places", "storage", "device", "seeding"),
    ("losses", "metrics", "vision"),
    ("data",),
    ("stream",),
    ("learn",),
    ("methods",),
    ("runs",),
    ("tools",),
    ("paper",),
    ("agent",),
    ("report",),
    ("serve",),
    ("cli",),
    ("__main__",),
)
LEVELS = {name: level for level, names in enumerate(ORDER) for name in names}
LONGEST_FUNCTION, LONGEST_FILE = 60, 600


def name_of(file):
    return str(file.relative_to(SRC))


def tree_of(file):
    return ast.parse(file.read_text())


def modules_imported(tree, package):
    """Every module that a file imports, anywhere in it, by its full name; `package` resolves relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports(file):
    return set(modules_imported(tree_of(file), ["osscl", *file.relative_to(SRC).parts[:-1]]))


def rooms_used(file):
    """The first-level modules and packages of osscl that a file imports."""
    names = (module.split(".") for module in imports(file))
    return {parts[1] for parts in names if parts[0] == "osscl" and len(parts) > 1} & set(LEVELS)


def test_every_room_has_a_level():
    rooms = {file.relative_to(SRC).parts[0].removesuffix(".py") for file in FILES} - {"__init__"}
    assert rooms <= set(LEVELS)


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_imports_point_down(file):
    if file == SRC / "__init__.py":
        return  # the public names come from everywhere, each when it is first asked for
    level = LEVELS[file.relative_to(SRC).parts[0].removesuffix(".py")]
    for used in rooms_used(file):
        assert LEVELS[used] <= level, f"{name_of(file)} reaches up to osscl.{used}"


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_torchvision_is_imported_only_in_one_guarded_place(file):
    if name_of(file) == "tools/bench.py":
        return  # it is what we measure against, where it can be imported
    assert not {module for module in imports(file) if module.split(".")[0] == "torchvision"}


def test_the_import_finder_finds_them_all():
    code = "import a.b\nfrom c import d\ndef f():\n    from . import e\n    from ..g import h"
    found = set(modules_imported(ast.parse(code), ["osscl", "room"]))
    assert found == {"a.b", "c", "c.d", "osscl.room", "osscl.room.e", "osscl.g", "osscl.g.h"}


@pytest.mark.parametrize("file", FILES, ids=name_of)
def test_functions_and_files_are_small_enough_to_see(file):
    assert len(file.read_text().splitlines()) <= LONGEST_FILE
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = node.end_lineno - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{node.name} in {name_of(file)} has {length} lines"


def test_each_public_name_has_one_meaning():
    """No function or class name is defined in two modules; only a command may be named like what it runs."""
    where = {}
    for file in FILES:
        for node in tree_of(file).body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                where.setdefault(node.name, []).append(name_of(file))
    shared = {name: files for name, files in where.items() if len(files) > 1}
    for name, files in shared.items():
        assert sorted(file.startswith("cli/") for file in files) == [False, True], f"{name} is defined in {files}"
