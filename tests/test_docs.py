"""The pages under docs/ say what is true: their code runs."""

import re
from pathlib import Path

import pytest

import osscl

PAGE = Path(__file__).parents[1] / "docs" / "add-your-method.md"


@pytest.fixture
def blocks():
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def test_the_method_on_the_page_is_whole_and_short(blocks):
    assert len(blocks) == 2
    assert len(blocks[0].splitlines()) <= 60
    assert all(len(line) <= 120 for line in blocks[0].splitlines())


def test_the_page_runs_as_it_stands(blocks, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSSCL_CACHE", str(tmp_path / "cache"))
    page = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), page)
    record, spec = page["record"], page["spec"]
    assert record.id.startswith("replay-digits-smoke-s0-")
    assert (tmp_path / "runs" / record.id / f"{record.id}.json").exists()
    assert capsys.readouterr().out == f"{record.final} {record.forgetting}\n"
    assert osscl.run(spec, method=page["Replay"]) == record  # finished: read, not run again


def test_the_method_on_the_page_learns(blocks):
    page = {"__name__": "page"}
    exec(compile(blocks[0], PAGE.name, "exec"), page)
    from osscl.tools.battery import ENOUGH, accuracy, maker, toy_stream

    stream = toy_stream()
    agent = maker(page["Replay"], page["Replay"].Config(), stream)(updates=ENOUGH)
    for t in range(len(stream)):
        agent.learn(stream.step(t))
    assert accuracy(agent, stream) > 0.8
