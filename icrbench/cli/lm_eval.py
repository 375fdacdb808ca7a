"""``icrbench lm-eval``: any method under lm-evaluation-harness."""

import argparse
from typing import TYPE_CHECKING

from icrbench.cli.options import add_fit, add_methods_dir, add_quantize, add_trust, import_methods
from icrbench.model_names import check_model

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command; flags it does not know go on to lm-eval."""
    parser = commands.add_parser(
        "lm-eval",
        help="any method under lm-evaluation-harness",
        usage="icrbench lm-eval --model MODEL [--method METHOD] [--out OUT] --tasks TASKS [flags of lm_eval run]",
        allow_abbrev=False,
    )
    parser.add_argument("--model", required=True, help="a name, hub id, folder or .gguf file")
    add_fit(parser)
    add_methods_dir(parser)
    add_quantize(parser)
    add_trust(parser)
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Evaluate with lm-eval's own command line."""
    check_model(options.model)
    import_methods(options)
    from icrbench.lm_eval.harness import evaluate

    return evaluate(
        options.model,
        options.method,
        options.out,
        options.artifact,
        options.passed_on,
        quantize=options.quantize,
        trust_remote_code=options.trust_remote_code,
    )
