"""Experiments as data: every row is a method, equal rows are run once, and runs share what they can."""

from pathlib import Path

import pytest

from cli_setup import Commands, icrbench
from icrbench.data.find_tasks import get_tasks
from icrbench.experiments import Experiment, ExperimentRow, experiments, get_experiments, specs
from icrbench.registry import methods
from icrbench.report.published import find, published
from icrbench.runner.labels import experiment_methods, parse_methods
from icrbench.runner.presets import preset

__all__ = ["icrbench"]  # a fixture

TABLES = "main training-free pids components domains lora scale cost parameters sampling layers pooling encoder iclness"


def test_every_table_of_the_paper_has_its_experiment() -> None:
    assert set(TABLES.split()) <= set(experiments())
    mirrored = sorted(number for experiment in experiments().values() for number in experiment.published)
    assert mirrored == [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
    assert next(iter(experiments())) == "main"


@pytest.mark.parametrize("name", list(experiments()))
@pytest.mark.parametrize("sizes", ["paper", "cpu"])
def test_every_row_is_a_method_that_exists(name: str, sizes: str) -> None:
    experiment = experiments()[name]
    rows = [row for row in experiment.rows if row.method.split(":")[0] in methods()]
    made, labels = experiment_methods([row.method for row in rows], [], preset(sizes))
    assert set(labels.values()) == {item.label for item in made}
    assert get_tasks(experiment.tasks, None)
    assert len({row.name for row in experiment.rows}) == len(experiment.rows)
    for row in experiment.rows:
        assert row.method.split(":")[0] != "m2iv" or row.name == "M2IV-style"


def test_every_published_row_has_one_of_ours() -> None:
    for experiment in experiments().values():
        ours = {(row.method.split(":")[0], row.setting) for row in experiment.rows}
        if experiment.columns in ("cost", "parameters"):
            ours = {(method, row.setting) for method, _ in ours for row in published()}
        for row in published():
            if row.table in experiment.published:
                assert (row.method, row.setting) in ours, (experiment.name, row)
        settings = [row for row in experiment.rows if row.setting]
        for item in settings:
            assert find(experiment.published, "Llama2-7B", item.method.split(":")[0], item.setting)


def test_equal_rows_get_one_method_with_the_shortest_label() -> None:
    rows = specs(get_experiments("pids,domains,layers"))
    paper, paper_labels = experiment_methods(rows, [], preset("paper"))
    assert paper_labels["icr:rank=8"] == paper_labels["icr:domains=all"] == paper_labels["icr:target=late"] == "icr"
    cpu, cpu_labels = experiment_methods(rows, [], preset("cpu"))
    assert cpu_labels["icr:domains=agnews+sst2+trec"] == "icr"
    assert cpu_labels["icr:domains=all"] == "icr:domains=all"
    for made, sizes in ((paper, "paper"), (cpu, "cpu")):
        assert len({item.method for item in made}) == len(made) == 9
        assert {item.label: item for item in made} == {
            item.label: item for item in parse_methods(",".join(item.label for item in made), [], preset(sizes))
        }


def test_a_setting_for_all_rows_stays_in_every_label_and_yields_to_a_rows_own() -> None:
    _, labels = experiment_methods(["icr", "icr:rank=4", "icr:basis=random"], ["icr.rank=4"], preset("paper"))
    assert labels == {
        "icr": "icr:rank=4",
        "icr:rank=4": "icr:rank=4",
        "icr:basis=random": "icr:basis=random:rank=4",
    }


def test_one_of_methods_and_experiment(icrbench: Commands) -> None:
    icrbench.refused(icrbench.run(experiment="pids"), "experiment pids has methods of its own", "without --methods")
    icrbench.refused(icrbench.run(methods=None), "nothing to run", "--methods", "--experiment")
    icrbench.refused(icrbench.run(methods=None, experiment="pid"), "unknown experiment 'pid'", "pids")
    icrbench.refused(icrbench.run(methods=None, experiment=","), "no experiment in ','")


def test_listing(icrbench: Commands) -> None:
    out = icrbench("list", "experiments").out
    for name, experiment in experiments().items():
        assert any(line.startswith(name) and experiment.title in line for line in out.splitlines())


def test_dry_run_confines_rows_to_the_tasks_of_their_experiments(
    icrbench: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere = Experiment("one", "One", (), "tasks", (ExperimentRow("ICR", "icr"),))
    in_domain = Experiment(
        "two", "Two", (), "tasks", (ExperimentRow("0", "zero_shot"), ExperimentRow("I", "icr")), "id"
    )
    monkeypatch.setattr("icrbench.runner.request.get_experiments", lambda text: [everywhere, in_domain])
    done = icrbench.run("--dry-run", methods=None, tasks=None, experiment="one,two")
    cells = {tuple(line.split()[1:3]) for line in done.out.splitlines() if line.endswith("rows)")}
    assert {("icr", "mr"), ("icr", "sst2"), ("zero_shot", "sst2")} <= cells
    assert ("zero_shot", "mr") not in cells
    narrowed = icrbench.run("--dry-run", methods=None, tasks="mr", experiment="one,two").out
    assert "zero_shot mr" in narrowed
    assert "sst2" not in narrowed


def test_rows_of_an_experiment_share_bases_and_trunk_states(
    icrbench: Commands, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    names = ("icr:w_gate=0", "icr:rank=4", "icr:domains=sst2")
    ablation = Experiment("ablation", "A", (), "tasks", tuple(ExperimentRow(name, name) for name in names))
    monkeypatch.setattr("icrbench.runner.request.get_experiments", lambda text: [ablation])
    small = ["prompts_per_domain=10", "train_per_domain=4", "epochs=1", "domains=sst2"]
    options = [word for setting in small for word in ("--set", f"icr.{setting}")]
    folder = tmp_path / "shared"
    assert icrbench.run(*options, methods="icr", cache_dir=folder).counts == (1, 0, 0)
    before = {path for path in folder.rglob("*") if path.is_file()}
    assert {path.relative_to(folder).parts[0] for path in before} == {"bases", "trunks"}
    done = icrbench.run(*options, methods=None, experiment="ablation", cache_dir=folder)
    assert done.counts == (2, 1, 0), done  # the third row is what --set makes of plain ICR, which is there
    assert {path for path in folder.rglob("*") if path.is_file()} == before
