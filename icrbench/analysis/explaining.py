"""``icrbench explain``: from the command line's options to an explanation, printed and drawn."""

import argparse
import json

from transformers.utils.logging import disable_progress_bar

from icrbench.analysis.explain import explain
from icrbench.analysis.explanation import text
from icrbench.analysis.given import given_example
from icrbench.backbone.load import check_model, load_backbone
from icrbench.data.find_tasks import get_tasks
from icrbench.report.figures.explanation import check_ending, write_explanation
from icrbench.store.find_fit import FitName
from icrbench.util.errors import UserError


def run_explain(options: argparse.Namespace) -> None:
    """Explain one input; all that can be wrong with the options is said before the model is loaded.

    Raises:
        UserError: for anything wrong, in one sentence.
    """
    tasks = get_tasks(options.task, options.tasks_dir)
    if len(tasks) > 1:
        raise UserError(f"one input has one task: name one with --task, not '{options.task}'.")
    example = given_example(tasks[0], options.text, options.field)
    if options.figure is not None:
        check_ending(options.figure)
    plain = options.method is None and options.artifact is None and options.out is None
    fit = FitName("zero_shot" if plain else options.method, options.artifact, options.out, tasks[0].name)
    fit.check(options.model)
    check_model(options.model)
    disable_progress_bar()
    backbone = load_backbone(options.model, device=options.device, dtype=options.dtype)
    explained = explain(backbone, fit.artefact(backbone), tasks[0], example)
    print(json.dumps(explained, indent=1, ensure_ascii=False) if options.json else text(explained))
    if options.figure is not None:
        write_explanation(explained, options.figure)
