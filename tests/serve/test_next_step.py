"""Labels of the next step survive changes by several threads and processes at the same time."""

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from osscl.serve.answers import NextLabel
from osscl.serve.next_step import LabelBook
from serve.conftest import PATIENCE

FORGETS = """
import sys
from pathlib import Path
from osscl.serve.next_step import LabelBook

class SlowBook(LabelBook):
    def read(self):
        found = super().read()
        print("read", flush=True)
        sys.stdin.readline()
        return found

SlowBook(Path(sys.argv[1])).forget([])
"""


def uploaded(number):
    return NextLabel(f"{number:032x}", "fish", "fish.jpg", "upload")


def test_an_upload_is_kept_while_another_process_forgets_taught_labels(tmp_path):
    labels, label = LabelBook(tmp_path), uploaded(1)
    program = [sys.executable, "-c", FORGETS, str(tmp_path)]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "read\n"
        adding = threading.Thread(target=labels.add, args=([label], {label.id: b"picture"}))
        adding.start()
        adding.join(0.5)  # enough to write between the other's read and write, if nothing prevents it
        other.communicate("\n", timeout=PATIENCE)
    adding.join(PATIENCE)
    assert other.returncode == 0 and not adding.is_alive()
    assert [*labels.read().values()] == [label] and labels.upload(label.id).read_bytes() == b"picture"


def test_labels_that_threads_add_at_the_same_time_are_all_kept(tmp_path):
    labels, given = LabelBook(tmp_path), [uploaded(number) for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert [*threads.map(lambda one: labels.add([one], {one.id: b"picture"}), given)] == [None] * 40
    assert {*labels.read().values()} == {*given} and len([*(tmp_path / "uploads").iterdir()]) == 40
