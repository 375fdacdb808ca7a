"""Few-shot scoring with the demonstrations' keys and values computed once, against recomputing them for every query."""

from pathlib import Path

from common import backbone, options, report, rows, side_by_side

from icrbench.method import FitData
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score

QUERIES = 200
DEMONSTRATIONS = 20


def main() -> None:
    """Measure and print the ratio."""
    asked = options(__doc__)
    model = backbone(asked)
    pool, examples = rows(asked, "sst2", QUERIES)
    method = make_method("few_shot", {"per_class": DEMONSTRATIONS // 2})
    fitted = method.fit(model, FitData({"sst2": pool}, "sst2", Path()), Randomness(0))
    predictions = {}

    def run(name: str, cached: bool) -> None:
        scored = score(model, fitted, pool.task, examples, ScoringOptions(prefix_cache=cached))
        predictions[name] = [result.prediction for result in scored]

    times = side_by_side(
        {"cached": lambda: run("cached", True), "recomputed": lambda: run("recomputed", False)}, asked.rounds
    )
    same = predictions["cached"] == predictions["recomputed"]
    report(
        f"few-shot, {asked.model}, {DEMONSTRATIONS} demonstrations, {QUERIES} queries",
        ["recomputed s", "cached s", "ratio", "same predictions"],
        [[times["recomputed"], times["cached"], times["recomputed"] / times["cached"], same]],
    )


if __name__ == "__main__":
    main()
