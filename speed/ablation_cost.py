"""What the paper's ablation tables cost beside one full training, with trunk states and ICL bases shared.

The full training starts from nothing; every variant after it finds on disk what those before it left there. All sizes
of a preset are multiplied by one share, so that their proportions, and with them the ratios, stay those of the preset.
Counted is processor time, which other processes on the machine do not lengthen.
"""

import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import backbone, parser, report, rows

from icrbench.method import FitData, Pool
from icrbench.methods.icr import ICR
from icrbench.randomness import Randomness
from icrbench.runner.presets import preset
from icrbench.toolkit.encoder import sentence_encoder

POOL = 400  # train rows a domain; enough for demonstrations of every class

# What a table has in common with the full training (rank 8, 5 a class, the late third) costs nothing more.
TABLES: dict[str, list[dict[str, Any]]] = {
    "3": [{"rank": 4}, {"rank": 12}, {"basis": "random"}],
    "4": [{"w_confidence": 0}, {"w_gate": 0}, {"w_sparsity": 0}, {"alpha": "uniform"}, {"gamma": "uniform"}],
    "12": [{"per_class": 3}, {"per_class": 7}, {"sampling": "similar"}],
    "13": [{"target": "early"}, {"target": "middle"}, {"target": "all"}],
}
BEYOND: list[dict[str, Any]] = [{"basis": "learned"}, {"encoder": "random"}, {"rank": 1}, {"rank": 16}]


def main() -> None:
    """Measure and print the ratios."""
    options = parser(__doc__)
    options.add_argument("--preset", default="paper", help="whose proportions to measure")
    options.add_argument("--share", type=float, default=0.002, help="of the preset's prompts")
    asked = options.parse_args()
    model = backbone(asked)
    full = ICR(**preset(asked.preset).methods.get("icr", {}))
    counts = ("prompts_per_domain", "prompts_agnews", "train_per_domain")
    full = replace(full, **{name: round(getattr(full, name) * asked.share) for name in counts})
    pools: dict[str, Pool] = {}
    for name in ("agnews", "sst2", "trec", "csqa", "piqa"):
        if full.domains == "all" or name in full.domains.split("+"):
            pool = rows(asked, name, 1)[0]
            pools[name] = replace(pool, train=pool.train[:POOL])
    full = replace(full, domains="all")
    # The share of prompts is not one of the pool, which demonstrations by similarity embed whole: leave that out.
    for pool in pools.values():
        sentence_encoder(full.encoder)([pool.task.prompt(example) for example in pool.train])

    with tempfile.TemporaryDirectory() as folder:

        def cost(method: ICR) -> float:
            before = time.process_time()
            method.fit(model, FitData(pools, None, Path(folder)), Randomness(0))
            return time.process_time() - before

        whole = cost(full)
        table: list[list[object]] = [["", "from nothing", whole, 1.0]]
        counted = 0.0
        for number, variants in {**TABLES, "none": BEYOND}.items():
            total = 0.0
            for change in variants:
                spent = cost(replace(full, **change))
                total += spent
                name = ", ".join(f"{key}={value}" for key, value in change.items())
                table.append([number, name, spent, spent / whole])
            if number in TABLES:
                counted += total
                table.append([number, "whole table", total, total / whole])
    table.append(["3+4+12+13", "beside the full training", counted, counted / whole])
    table.append(["3+4+12+13", "with it", counted + whole, (counted + whole) / whole])
    report(
        f"{asked.share} of preset {asked.preset}, {asked.model}",
        ["table", "icr", "processor seconds", "full trainings"],
        table,
    )


if __name__ == "__main__":
    main()
