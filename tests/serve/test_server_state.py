"""Work in the background is repeated whenever that is asked for, also while it runs."""

import threading

from osscl.serve.server_state import BackgroundWork
from serve.conftest import PATIENCE, wait_for


def test_a_refresh_while_the_work_runs_is_done_after_it():
    begun, go_on, folder, runs = threading.Event(), threading.Event(), ["old"], []

    def read_folder(reports):
        found = [*folder]
        runs.append(found)
        begun.set()
        assert go_on.wait(PATIENCE)
        return found

    work = BackgroundWork(read_folder)
    work.state("version")
    assert begun.wait(PATIENCE)
    folder.append("new")
    work.again()
    go_on.set()
    assert wait_for(lambda: work.state("version").value) == ["old", "new"]
    work.wait(PATIENCE)
    assert work.state("version").value == work.last == ["old", "new"] and len(runs) == 2
