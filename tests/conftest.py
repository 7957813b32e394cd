import os
import sys

import pytest
import torch

from browser import FLAGS, PROGRAM, Window
from refusals import refusal_of

ALL = os.environ.get("OSSCL_ALL_TESTS") == "1"  # CI: a test that is skipped has failed, unless it needs a GPU


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Tiny tensors: more threads cost more than they bring, ten times over on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture
def type_command(monkeypatch, capsys):
    """Type an osscl command where we are: exit code, stdout, stderr; `raised` is the exception it ended with."""
    from osscl.cli import main

    def call(*args):
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["osscl", *map(str, args)])
        with pytest.raises(SystemExit) as ended:
            main()
        call.raised = ended.value.__context__  # the exception that `main` turned into a line
        return ended.value.code, *capsys.readouterr()

    return call


@pytest.fixture
def typed(monkeypatch, type_command, tmp_path):
    """Type a command in a folder of its own, with a cache of its own and without data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OSSCL_DATA", raising=False)
    for name, value in {"OSSCL_CACHE": str(tmp_path / "cache"), "OSSCL_COMMIT": "here", "COLUMNS": "200"}.items():
        monkeypatch.setenv(name, value)
    return type_command


@pytest.fixture
def refuses(typed):
    return refusal_of(typed)


@pytest.fixture(scope="module")
def browser():
    """A window of Chromium; for one module, because other modules may run an event loop of their own."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs Playwright")
    if PROGRAM is None:
        pytest.skip("needs Chromium")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=PROGRAM, args=FLAGS)
        yield Window(launched)
        launched.close()


def _unless_it_needs_a_gpu(report, keywords):
    if ALL and report.outcome == "skipped" and "gpu" not in keywords:
        report.outcome, report.longrepr = "failed", f"skipped where no test may be: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return _unless_it_needs_a_gpu((yield), item.keywords)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return _unless_it_needs_a_gpu((yield), collector.keywords)
