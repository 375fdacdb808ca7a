"""A result that a protocol does not change is one result: computed once, shown under each that it was asked for."""

import json

import pytest

from cli_setup import Commands, icrbench
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.store.store import Store

__all__ = ["icrbench"]  # a fixture

ASKED = {"methods": "zero_shot,few_shot", "tasks": "sst2,mr"}


def tables(icrbench: Commands) -> dict[str, Table]:
    return {table.group.protocol: table for table in leaderboards(Store(icrbench.folder / "out"))}


def shown(icrbench: Commands) -> dict[str, set[tuple[str, str, str]]]:
    return {
        protocol: {(label, record["cell"]["task"], record["key"]) for label, record in table.group.records}
        for protocol, table in tables(icrbench).items()
    }


def test_what_is_the_same_under_both_is_computed_once_and_shown_in_both(icrbench: Commands) -> None:
    assert icrbench.run(**ASKED).counts == (4, 0, 0)
    assert set(shown(icrbench)) == {"paper"}  # nobody has asked for the other
    assert icrbench.run(**ASKED, protocol="in_task").counts == (1, 3, 0)  # few-shot on mr sees rows of its own
    found = shown(icrbench)
    assert {protocol: len(cells) for protocol, cells in found.items()} == {"paper": 4, "in_task": 4}
    apart = found["paper"] ^ found["in_task"]
    assert {cell[:2] for cell in apart} == {("few_shot", "mr")}
    assert icrbench.run(**ASKED, protocol="in_task").counts == icrbench.run(**ASKED).counts == (0, 4, 0)
    frame = Store(icrbench.folder / "out").frame()
    assert sorted(frame["protocol"]) == ["in_task"] * 4 + ["paper"] * 4
    assert "protocols" not in frame


def test_a_prior_that_only_one_protocol_allows_is_shown_under_that_alone(icrbench: Commands) -> None:
    assert icrbench.run(tasks="mr", priors=True).code == 0
    assert icrbench.run(tasks="mr", priors=True, protocol="in_task").counts == (0, 1, 0)
    assert {protocol: set(table.calibrated) for protocol, table in tables(icrbench).items()} == {
        "paper": {"cc"},
        "in_task": {"cc", "dc", "bc"},
    }
    (path,) = (icrbench.folder / "out" / "priors").iterdir()
    before = path.read_bytes()
    assert icrbench.run(tasks="mr", priors=True).code == 0  # asked under paper again, the fuller prior stays
    assert path.read_bytes() == before


def test_a_cell_that_failed_under_one_protocol_stands_under_both_when_it_is_had(
    icrbench: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr("icrbench.runner.worker.Worker.fitted", lambda *_: 1 / 0)
        assert icrbench.run().counts == (0, 0, 1)
    assert icrbench.run(protocol="in_task").counts == (1, 0, 0)
    assert {protocol: len(cells) for protocol, cells in shown(icrbench).items()} == {"paper": 1, "in_task": 1}


def test_a_record_of_before_stands_under_its_one_protocol(icrbench: Commands) -> None:
    assert icrbench.run().code == 0
    (path,) = (icrbench.folder / "out" / "cells").glob("*.json")
    record = json.loads(path.read_text())
    del record["cell"]["protocols"], record["sha256"]
    path.write_text(json.dumps({**record, "schema": 1}))  # schema 1 has no hash of its own
    assert set(shown(icrbench)) == {"paper"}
    assert icrbench.run(protocol="in_task").counts == (0, 1, 0)
    assert set(shown(icrbench)) == {"paper", "in_task"}
