"""What is told of work that goes on, where no bars are drawn."""

import time

import pytest

from icrbench.util import progress
from icrbench.util.progress import bar, doing, duration, plain_lines, set_quiet, subject


def test_what_is_at_work_is_the_subject_and_the_innermost_bar() -> None:
    assert doing() == ""
    with subject("icr sst2"):
        assert doing() == "icr sst2"
        with bar("trunk states", 4), bar("icr training", 8) as inner:
            assert doing() == "icr sst2: icr training 0/8"
            inner.update(2)
            time.sleep(0.01)
            assert doing().startswith("icr sst2: icr training 2/8, about ")
        with bar("icr sst2", 5):  # scoring has the cell's own name
            assert doing() == "icr sst2 0/5"
    assert doing() == ""


def test_plain_lines_go_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.01)
    with plain_lines(lambda: "3 of 8 cells"):
        time.sleep(0.1)
    assert capsys.readouterr().out.splitlines()[:2] == ["3 of 8 cells"] * 2
    set_quiet(True)
    with plain_lines(lambda: "3 of 8 cells"):
        time.sleep(0.05)
    set_quiet(False)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("seconds", "words"), [(3.2, "3 s"), (600, "10 min"), (9000, "2.5 h")])
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words
