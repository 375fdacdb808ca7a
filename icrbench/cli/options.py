"""What the commands' parsers share: kinds of values, groups of options, and errors in one sentence."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from icrbench.util.errors import shown

if TYPE_CHECKING:
    from argparse import _ArgumentGroup, _SubParsersAction

    Subcommands = _SubParsersAction["Parser"]
    Options = argparse.ArgumentParser | _ArgumentGroup


LONGEST = 2000  # characters of a message
MOST = 10**9  # of a number: more rows, or a larger batch, than there can be


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one sentence, without the usage text."""

    def error(self, message: str) -> NoReturn:
        """Print the message and exit with 2."""
        self.exit(2, f"{self.prog}: {one_line(message)}; `{self.prog} --help` lists the options.\n")


def one_line(message: object) -> str:
    """Join the lines of a message, and cut one that nobody would read."""
    line = " ".join(str(message).splitlines())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}…"


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Add what answers are corrected by."""
    parser.add_argument(
        "--calibrate",
        choices=["none", "cc", "dc", "bc"],
        default="none",
        help="correct every answer for the method's prior: contextual, domain-context or batch calibration",
    )


def positive(text: str) -> int:
    """Read a whole number of at least 1."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 and at most {MOST}, not {shown(text)}")
    return number


def whole(text: str) -> int:
    """Read a whole number of at least 0."""
    return 0 if text.strip() == "0" else positive(text)


def rows(text: str) -> "int | Literal['all']":
    """Read a number of rows, or ``all``."""
    return "all" if text == "all" else positive(text)


def seeds(text: str) -> list[int]:
    """Read whole numbers joined by commas."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(abs(number) <= MOST for number in numbers):
        raise argparse.ArgumentTypeError(f"must be whole numbers of at most {MOST} joined by commas, not {shown(text)}")
    return numbers


def path(text: str) -> Path:
    """Read a path that is not empty."""
    if not text.strip():  # an empty variable of a script: not a wish to write in the current folder
        raise argparse.ArgumentTypeError("must name a folder, but is empty")
    parts = [len(os.fsencode(part)) for part in Path(text).parts]
    if "\0" in text or sum(parts) + len(parts) >= 4096 or max(parts, default=0) > 255:
        raise argparse.ArgumentTypeError(f"no file can be named {shown(text)}")
    return Path(text)


def add_folders(parser: "Options") -> None:
    """Add the folders of the user's own tasks and methods."""
    parser.add_argument("--tasks-dir", type=path, help="folder with task files of your own")
    add_methods_dir(parser)


def add_methods_dir(parser: "Options") -> None:
    """Add the folder of the user's own methods."""
    parser.add_argument("--methods-dir", type=path, help="folder with method files of your own")


def import_methods(options: argparse.Namespace) -> None:
    """Import the methods of ``--methods-dir``, where it is given."""
    if options.methods_dir is not None:
        from icrbench.registry import import_folder

        import_folder(options.methods_dir)


def add_fit(parser: argparse.ArgumentParser) -> None:
    """Add the ways to name a fitted method."""
    parser.add_argument("--method", help="as --methods takes it, icr or icr:rank=4; not needed beside --artifact")
    parser.add_argument("--out", type=path, help="results folder of a run that fitted the method")
    parser.add_argument("--artifact", type=path, help="instead, the fit itself: OUT/fitted/METHOD-KEY")


def add_device(parser: "Options") -> None:
    """Add where and in which number type a model is loaded."""
    parser.add_argument("--device", help="torch device (default: the first GPU, else the CPU)")
    parser.add_argument("--dtype", help="float32, bfloat16 or float16 (default: float32 on a CPU, else bfloat16)")
    add_quantize(parser)
    add_trust(parser)


def add_quantize(parser: "Options") -> None:
    """Add the quantisation of weights."""
    parser.add_argument(
        "--quantize", choices=["int8", "int4"], help="quantise the weights of the model's linear layers with torchao"
    )


def add_trust(parser: "Options") -> None:
    """Add the permission to run a model's own code."""
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run code that comes with a model or its tokenizer"
    )


def add_run_options(parser: argparse.ArgumentParser, *, theory: bool = False) -> None:
    """Add what a `Request` is built from.

    Args:
        parser: of a command.
        theory: also take ``--theory``, which needs no model.
    """
    what = parser.add_argument_group("what to run")
    what.add_argument("--methods", help="all, or names joined by commas; icr:rank=4 sets a hyperparameter")
    what.add_argument(
        "--experiment",
        help="the methods of a table: names from `icrbench list experiments`, or all; beside --methods, one that varies"
        " templates, orders or demonstrations",
    )
    if theory:
        what.add_argument(
            "--theory", action="store_true", help="PCA on synthetic data with a known answer; needs only --out"
        )
    # --theory needs none; beside methods, the request refuses an empty one.
    what.add_argument(
        "--models", required=not theory, default="", help="names, hub ids, folders or .gguf files, joined by commas"
    )
    what.add_argument(
        "--tasks", help="all (default), roles (id, near_ood, far_ood, open_ended) or names, joined by commas"
    )
    what.add_argument("--seeds", type=seeds, help="numbers joined by commas (default: the preset's)")
    what.add_argument("--limit", type=rows, help="test rows a task, or all (default: the preset's)")
    what.add_argument("--preset", default="paper", help="sizes of the run: paper (default), cpu or demo")
    what.add_argument(
        "--set",
        action="append",
        default=[],
        dest="settings",
        metavar="M.H=V",
        help="set a hyperparameter, as icr.rank=4; repeatable",
    )
    what.add_argument("--protocol", default="paper", help="paper (default) or in_task")
    what.add_argument("--clean", action="store_true", help="drop train rows that share texts with test splits")
    add_methods_dir(what)
    what.add_argument(
        "--chat-template", action="store_true", help="put every prompt into the model's chat template, as a user's turn"
    )
    data = parser.add_argument_group("data")
    where = data.add_mutually_exclusive_group()
    where.add_argument("--data-dir", type=path, help="folder with TASK/train.jsonl and TASK/test.jsonl")
    where.add_argument("--demo", action="store_true", help="the bundled demonstration rows (never for results)")
    data.add_argument("--tasks-dir", type=path, help="folder with task files of your own")
    how = parser.add_argument_group("how")
    how.add_argument("--out", type=path, default=Path("runs/default"), help="results folder; a rerun resumes it")
    how.add_argument("--cache-dir", type=path, help="intermediate artefacts (default: the user's cache folder)")
    add_device(how)
    how.add_argument("--device-map", help="spread a model over devices with accelerate, for example auto")
    how.add_argument("--batch-size", type=positive, help="most prompts a batch (default: from free memory)")
    how.add_argument("--dry-run", action="store_true", help="print the cells and an estimate of their cost")
    how.add_argument("--quiet", action="store_true", help="no progress bars")


REQUEST = (
    "models",
    "methods",
    "experiment",
    "tasks",
    "seeds",
    "limit",
    "preset",
    "settings",
    "protocol",
    "clean",
    "data_dir",
    "demo",
    "tasks_dir",
    "methods_dir",
    "out",
    "cache_dir",
    "device",
    "dtype",
    "device_map",
    "quantize",
    "trust_remote_code",
    "batch_size",
    "chat_template",
    "priors",
    "share",
)
"""Options that `Request.build` takes under the same names."""


def request_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """Return the arguments of `Request.build` that the options of `add_run_options` stand for."""
    return {**{name: getattr(options, name) for name in REQUEST if name in options}, "command": options.line}
