"""``icrbench run``: methods x models x tasks x seeds into a results folder."""

import argparse
from typing import TYPE_CHECKING

from icrbench.cli.check_names import check_names
from icrbench.cli.options import add_run_options, positive, request_arguments, whole
from icrbench.util.errors import UserError

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands
    from icrbench.launch.how import Launch


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
    launcher.add_argument(
        "--launcher", choices=["local", "ray", "slurm"], help="processes here, Ray's actors, or Slurm's jobs"
    )
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
    launcher.add_argument(
        "--ray-address",
        metavar="HOST:PORT",
        help="of a Ray cluster: auto (default) for the one that this machine belongs to, local for one of its own",
    )
    launcher.add_argument(
        "--no-wait", dest="wait", action="store_false", help="with Slurm: submit, and do not stay to watch"
    )
    slurm = parser.add_argument_group("what Slurm is asked for")
    slurm.add_argument("--slurm-partition", metavar="P", help="default: the site's, like the next two")
    slurm.add_argument("--slurm-account", metavar="A", help="who pays")
    slurm.add_argument("--slurm-time", metavar="4:00:00", help="time limit of a task, which is started again after it")
    slurm.add_argument(
        "--slurm-extra",
        metavar="K=V",
        action="append",
        default=[],
        help="any option of sbatch, as mem=64G or gres=gpu:a100:1; repeatable",
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
    how = _launch(options)
    if options.dry_run:
        print_plan(request)
        if how is not None:
            from icrbench.launch.preview import print_launch

            print_launch(request, arguments, how)
        return 0
    if how is not None:
        from icrbench.launch.run import launch

        return launch(request, arguments, how, quiet=options.quiet)
    return run(request, quiet=options.quiet)


def _launch(options: argparse.Namespace) -> "Launch | None":
    """Return how the run is to be spread; None for this process alone."""
    from icrbench.launch.batch_script import Slurm
    from icrbench.launch.how import Launch

    launcher = options.launcher or ("local" if options.workers is not None else None)
    asked = Slurm(options.slurm_partition, options.slurm_account, options.slurm_time, options.slurm_extra)
    if launcher != "slurm" and (asked != Slurm(extra=[]) or not options.wait):
        raise UserError("--no-wait and the options that begin with --slurm are for --launcher slurm: add it.")
    if launcher != "ray" and options.ray_address is not None:
        raise UserError("--ray-address is for --launcher ray: add it.")
    if launcher is None:
        return None
    if options.share is not None:
        raise UserError("--share is for runs without a launcher: leave out --launcher and --workers, or --share.")
    return Launch(
        launcher,
        options.workers,
        options.gpus_per_model,
        options.retries,
        options.wait,
        options.ray_address or "auto",
        asked,
    )
