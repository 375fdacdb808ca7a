"""What the sizes of the trained baselines in a preset rest on: accuracy on held-out train rows, never on test rows.

Each setting is fitted to a task's train split less the held-out rows, and scored on those. The one with the best mean
over the tasks is the one to take; of equals, the one nearer to the published value, which stands first.
"""

import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from common import backbone, parser, report, rows

from icrbench.data.find_tasks import get_tasks
from icrbench.method import FitData
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.runner.presets import preset
from icrbench.toolkit.demonstrations import spread
from icrbench.toolkit.episodes import Labelled, Questions
from icrbench.toolkit.selection import accuracies
from icrbench.util.errors import UserError

SETTINGS: dict[str, tuple[Mapping[str, float], ...]] = {
    "task_vector": ({"dummies": 1}, {"dummies": 4}, {"dummies": 8}, {"dummies": 16}),
    "hificl": ({"learning_rate": 0.005}, {"learning_rate": 0.02}, {"learning_rate": 0.05}, {"learning_rate": 0.1}),
    "live": ({"learning_rate": 0.001}, {"learning_rate": 0.02}, {"learning_rate": 0.05}, {"learning_rate": 0.1}),
    "m2iv": ({"learning_rate": 0.001}, {"learning_rate": 0.01}, {"learning_rate": 0.02}, {"learning_rate": 0.05}),
    "lora": ({"learning_rate": 0.0001}, {"learning_rate": 0.0003}, {"learning_rate": 0.001}, {"learning_rate": 0.003}),
    "soft_prompt": ({"learning_rate": 0.1}, {"learning_rate": 0.01}, {"learning_rate": 0.03}, {"learning_rate": 0.3}),
    "learned_task_vector": (
        {"learning_rate": 0.02},
        {"learning_rate": 0.005},
        {"learning_rate": 0.05},
        {"learning_rate": 0.1},
    ),
    "mimic": ({"learning_rate": 0.005}, {"learning_rate": 0.02}, {"learning_rate": 0.05}),
}


def main() -> None:
    """Fit and score every setting, printing each as it is known."""
    options = parser(__doc__)
    options.add_argument("--methods", default=",".join(SETTINGS), help="comma-separated")
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
            base = make_method(name, preset(asked.preset).methods.get(name, {}))
            for setting in SETTINGS.get(name, ({},)):
                method, scores, spent = replace(base, **setting), [], 0.0
                for target, pool in pools.items():
                    begin = time.process_time()
                    fitted = method.fit(model, FitData({target: pool}, target, Path(folder)), Randomness(asked.seed))
                    spent += time.process_time() - begin
                    last = fitted.last_token_only
                    scores.append(100 * accuracies(model, [fitted], questions[target], last_token_only=last)[0])
                row = [name, ", ".join(f"{key}={value}" for key, value in setting.items()), *scores]
                table.append([*row, sum(scores) / len(scores), spent / len(pools)])
                print(*table[-1], sep="\t", flush=True)
    report(
        f"held-out train rows, {asked.held_out} a task, preset {asked.preset}, {asked.model}",
        ["method", "setting", *pools, "mean", "processor seconds a fit"],
        table,
    )


if __name__ == "__main__":
    main()
