"""``icrbench explain``: what a fitted method does to one input, printed and drawn."""

import argparse
import json
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

from icrbench.cli.options import add_device, add_fit, add_folders, import_methods, path
from icrbench.data.find_tasks import get_tasks
from icrbench.model_names import check_model
from icrbench.util.errors import UserError

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("explain", help="what a fitted method does to one input")
    parser.add_argument("text", nargs="?", help="for the one field of the task's template")
    parser.add_argument("--task", default="sst2", help="whose template and options are used (default: sst2)")
    parser.add_argument(
        "--field", action="append", default=[], metavar="NAME=TEXT", help="a field or answer by name; repeatable"
    )
    parser.add_argument("--model", "--models", required=True, help="a name, hub id, folder or .gguf file")
    add_fit(parser)
    parser.add_argument("--json", action="store_true", help="print json")
    parser.add_argument("--figure", type=path, metavar="FILE", help="also draw it, as .pdf or .png")
    add_folders(parser)
    add_device(parser)
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Explain one input; all that can be wrong with the options is said before the model is loaded."""
    tasks = get_tasks(options.task, options.tasks_dir)
    if len(tasks) > 1:
        raise UserError(f"one input has one task: name one with --task, not '{options.task}'.")
    check_model(options.model)
    import_methods(options)
    from transformers.utils.logging import disable_progress_bar

    from icrbench.analysis.explain import explain
    from icrbench.analysis.explanation_text import text
    from icrbench.analysis.typed_input import given_example
    from icrbench.backbone.load import load_backbone
    from icrbench.report.figures.explanation import check_ending, write_explanation
    from icrbench.store.find_fit import FitName

    example = given_example(tasks[0], options.text, options.field)
    if options.figure is not None:
        check_ending(options.figure)
    plain = options.method is None and options.artifact is None and options.out is None
    fit = FitName("zero_shot" if plain else options.method, options.artifact, options.out, tasks[0].name)
    fit.check(options.model)
    disable_progress_bar()
    backbone = load_backbone(
        options.model,
        device=options.device,
        dtype=options.dtype,
        quantize=options.quantize,
        trust_remote_code=options.trust_remote_code,
    )
    with redirect_stdout(sys.stderr):  # what a method prints is no part of the json
        explained = explain(backbone, fit.artefact(backbone), tasks[0], example)
    print(json.dumps(explained, indent=1, ensure_ascii=False) if options.json else text(explained))
    if options.figure is not None:
        write_explanation(explained, options.figure)
    return 0
