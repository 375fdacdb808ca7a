"""``icrbench run``: methods x models x tasks x seeds into a results folder."""

import argparse
from typing import TYPE_CHECKING

from icrbench.cli.check_names import check_names
from icrbench.cli.options import add_run_options, positive, request_arguments, whole
from icrbench.util.errors import UserError

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("run", help="run methods x models x tasks x seeds into a results folder")
    add_run_options(parser)
    parser.add_argument(
        "--no-priors",
        dest="priors",
        action="store_false",
        help="leave out the prompts that calibration needs; the same run without this adds them",
    )
    launcher = parser.add_argument_group("on several processes or machines")
    launcher.add_argument("--launcher", choices=["local"], help="processes of this machine")
    launcher.add_argument("--workers", type=positive, help="how many at once (default: one a GPU, or for two cores)")
    launcher.add_argument(
        "--gpus-per-model", type=positive, default=1, help="GPUs a worker, its model spread over them"
    )
    launcher.add_argument("--retries", type=whole, default=2, help="further tries of work whose worker died or hangs")
    launcher.add_argument(
        "--share",
        metavar="I/N",
        help="run the I-th of N parts that take about as long: one a job, for a scheduler or machines of your own",
    )
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Run, or say what a run would cost."""
    check_names(options)
    from icrbench.runner.estimate import print_plan  # slow imports, not needed to say what is wrong above
    from icrbench.runner.request import Request
    from icrbench.runner.run import run

    arguments = request_arguments(options)
    request = Request.build(**arguments)
    if options.dry_run:
        print_plan(request)
        return 0
    if options.launcher is not None or options.workers is not None:
        if options.share is not None:
            raise UserError("--share is for runs without a launcher: leave out --launcher and --workers, or --share.")
        from icrbench.launch.run import Launch, launch

        how = Launch(options.launcher or "local", options.workers, options.gpus_per_model, options.retries)
        return launch(request, arguments, how, quiet=options.quiet)
    return run(request, quiet=options.quiet)
