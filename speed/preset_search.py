"""What the sizes of the trained baselines in a preset rest on: accuracy on held-out train rows, never on test rows.

Each value is fitted to a task's train split less the held-out rows, and scored on those. The one with the best mean
over the tasks is the one to take; of equals, the one nearest to the published value. A grid whose best value is its
lowest or highest grows on that side until the best lies inside.
"""

import argparse
import math
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from common import backbone, parser, report, rows

from icrbench.backbone import Backbone
from icrbench.data.find_tasks import get_tasks
from icrbench.method import FitData, Pool
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.runner.presets import preset
from icrbench.toolkit.demonstrations import spread
from icrbench.toolkit.episodes import Labelled, Question, Questions
from icrbench.toolkit.selection import accuracies
from icrbench.util.errors import UserError


class Grid(NamedTuple):
    """Values of one hyperparameter, ascending; further ones differ from their neighbour by a factor."""

    name: str
    published: float
    values: tuple[float, ...]
    factor: float = 2.0


GRIDS = {
    "cartridges": Grid("learning_rate", 0.02, (0.005, 0.01, 0.02)),
    "ct_kv": Grid("learning_rate", 0.001, (0.001, 0.003, 0.01), 3.0),
    "hificl": Grid("learning_rate", 0.005, (0.005, 0.01, 0.02)),
    "ia2": Grid("learning_rate", 0.0003, (0.0001, 0.0003, 0.001), 3.0),
    "learned_task_vector": Grid("learning_rate", 0.02, (0.01, 0.02, 0.04)),
    "live": Grid("learning_rate", 0.001, (0.05, 0.1, 0.2)),
    "lora": Grid("learning_rate", 0.0005, (0.00025, 0.0005, 0.001)),
    "m2iv": Grid("learning_rate", 0.001, (0.025, 0.05, 0.1)),
    "mimic": Grid("learning_rate", 0.005, (0.01, 0.02, 0.04)),
    "reft": Grid("learning_rate", 0.0009, (0.0025, 0.005, 0.01)),
    "soft_prompt": Grid("learning_rate", 0.1, (0.1, 0.2, 0.4)),
    "task_vector": Grid("dummies", 1, (4, 8, 16)),
}
MOST_FURTHER = 4  # values tried beyond the first; a grid that still ends in its best is said to


class Search:
    """Fits and scores values of one method's hyperparameter.

    Args:
        asked: the command line.
        name: the method.
    """

    def __init__(self, asked: argparse.Namespace, name: str) -> None:
        self.name, self.grid = name, GRIDS[name]
        self._seed = asked.seed
        self._method = make_method(name, preset(asked.preset).methods.get(name, {}))
        self.rows: dict[float, list[float]] = {}

    def run(self, model: Backbone, pools: dict[str, Pool], questions: dict[str, list[Question]], folder: Path) -> None:
        """Try the grid, and further values while the best lies on its edge."""
        for value in self.grid.values:
            self._try(value, model, pools, questions, folder)
        for _ in range(MOST_FURTHER):
            tried = sorted(self.rows)
            if tried[0] < self.best < tried[-1]:
                break
            further = tried[0] / self.grid.factor if self.best == tried[0] else tried[-1] * self.grid.factor
            self._try(further, model, pools, questions, folder)

    @property
    def best(self) -> float:
        """The value of the highest mean; of equals, the one nearest to the published."""
        return max(self.rows, key=lambda value: (self.rows[value][-2], -abs(math.log(value / self.grid.published))))

    def _try(
        self,
        value: float,
        model: Backbone,
        pools: dict[str, Pool],
        questions: dict[str, list[Question]],
        folder: Path,
    ) -> None:
        kind = type(getattr(self._method, self.grid.name))
        method, scores, spent = replace(self._method, **{self.grid.name: kind(value)}), [], 0.0
        for target, pool in pools.items():
            begin = time.process_time()
            fitted = method.fit(model, FitData({target: pool}, target, folder), Randomness(self._seed))
            spent += time.process_time() - begin
            last = fitted.last_token_only
            scores.append(100 * accuracies(model, [fitted], questions[target], last_token_only=last)[0])
        self.rows[value] = [*scores, sum(scores) / len(scores), spent / len(pools)]
        print(self.name, f"{self.grid.name}={value:g}", *self.rows[value], sep="\t", flush=True)


def main() -> None:
    """Search every method's grid, printing each value as it is known."""
    options = parser(__doc__)
    options.add_argument("--methods", default=",".join(GRIDS), help="comma-separated")
    options.add_argument("--tasks", default="sst2,trec")
    options.add_argument("--preset", default="cpu", help="whose other sizes to take")
    options.add_argument("--held-out", type=int, default=100, help="rows of each train split")
    options.add_argument("--seed", type=int, default=0, help="of the fits and of which rows are held out")
    asked = options.parse_args()
    if asked.data_dir is None:
        raise UserError("nothing can be chosen on the bundled rows: give --data-dir.")
    model = backbone(asked)
    ask = Questions(model)
    pools, questions = {}, {}
    for task in get_tasks(asked.tasks):
        pool, _ = rows(asked, task.name, 1)
        held_out = spread(pool.train, asked.held_out, Randomness(asked.seed).python("preset-search", task.name))
        gone = {row.content_hash for row in held_out}
        left = tuple(row for row in pool.train if row.content_hash not in gone)
        pools[task.name] = replace(pool, train=left)
        questions[task.name] = ask.zero_shot(Labelled(task, row) for row in held_out)

    table: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.methods.split(","):
            search = Search(asked, name)
            search.run(model, pools, questions, Path(folder))
            for value, found in sorted(search.rows.items()):
                mark = " (taken)" if value == search.best else ""
                table.append([name, f"{search.grid.name}={value:g}{mark}", *found])
    report(
        f"held-out train rows, {asked.held_out} a task, preset {asked.preset}, {asked.model}",
        ["method", "setting", *pools, "mean", "processor seconds a fit"],
        table,
    )


if __name__ == "__main__":
    main()
