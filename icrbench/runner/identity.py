"""What a cell's result depends on: two results with the same identity are the same result."""

from functools import cache
from typing import Any

from icrbench.backbone import Backbone
from icrbench.data.rules import Rules
from icrbench.method import Method
from icrbench.protocol import Datasets
from icrbench.runner.plan import Cell
from icrbench.scoring.prompting import MAX_QUERY_TOKENS
from icrbench.util.code import core, hash_sources, libraries, own_sources


def cell_identity(cell: Cell, backbone: Backbone, datasets: Datasets, rules: Rules) -> dict[str, Any]:
    """Everything that can change a cell's result, as JSON values; `store.records.identity_key` names it.

    The protocol is not in it: what it changes is the pools that a method sees, and what has the same pools under both
    is one result.
    """
    data, method, variation = datasets.data[cell.task], cell.method.method, cell.variation
    pools = variation.pools(datasets.pools(method, cell.task))
    return {
        **variation.of_demonstrations(),
        "method": {"name": method.name, "hyperparameters": method.hyperparameters()},
        "code": code_identity(type(method)),
        "model": backbone.identity(),
        "pools": {name: {"rows": pool.sha256, "task": pool.task.identity()} for name, pool in pools.items()},
        "target": datasets.target(method, cell.task),
        "seed": cell.seed,
        "clean": rules.clean,
        "task": variation.task(data.task).identity(),
        "test": {"sha256": data.provenance.sha256["test"], "limit": rules.limit},
        "scoring": {"max_query_tokens": MAX_QUERY_TOKENS},
    }


@cache
def code_identity(kind: type[Method]) -> dict[str, str]:
    """Return the code and the libraries that compute a method's results.

    Read once a process: what is edited while it runs is not what it runs.

    Raises:
        UserError: for a method that is defined in no file.
    """
    modules = {base.__module__ for base in kind.__mro__ if issubclass(base, Method) and base is not Method}
    return {"core": core(), "method": hash_sources(own_sources(sorted(modules))), **libraries()}
