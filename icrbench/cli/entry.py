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
from icrbench.util.errors import UserError

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
            if getattr(options, "methods_dir", None) is not None:
                from icrbench.registry import import_folder

                import_folder(options.methods_dir)
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

    analyse = commands.add_parser("analyse", help="look into fitted methods: layers, heads, words, time")
    _add_run_options(analyse, theory=True)
    analyse.set_defaults(command=_analyse)

    explain = commands.add_parser("explain", help="what a fitted method does to one input")
    explain.add_argument("text", nargs="?", help="for the one field of the task's template")
    explain.add_argument("--task", default="sst2", help="whose template and options are used (default: sst2)")
    explain.add_argument(
        "--field", action="append", default=[], metavar="NAME=TEXT", help="a field or answer by name; repeatable"
    )
    explain.add_argument("--model", "--models", required=True, help="a name, hub id, folder or .gguf file")
    _add_fit(explain)
    explain.add_argument("--json", action="store_true", help="print json")
    explain.add_argument("--figure", type=_path, metavar="FILE", help="also draw it, as .pdf or .png")
    explain.add_argument("--tasks-dir", type=_path, help="folder with task files of your own")
    _add_methods_dir(explain)
    explain.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    explain.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU, else bfloat16)")
    explain.set_defaults(command=_explain)

    listing = commands.add_parser("list", help="what there is to choose from")
    listing.add_argument("what", choices=["methods", "models", "tasks", "experiments"])
    listing.add_argument("--tasks-dir", type=_path, help="folder with task files of your own")
    _add_methods_dir(listing)
    listing.set_defaults(command=_list)

    report = commands.add_parser("report", help="leaderboard of a results folder, or tables by name")
    report.add_argument("folder", type=_path, help="folder a run wrote to")
    report.add_argument("--out", type=_path, help="where the files go (default: the same folder)")
    report.add_argument("--table", metavar="NAMES", help="tables by name (`icrbench list experiments`), or all")
    report.add_argument("--figures", action="store_true", help="draw OUT/figures/*.pdf and .png")
    report.add_argument("--compare-paper", action="store_true", help="set the published numbers beside the tables")
    report.add_argument(
        "--set", action="append", default=[], metavar="M.H=V", help="as in the run whose tables are wanted; repeatable"
    )
    report.set_defaults(command=_report)

    compare = commands.add_parser("compare", help="two methods against each other, task by task")
    compare.add_argument("folder", type=_path, help="folder a run wrote to")
    compare.add_argument("first", metavar="METHOD_A", help="a label of the leaderboard, as icr:rank=4")
    compare.add_argument("second", metavar="METHOD_B", help="the label to judge it by")
    compare.add_argument("--model", help="only this model (default: all)")
    compare.set_defaults(command=_compare)

    export = commands.add_parser("export", help="results in the format of another project")
    export.add_argument("folder", type=_path, help="folder a run wrote to")
    export.add_argument("--format", required=True, choices=["every_eval_ever"], help="every_eval_ever: schema 0.3.0")
    export.add_argument("--out", type=_path, required=True, help="folder that gets data/icrbench/...")
    export.add_argument("--organization", default="unknown", help="who ran the evaluations (default: unknown)")
    export.set_defaults(command=_export)

    lm_eval = commands.add_parser(
        "lm-eval",
        help="any method under lm-evaluation-harness",
        usage="icrbench lm-eval --model MODEL [--method METHOD] [--out OUT] --tasks TASKS [flags of lm_eval run]",
        allow_abbrev=False,
    )
    lm_eval.add_argument("--model", required=True, help="a name, hub id, folder or .gguf file")
    _add_fit(lm_eval)
    _add_methods_dir(lm_eval)
    lm_eval.set_defaults(command=_lm_eval)

    demo = commands.add_parser("demo", help="a first leaderboard on the bundled rows, in minutes")
    demo.add_argument("--out", type=_path, default=Path("runs/demo"))
    demo.set_defaults(command=_demo)
    return parser


def _add_fit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--method", help="as --methods takes it, icr or icr:rank=4; not needed beside --artifact")
    parser.add_argument("--out", type=_path, help="results folder of a run that fitted the method")
    parser.add_argument("--artifact", type=_path, help="instead, the fit itself: OUT/fitted/METHOD-KEY")


def _add_methods_dir(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    parser.add_argument("--methods-dir", type=_path, help="folder with method files of your own")


def _add_run_options(run: argparse.ArgumentParser, *, theory: bool = False) -> None:
    what = run.add_argument_group("what to run")
    rows = what.add_mutually_exclusive_group(required=True)
    rows.add_argument("--methods", help="all, or names joined by commas; icr:rank=4 sets a hyperparameter")
    rows.add_argument("--experiment", help="the methods of a table: names from `icrbench list experiments`, or all")
    if theory:
        rows.add_argument(
            "--theory", action="store_true", help="PCA on synthetic data with a known answer; needs only --out"
        )
    # --theory needs none; beside methods, the request refuses an empty one.
    what.add_argument(
        "--models", required=not theory, default="", help="names, hub ids, folders or .gguf files, joined by commas"
    )
    what.add_argument("--tasks", help="all (default), roles (id, near_ood, far_ood) or names, joined by commas")
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
    _add_methods_dir(what)
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
    from icrbench.run.running import dry_run, request, run

    asked = request(options)
    return dry_run(asked) if options.dry_run else run(asked, quiet=options.quiet)


def _analyse(options: argparse.Namespace) -> int:
    if options.theory:
        from icrbench.analysis.command import analyse_theory

        if options.models or options.tasks or options.seeds:
            raise UserError("--theory draws data of its own: leave out --models, --tasks and --seeds.")
        paths = [analyse_theory(options.out)]
    else:
        from icrbench.run.running import analyse, request

        paths = analyse(request(options), quiet=options.quiet)
    print("written: " + ", ".join(map(str, paths)), file=sys.stderr)
    return 0


def _explain(options: argparse.Namespace) -> int:
    from icrbench.analysis.explaining import run_explain

    run_explain(options)
    return 0


def _demo(options: argparse.Namespace) -> int:
    from icrbench.report import print_report, write_report
    from icrbench.run.running import request, run

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
    from icrbench.report import report

    out = options.out or options.folder
    if options.figures:
        return _figures(options.folder, out)
    if options.table is not None or options.compare_paper:
        from icrbench.report.tables import write_tables

        names = "all" if options.table is None else options.table
        written = write_tables(options.folder, out, names, options.set, compare=options.compare_paper)
        print(f"written: {len(written)} files in {out / 'tables'}", file=sys.stderr)
        return 0
    paths = report(options.folder, out)
    print("written: " + ", ".join(map(str, paths)), file=sys.stderr)
    return 0


def _figures(folder: Path, out: Path) -> int:
    from icrbench.report.figures import write_figures

    drawn = write_figures(folder, out)
    for sentence in drawn.missing:
        print(f"icrbench: {sentence}", file=sys.stderr)
    print(f"written: {len(drawn.paths)} files in {out / 'figures'}", file=sys.stderr)
    return 0


def _compare(options: argparse.Namespace) -> int:
    from icrbench.report.comparison import print_comparison

    terminal = sys.stdout.isatty()
    print_comparison(options.folder, options.first, options.second, options.model, terminal=terminal)
    return 0


def _export(options: argparse.Namespace) -> int:
    from icrbench.report.every_eval_ever import export

    done = export(options.folder, options.out, options.organization)
    left_out = [f"{done.failed} failed cells"] if done.failed else []
    left_out += [f"{done.demo} cells on demonstration rows"] if done.demo else []
    ending = f" (left out: {' and '.join(left_out)})" if left_out else ""
    print(f"written: {len(done.files)} evaluations below {options.out}{ending}")
    return 0


def _lm_eval(options: argparse.Namespace) -> int:
    from icrbench.lm_eval.command import evaluate

    return evaluate(options.model, options.method, options.out, options.artifact, options.passed_on)


def _list(options: argparse.Namespace) -> int:
    from icrbench.cli.list import listing

    print(listing(options.what, options.tasks_dir))
    return 0
