"""Claims: one owner at a time, whatever dies, hangs or comes back; and heartbeats, which tell work from waiting."""

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path

import pytest

from icrbench.store import claims
from icrbench.store.claims import OWNER, STALE_SECONDS, Claims
from icrbench.util.heartbeat import Heartbeat


def owned(folder: Path, key: str = "a", **changes: object) -> Path:
    """A claim of a process that is not there, or as ``changes`` say."""
    path = folder / key
    path.mkdir(parents=True)
    owner = {"machine": claims._machine(), "process": 2**22 + 1, "begun": 0.0, "claim": "theirs", **changes}
    (path / OWNER).write_text(json.dumps(owner))
    return path


def silent(path: Path, seconds: float) -> None:
    """Let the last heartbeat of a claim be so long ago."""
    then = time.time() - seconds
    os.utime(path / OWNER, (then, then))


def free(folder: Path, key: str = "a") -> bool:
    with Claims(folder).claim(key) as mine:
        return mine


def test_nothing_is_left_of_a_claim(tmp_path: Path) -> None:
    for _ in range(3):
        assert free(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_claim_of_a_process_that_is_gone_is_taken_over_at_once(tmp_path: Path) -> None:
    owned(tmp_path)
    assert free(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_number_that_another_process_has_got_since_is_not_the_owner(tmp_path: Path) -> None:
    owned(tmp_path, process=os.getpid(), begun=0.0)
    assert free(tmp_path)


@pytest.mark.parametrize("seconds", [0.0, STALE_SECONDS - 20, STALE_SECONDS + 20])
def test_of_another_machine_the_heartbeat_alone_is_known(tmp_path: Path, seconds: float) -> None:
    silent(owned(tmp_path, machine="elsewhere"), seconds)
    assert free(tmp_path) == (seconds > STALE_SECONDS)


def test_a_process_that_is_there_and_has_no_heartbeat_loses_its_claim_and_does_not_take_it_back(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with Claims(tmp_path).claim("a") as mine:
        assert mine
        silent(path, STALE_SECONDS + 20)
        with Claims(tmp_path).claim("a") as other:
            assert other
            theirs = (path / OWNER).read_text()
    with Claims(tmp_path).claim("b"):
        pass
    assert json.loads(theirs)["process"] == os.getpid()
    assert list(tmp_path.iterdir()) == []


def test_the_first_owner_leaves_alone_what_another_has_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "a"
    first, second = Claims(tmp_path).claim("a"), Claims(tmp_path).claim("a")
    assert first.__enter__()
    silent(path, STALE_SECONDS + 20)
    assert second.__enter__()
    first.__exit__(None, None, None)
    assert path.is_dir()
    assert not free(tmp_path)
    second.__exit__(None, None, None)
    assert free(tmp_path)


def test_a_claim_made_between_look_and_removal_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = owned(tmp_path)
    gone = Claims._gone

    def slow(self: Claims, path: Path, owner: dict[str, object] | None) -> bool:
        answer = gone(self, path, owner)
        (path / OWNER).write_text(json.dumps({**json.loads((path / OWNER).read_text()), "claim": "of a third"}))
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Claims, "_gone", slow)
        assert not free(tmp_path)
    assert json.loads((path / OWNER).read_text())["claim"] == "of a third"
    assert list(tmp_path.iterdir()) == [path]


def test_a_damaged_claim_is_nobodys_after_a_while(tmp_path: Path) -> None:
    path = owned(tmp_path)
    (path / OWNER).write_text("{")
    assert not free(tmp_path)
    then = time.time() - STALE_SECONDS - 20
    os.utime(path, (then, then))
    assert free(tmp_path)


def contend(folder: Path, rounds: int) -> None:
    """Claim again and again; whoever has the claim is alone in the room."""
    room = folder / "room"
    for _ in range(rounds):
        with Claims(folder / "claims").claim("a") as mine:
            if mine:
                room.mkdir()  # fails if there is another
                with (folder / "count").open("a") as file:
                    file.write("x")
                room.rmdir()


def test_many_processes_have_one_owner_at_a_time(tmp_path: Path) -> None:
    owned(tmp_path / "claims")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=contend, args=(tmp_path, 100)) for _ in range(4)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert len((tmp_path / "count").read_text()) >= 4
    assert not list((tmp_path / "claims").iterdir())


@pytest.mark.parametrize("waits", [False, True])
def test_a_thread_that_waits_for_ever_has_no_heartbeat(waits: bool) -> None:
    beats: list[float] = []
    ended = threading.Event()

    def work() -> None:
        heartbeat = Heartbeat(lambda: beats.append(time.monotonic()), 0.03)
        if waits:
            ended.wait()
        while not ended.wait(0.01):  # uses a little time each time
            pass
        heartbeat.stop()

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.4)
    ended.set()
    thread.join()
    assert len(beats) <= 1 if waits else len(beats) >= 3
