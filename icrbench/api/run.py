"""`icrbench.run`: the benchmark, called from Python."""

import inspect
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from icrbench.api.results import Results, results
from icrbench.backbone.load import wrap
from icrbench.runner.request import PATHS, Request
from icrbench.runner.run import run as run_request
from icrbench.util.errors import unknown

OPTIONS = tuple(name for name in inspect.signature(Request.build).parameters if name != "models")


def run(
    methods: str | Sequence[str] | None = None,
    models: str | Path | Sequence[str | Path] | PreTrainedModel = (),
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    quiet: bool = False,
    **options: Any,
) -> Results:
    """Run methods x models x tasks x seeds into a results folder; what is there already is kept.

    Args:
        methods: ``all``, or methods as ``icr:rank=4``; as a list, or a text joined by commas.
        models: names, hub ids, folders or GGUF files; or a loaded transformers model, with its tokenizer.
        tokenizer: of a loaded model.
        quiet: no progress bars.
        options: what ``icrbench run`` takes, under the same names: ``tasks``, ``seeds``, ``limit``, ``preset``,
            ``protocol``, ``data_dir``, ``demo``, ``out``, ...; ``settings`` are the texts of ``--set``.

    Returns:
        All results of the folder, as `icrbench.results` gives them; failed cells are among them.

    Raises:
        UserError: for anything wrong, in one sentence.
    """
    for name in options:
        if name not in OPTIONS:
            raise unknown("option of icrbench.run", name, [*OPTIONS, "quiet", "tokenizer"])
    asked: dict[str, Any] = {"methods": methods, "models": models, **options}
    asked |= {name: Path(asked[name]) for name in PATHS if asked.get(name) is not None}
    if isinstance(models, PreTrainedModel):
        asked["models"] = [wrap(models, tokenizer)]
    elif not isinstance(models, str):
        asked["models"] = [str(model) for model in ([models] if isinstance(models, Path) else models)]
    request = Request.build(**asked)
    run_request(request, quiet=quiet)
    return results(request.out)
