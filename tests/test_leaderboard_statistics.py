"""What the leaderboard makes of the statistics: families of the correction, the split of the variance, the leader."""

import csv
import io
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from icrbench.report import stats
from icrbench.report.leaderboard import Table, leaderboards
from icrbench.report.text.render import csv as render_csv
from icrbench.store.store import Store
from records import TASKS, add

N = 60
LABELS = {"zero_shot": (None,), "few_shot": (0, 1, 2), "icr": (0, 1, 2), "icr:rank=4": (0, 1)}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    store, rng = Store(tmp_path / "results"), np.random.default_rng(0)
    for label, seeds in LABELS.items():
        for task in TASKS:
            for seed in seeds:
                add(store, task, label, seed, (rng.random(N) < 0.4 + 0.1 * len(seeds)).tolist())
    (made,) = leaderboards(store)
    return made


@pytest.mark.parametrize("names", [list(TASKS), ["id", "near_ood", "far_ood"], ["average"]])
def test_holm_corrects_over_all_rows_and_columns_of_a_kind(table: Table, names: list[str]) -> None:
    scores = [row.scores[name] for row in table.rows for name in names]
    tested = [(score.versus.p, score.p_holm) for score in scores if score.versus]
    assert len(tested) == 3 * len(names)
    assert [holm for _, holm in tested] == pytest.approx(stats.holm([p for p, _ in tested]))


def test_the_leader_is_corrected_for_all_pairs(table: Table) -> None:
    behind = [row.behind for row in table.rows if row.behind]
    assert len(behind) == 2
    raw = sorted(gap.versus.p for gap in behind)
    assert sorted(gap.p_holm for gap in behind) == pytest.approx(
        [min(1, 3 * raw[0]), min(1, max(3 * raw[0], 2 * raw[1]))]
    )


def test_the_csv_splits_the_uncertainty(table: Table) -> None:
    lines = {(line["method"], line["column"]): line for line in csv.DictReader(io.StringIO(render_csv([table])))}
    icr = lines["icr", "average"]
    (row,) = [row for row in table.rows if row.label == "icr"]
    spread = row.scores["average"].spread
    assert spread is not None
    assert (float(icr["se_seeds"]), float(icr["se_examples"])) == pytest.approx((spread.seeds, spread.examples))
    assert lines["zero_shot", "average"]["se_seeds"] == ""
    for column in ("average", "sst2"):  # costs stand beside, of all tasks or of one
        own = [
            r["result"]
            for label, r in table.group.records
            if label == "icr" and column in ("average", r["cell"]["task"])
        ]
        assert float(lines["icr", column]["fit_seconds"]) == pytest.approx(
            fmean(result["seconds_fit"] for result in own if result)
        )
    assert float(lines["zero_shot", "average"]["se_examples"]) > 0
