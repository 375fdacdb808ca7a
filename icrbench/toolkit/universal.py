"""What methods fitted once for all tasks learn from: some of the in-domain tasks, and so many rows of each."""

from collections.abc import Mapping

from icrbench.data.task import Example
from icrbench.method import Method, Pool
from icrbench.randomness import Randomness
from icrbench.util.errors import unknown


def is_chosen(name: str, domains: str) -> bool:
    """Whether a task is among domains written as ``all`` or as names joined by ``+``."""
    return domains == "all" or name in domains.split("+")


def chosen_domains(method: Method, field: str, pools: Mapping[str, Pool]) -> list[Pool]:
    """Return the pools to learn from, in a fixed order.

    Args:
        method: whose hyperparameter says which.
        field: its name; its value is ``all``, or some names joined by ``+``.
        pools: train rows by task name.

    Raises:
        UserError: for a name that is not among the pools.
    """
    domains: str = getattr(method, field)
    for name in domains.split("+") if domains != "all" else ():
        if name not in pools:
            raise unknown(f"in-domain task in {method.name}.{field}", name, pools)
    return [pool for name, pool in sorted(pools.items()) if is_chosen(name, domains)]


def training_rows(pool: Pool, count: int, rng: Randomness) -> list[Example]:
    """Random rows of a domain, all if it has fewer; which ones does not depend on other domains or the method."""
    return rng.python("training-queries", pool.task.name).sample(pool.train, min(count, len(pool.train)))
