"""How a run stands: the line a minute in a log, and the file that `icrbench status` reads."""

import os
import platform
from pathlib import Path

import pytest

from icrbench.runner import standing
from icrbench.runner.standing import Progress, Reporter, line, standings
from icrbench.util.progress import bar, current

PROGRESS: Progress = {
    "cells": 144,
    "done": 30,
    "kept": 4,
    "failed": 2,
    "share": 0.25,
    "running": [{"what": "icr sst2 seed 0", "where": "trunk states 40/160", "seconds": 180.0}],
    "lost": [],
}


def test_a_line_says_what_is_done_what_runs_and_how_long_it_takes() -> None:
    said = line(PROGRESS, 1200.0)
    assert said[5:] == " 36 of 144 cells (2 failed); icr sst2 seed 0 (trunk states 40/160, 3 min); about 60 min left"
    assert "time left not known yet" in line({**PROGRESS, "share": 0.0}, 1200.0)


def test_a_line_is_said_once_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 1000.0
    monkeypatch.setattr(standing.time, "time", lambda: now)
    reporter = Reporter(tmp_path, "icrbench run", lambda: PROGRESS, lines=True)
    for _ in range(130):
        now += 1
        reporter.update()
    assert capsys.readouterr().err.count("36 of 144 cells") == 2
    assert [own["over"] for own in standings(tmp_path)] == [False]
    reporter.update(over=True)
    assert [own["over"] for own in standings(tmp_path)] == [True]
    Reporter(tmp_path, "icrbench run", lambda: PROGRESS, lines=False)
    assert standings(tmp_path) == []  # the next run forgets what is over


def test_a_share_forgets_what_itself_has_left_and_nothing_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for process, share in enumerate(("1/2", "2/2", "2/2")):  # the second is started again
        monkeypatch.setattr(standing.os, "getpid", lambda number=process: number)
        reporter = Reporter(tmp_path, f"icrbench run --share {share}", lambda: PROGRESS, lines=False, share=True)
        reporter.update(over=True)
    assert [(own["command"], own["process"]) for own in standings(tmp_path)] == [
        ("icrbench run --share 1/2", 0),
        ("icrbench run --share 2/2", 2),
    ]
    Reporter(tmp_path, "icrbench run", lambda: PROGRESS, lines=False)
    assert standings(tmp_path) == []


def test_what_a_killed_run_has_half_written_is_removed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    logs.mkdir()
    dead, alive = (logs / f".h-1.json~{platform.node()}~{pid}~ab.partial" for pid in (999999999, os.getpid()))
    for file in (dead, alive):
        file.write_text("{")
    Reporter(tmp_path, "icrbench run", lambda: PROGRESS, lines=False)
    assert not dead.exists()
    assert alive.exists()


def test_a_bar_counts_where_it_is_not_shown() -> None:
    assert current() is None
    with bar("rows", 5) as outer:
        outer.update(2)
        with bar("steps", 3):
            assert current() == "steps 0/3"
        assert current() == "rows 2/5"
