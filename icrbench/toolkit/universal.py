"""What methods fitted once for all tasks learn from: some of the in-domain tasks, and so many rows of each."""

from collections.abc import Mapping

from icrbench.data.task import Example
from icrbench.method import Method, Pool
from icrbench.randomness import Randomness
from icrbench.util.errors import unknown


def chosen_domains(method: Method, domains: str, pools: Mapping[str, Pool]) -> list[Pool]:
    """The pools to learn from, in a fixed order.

    Args:
        method: whose hyperparameter ``domains`` it is, for the error.
        domains: ``all``, or some names joined by ``+``.
        pools: train rows by task name.

    Raises:
        UserError: for a name that is not among the pools.
    """
    if domains == "all":
        return [pool for _, pool in sorted(pools.items())]
    names = sorted(set(domains.split("+")))
    for name in names:
        if name not in pools:
            raise unknown(f"in-domain task in {method.name}.domains", name, pools)
    return [pools[name] for name in names]


def training_rows(pool: Pool, count: int, rng: Randomness) -> list[Example]:
    """Random rows of a domain, all if it has fewer; which ones does not depend on other domains or the method."""
    return rng.python("training-queries", pool.task.name).sample(pool.train, min(count, len(pool.train)))
