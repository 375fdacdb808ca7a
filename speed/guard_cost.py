"""What the looks at the model between cells cost, beside a small cell.

    python speed/guard_cost.py --model gemma-270m --rows 40

Times zero-shot on some rows of the demonstration data of SST-2 (the cheapest cell there is), and `Guard.left` after it.
"""

import argparse
import time
from statistics import median

from icrbench.backbone.load import load_backbone
from icrbench.data.find_tasks import get_tasks
from icrbench.data.sources import Demo, load
from icrbench.method import Fitted
from icrbench.runner.guard import Guard
from icrbench.scoring.next_token import score

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="gemma-270m")
parser.add_argument("--rows", type=int, default=40)
parser.add_argument("--times", type=int, default=7)


def main() -> None:
    """Print one line a step: median processor seconds, and the share of the cell."""
    asked = parser.parse_args()
    backbone = load_backbone(asked.model)
    (task,) = get_tasks("sst2")
    examples = load(task, Demo()).test[: asked.rows]
    begin = time.process_time()
    guard = Guard(backbone)
    print(f"making the guard, once a model: {time.process_time() - begin:.3f} s")
    cell, looks, whole = [], [], []
    for _ in range(asked.times):
        for seconds, step in (
            (cell, lambda: score(backbone, Fitted({}, {}), task, examples)),
            (looks, guard.left),
            (whole, lambda: guard.left(whole=True)),
        ):
            begin = time.process_time()
            step()
            seconds.append(time.process_time() - begin)
    print(f"a cell of {len(examples)} rows: {median(cell):.3f} s")
    print(f"a look after it: {median(looks):.4f} s, {100 * median(looks) / median(cell):.2f} % of the cell")
    print(f"every weight, once a run: {median(whole):.3f} s")


if __name__ == "__main__":
    main()
