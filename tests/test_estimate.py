"""The cost of a run before it is started."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli_setup import model_folder
from icrbench.data.find_tasks import load_tasks
from icrbench.protocol import Datasets
from icrbench.runner import estimate as module
from icrbench.runner.estimate import estimate
from icrbench.runner.plan import Cell, not_applicable, plan
from icrbench.runner.request import Request
from icrbench.util.errors import UserError
from tiny import tiny_model

TASKS = load_tasks()


def grid(methods: str, tasks: str, seeds: Sequence[int] = (0,), limit: int | None = 5) -> tuple[list[Cell], Datasets]:
    request = Request.build(
        methods=methods,
        models="no/model",
        tasks=tasks.split(),
        seeds=seeds,
        limit="all" if limit is None else limit,
        preset="demo",
        demo=True,
    )
    datasets = request.datasets()
    return [cell for unit in plan(request, datasets) for cell in unit.cells], datasets


def tokens(*arguments: object, **more: object) -> float:
    return estimate(*grid(*arguments, **more), "no/model").tokens  # type: ignore[arg-type]


def test_zero_shot_costs_its_prompts() -> None:
    _, datasets = grid("zero_shot", "sst2")
    letters = sum(len(TASKS["sst2"].prompt(row)) for row in datasets.test("sst2"))
    assert tokens("zero_shot", "sst2") == letters / module.LETTERS_PER_TOKEN
    assert tokens("zero_shot", "sst2", (0, 1, 2)) == tokens("zero_shot", "sst2")
    assert tokens("zero_shot", "sst2 cb") == tokens("zero_shot", "sst2") + tokens("zero_shot", "cb")


def test_a_fit_that_cells_share_counts_once() -> None:
    one, two, both = (tokens("icr", names) - tokens("zero_shot", names) for names in ("mr", "cb", "mr cb"))
    assert both == pytest.approx(one) == pytest.approx(two)
    assert one > 0
    seeds = tokens("icr", "mr", (0, 1)) - 2 * tokens("zero_shot", "mr")
    assert seeds == pytest.approx(2 * one)


def test_a_fit_of_each_task_counts_for_each() -> None:
    fits = [tokens("few_shot", names) - tokens("zero_shot", names) for names in ("sst2", "cb", "sst2 cb")]
    assert fits[2] == pytest.approx(fits[0] + fits[1])


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3"])
def test_time_follows_the_weights_of_the_blocks(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_flops", lambda: 1e9)
    found = estimate(*grid("zero_shot", "sst2"), str(model_folder(family)))
    model = tiny_model(family)
    blocks = sum(p.numel() for name, p in model.named_parameters() if ".layers." in name or ".h." in name)
    assert found.seconds == pytest.approx(2 * blocks * found.tokens / 0.5e9, rel=0.4)


@pytest.mark.parametrize("model", ["no/model", "no/model@main", "llama-70b"])
def test_a_model_that_is_not_here_has_no_time(model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert estimate(*grid("zero_shot", "sst2"), model).seconds is None


def test_an_unsupported_family_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 8}))
    with pytest.raises(UserError, match="'mamba' is not supported"):
        estimate(*grid("zero_shot", "sst2"), str(tmp_path))


def test_the_machines_speed_is_measured() -> None:
    assert module._flops() > 1e6


def test_a_method_that_needs_rows_of_the_task_has_no_cell_without_them() -> None:
    for protocol, wanted in (("paper", ["sst2"]), ("in_task", ["sst2", "cb"])):
        request = Request.build(
            methods="zero_shot,hidden_calibration",
            models="no/model",
            tasks=["sst2", "cb"],
            protocol=protocol,
            preset="demo",
            demo=True,
        )
        datasets = request.datasets()
        cells = [cell for unit in plan(request, datasets) for cell in unit.cells]
        assert [cell.task for cell in cells if cell.method.label == "zero_shot"] == ["sst2", "cb"]
        assert [cell.task for cell in cells if cell.method.label == "hidden_calibration"] == wanted
        said = not_applicable(request, datasets)
        assert [text.split(":")[0] for text in said] == ["hidden_calibration is not applicable to cb"][
            : 2 - len(wanted)
        ]
