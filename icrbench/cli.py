"""The command line."""

import argparse
import math
import os
import shlex
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from icrbench import __version__
from icrbench.errors import UserError

INTERRUPTED = 2  # like any run that did not do what was asked; what is finished is kept


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {_one_line(message)}; `{self.prog} --help` lists the options.\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0 done, 1 some cells failed, 2 wrong input or interrupted."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = _parse(arguments)
    with warnings.catch_warnings():
        warnings.showwarning = _show_warning
        try:
            return int(options.command(options))
        except UserError as error:
            print(f"icrbench: {_one_line(error)}", file=sys.stderr)
            return 2
        except BrokenPipeError:  # the reader of our output went away, as `| head` does
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt:
            print(f"icrbench: interrupted; finished cells are kept, go on with: {options.line}", file=sys.stderr)
            return INTERRUPTED


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    print(f"icrbench: warning: {_one_line(message)}", file=sys.stderr)


def _one_line(message: object) -> str:
    return " ".join(str(message).splitlines())


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = _parser()
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:  # bytes of another encoding: they fit into no record
            parser.error(f"argument {argument!r} is not UTF-8 text: rename the file or folder")
    start = argparse.Namespace(line=shlex.join(["icrbench", *arguments]))
    options, rest = parser.parse_known_args(arguments, start)
    if rest and options.command is not _lm_eval:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    options.passed_on = rest
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="icrbench", description="Implicit in-context learning, measured honestly.")
    parser.add_argument("--version", action="version", version=f"icrbench {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)

    run = commands.add_parser("run", help="run methods x models x tasks x seeds into a results folder")
    _add_run_options(run)
    run.set_defaults(command=_run)

    listing = commands.add_parser("list", help="what there is to choose from")
    listing.add_argument("what", choices=["methods", "models", "tasks"])
    listing.add_argument("--tasks-dir", type=_path, help="folder with task files of your own")
    listing.set_defaults(command=_list)

    report = commands.add_parser("report", help="leaderboard of a results folder")
    report.add_argument("folder", type=_path, help="folder a run wrote to")
    report.add_argument("--out", type=_path, help="where the files go (default: the same folder)")
    report.set_defaults(command=_report)

    lm_eval = commands.add_parser(
        "lm-eval",
        help="any method under lm-evaluation-harness",
        usage="icrbench lm-eval --model MODEL [--method METHOD] [--artifact DIR] --tasks TASKS [flags of lm_eval run]",
        allow_abbrev=False,
    )
    lm_eval.add_argument("--model", required=True, help="a name, hub id, folder or .gguf file")
    lm_eval.add_argument("--method", help="its name; not needed beside --artifact")
    lm_eval.add_argument("--artifact", type=_path, help="fitted method, as a run leaves it in OUT/fitted/METHOD-KEY")
    lm_eval.set_defaults(command=_lm_eval)

    demo = commands.add_parser("demo", help="a first leaderboard on the bundled rows, in minutes")
    demo.add_argument("--out", type=_path, default=Path("runs/demo"))
    demo.set_defaults(command=_demo)
    return parser


def _add_run_options(run: argparse.ArgumentParser) -> None:
    what = run.add_argument_group("what to run")
    what.add_argument(
        "--methods", required=True, help="all, or names joined by commas; icr:rank=4 sets a hyperparameter"
    )
    what.add_argument("--models", required=True, help="names, hub ids, folders or .gguf files, joined by commas")
    what.add_argument("--tasks", default="all", help="all, roles (id, near_ood, far_ood) or names, joined by commas")
    what.add_argument("--seeds", help="numbers joined by commas (default: the preset's)")
    what.add_argument("--limit", type=_rows, help="test rows a task, or all (default: the preset's)")
    what.add_argument("--preset", default="paper", help="sizes of the run: paper (default), cpu or demo")
    what.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="M.H=V",
        help="set a hyperparameter, as icr.rank=4; repeatable",
    )
    what.add_argument("--protocol", default="paper", help="paper (default) or in_task")
    what.add_argument("--clean", action="store_true", help="drop train rows that share texts with test splits")
    data = run.add_argument_group("data")
    where = data.add_mutually_exclusive_group()
    where.add_argument("--data-dir", type=_path, help="folder with TASK/train.jsonl and TASK/test.jsonl")
    where.add_argument("--demo", action="store_true", help="the bundled demonstration rows (never for results)")
    data.add_argument("--tasks-dir", type=_path, help="folder with task files of your own")
    how = run.add_argument_group("how")
    how.add_argument("--out", type=_path, default=Path("runs/default"), help="results folder; a rerun resumes it")
    how.add_argument("--cache-dir", type=_path, help="intermediate artefacts (default: the user's cache folder)")
    how.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    how.add_argument("--device-map", help="spread a model over devices with accelerate, for example auto")
    how.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU, else bfloat16)")
    how.add_argument("--batch-size", type=_positive, help="most prompts a batch (default: from free memory)")
    how.add_argument("--dry-run", action="store_true", help="print the cells and an estimate of their cost")
    how.add_argument("--quiet", action="store_true", help="no progress bars")


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not '{text}'")
    return number


def _rows(text: str) -> float:
    """A number of rows; infinite for all of them."""
    return math.inf if text == "all" else _positive(text)


def _path(text: str) -> Path:
    if not text.strip():  # an empty variable of a script: not a wish to write in the current folder
        raise argparse.ArgumentTypeError("must name a folder, but is empty")
    return Path(text)


def _run(options: argparse.Namespace) -> int:
    from icrbench.running import dry_run, request, run  # slow imports, not needed to say what is wrong above

    asked = request(options)
    return dry_run(asked) if options.dry_run else run(asked, quiet=options.quiet)


def _demo(options: argparse.Namespace) -> int:
    from icrbench.report import print_report, write_report
    from icrbench.running import request, run

    line = [
        "run",
        "--methods",
        "zero_shot,few_shot,icr",
        "--models",
        "gemma-270m",
        "--demo",
        "--preset",
        "demo",
    ]
    asked = request(_parse([*line, "--out", str(options.out)]))
    code = run(asked, quiet=False)
    write_report(options.out, options.out)
    print()
    print_report(options.out)
    return code


def _report(options: argparse.Namespace) -> int:
    from icrbench.report import print_report, write_report

    paths = write_report(options.folder, options.out or options.folder)
    print_report(options.folder)
    print("written: " + ", ".join(map(str, paths)), file=sys.stderr)
    return 0


def _lm_eval(options: argparse.Namespace) -> int:
    from icrbench.lm_eval.command import evaluate

    return evaluate(options.model, options.method, options.artifact, options.passed_on)


def _list(options: argparse.Namespace) -> int:
    from icrbench.listing import listing

    print(listing(options.what, options.tasks_dir))
    return 0
