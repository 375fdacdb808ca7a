"""What a run will cost, roughly, before it is started."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from transformers import AutoConfig

from icrbench.backbone.anatomy import anatomy_of, dimensions_of
from icrbench.model_names import known_models, local_source
from icrbench.protocol import Datasets
from icrbench.runner.plan import Cell, Unit, plan
from icrbench.runner.request import Request
from icrbench.runner.variation import Variation
from icrbench.util.progress import duration

LETTERS_PER_TOKEN = 4.0  # English text, most tokenizers
EFFICIENCY = 0.5  # share of a large matrix product's speed that a forward pass reaches


@dataclass(frozen=True)
class Estimate:
    """Tokens through the model, and seconds if the model's size is known."""

    tokens: float
    seconds: float | None


class Costs:
    """Tokens through the model, from the letters of prompts; each prompt is made once.

    Args:
        datasets: the data of a run.
    """

    def __init__(self, datasets: Datasets) -> None:
        self._datasets = datasets
        self._scores: dict[tuple[str, Variation], float] = {}

    def score(self, cell: Cell) -> float:
        """Estimate the tokens of the prompts that a cell is scored with."""
        place = (cell.task, cell.variation)
        if place not in self._scores:
            task = cell.variation.task(self._datasets.tasks[cell.task])
            letters = sum(len(task.prompt(row)) for row in self._datasets.test(cell.task))
            self._scores[place] = letters / LETTERS_PER_TOKEN
        return self._scores[place]

    def fit(self, cell: Cell) -> float:
        """Estimate the tokens through the model, one way, that the cell's fit takes."""
        method = cell.method.method
        pools = self._datasets.pools(method, cell.task)
        sizes = {
            name: sum(len(pool.task.demonstration(row)) for row in pool.train) / len(pool.train) / LETTERS_PER_TOKEN
            for name, pool in pools.items()
        }
        return method.fit_tokens(sizes, {name: pool.task.max_options for name, pool in pools.items()})

    def cells(self, unit: Unit) -> list[float]:
        """Estimate the tokens of each cell of a unit; its fit is made with the first."""
        own = [self.score(cell) for cell in unit.cells]
        return [own[0] + self.fit(unit.cells[0]), *own[1:]]


def estimate(grid: Sequence[Cell], datasets: Datasets, model: str) -> Estimate:
    """Estimate the cost of all cells; a fit shared by several cells is counted once."""
    costs, tokens, fitted = Costs(datasets), 0.0, set()
    for cell in grid:
        tokens += costs.score(cell)
        key = (cell.method.label, cell.seed, datasets.target(cell.method.method, cell.task), cell.variation.of_fit)
        if key not in fitted:
            fitted.add(key)
            tokens += costs.fit(cell)
    each = seconds_per_token(model)
    return Estimate(tokens, None if each is None else each * tokens)


def seconds_per_token(model: str) -> float | None:
    """Estimate how long a token takes through a model on this machine; None if the model is not here."""
    parameters = _parameters(model)
    return None if parameters is None else 2 * parameters / (_flops() * EFFICIENCY)


def print_plan(request: Request) -> None:
    """Print the cells of a run and what they will cost; no model is loaded."""
    datasets = request.datasets()
    grid = [cell for unit in plan(request, datasets) for cell in unit.cells]
    for asked in request.models:
        model = asked if isinstance(asked, str) else asked.revision.name
        for cell in grid:
            print(f"{model}  {cell}  ({len(datasets.test(cell.task))} rows)")
        cost = estimate(grid, datasets, model)
        time = "time unknown (the model is not here)" if cost.seconds is None else f"about {duration(cost.seconds)}"
        print(f"{model}: {len(grid)} cells, about {cost.tokens / 1e6:.2f} million tokens, {time} on this machine")


def _parameters(model: str) -> float | None:
    """Weights of the blocks, from a configuration that is here already; None if it is not."""
    name, _, revision = model.partition("@")
    source = local_source(model) or known_models().get(name, {}).get("hub", name)
    try:
        whole = AutoConfig.from_pretrained(
            str(source), revision=revision or "main", local_files_only=True, trust_remote_code=False
        )
    except Exception:  # nothing here yet, or damaged: said when it is loaded
        return None
    anatomy_of(whole)  # an unsupported family is said now, not when the run starts
    dims = dimensions_of(whole)
    attention = 2 * dims.hidden * dims.head_dim * (dims.heads + dims.kv_heads)
    return float(dims.layers * (attention + 3 * dims.hidden * dims.inner))


@cache
def _flops() -> float:
    """Floating-point operations a second in a large matrix product, measured here and now."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    matrix = torch.randn(1024, 1024, device=device)
    matrix @ matrix
    begin = time.perf_counter()
    for _ in range(4):
        result = matrix @ matrix
    float(result[0, 0])  # waits for a GPU
    return 4 * 2 * 1024**3 / (time.perf_counter() - begin)
