"""``icrbench export``: results, or a fit, in the format of another project."""

import argparse
from typing import TYPE_CHECKING

from icrbench.cli.options import path

if TYPE_CHECKING:
    from icrbench.cli.options import Subcommands

FITS = ("peft", "gguf-control-vector")


def add(commands: "Subcommands") -> None:
    """Add the command."""
    parser = commands.add_parser("export", help="results, or a fit, in the format of another project")
    parser.add_argument("folder", type=path, help="folder a run wrote to; or a fit's, OUT/fitted/METHOD-KEY")
    parser.add_argument(
        "--format",
        required=True,
        choices=["every_eval_ever", *FITS],
        help="results: every_eval_ever (schema 0.3.0); a fit: peft (an adapter), gguf-control-vector (for llama.cpp)",
    )
    parser.add_argument("--out", type=path, required=True, help="folder that is written; a file for a control vector")
    parser.add_argument("--organization", default="unknown", help="who ran the evaluations (default: unknown)")
    parser.add_argument("--model", help="of a fit, where its model is now (default: where it was)")
    parser.set_defaults(command=command)


def command(options: argparse.Namespace) -> int:
    """Write the files and say what was left out."""
    return _fit(options) if options.format in FITS else _results(options)


def _fit(options: argparse.Namespace) -> int:
    from icrbench.api.control_vector import write_control_vector
    from icrbench.api.fit import load_fit
    from icrbench.api.peft_adapter import write_adapter
    from icrbench.store.artefact import Artefact
    from icrbench.util.errors import UserError

    if options.out.exists():
        raise UserError(f"{options.out} is there already: name another --out.")
    fit = load_fit(options.folder, options.model or str(Artefact.read(options.folder).model["name"]))
    hint = (write_adapter if options.format == "peft" else write_control_vector)(fit, options.out)
    print(f"written: {options.out}" + (f"; {hint}" if hint else ""))
    return 0


def _results(options: argparse.Namespace) -> int:
    from icrbench.report.every_eval_ever import export

    done = export(options.folder, options.out, options.organization)
    left_out = [f"{done.failed} failed cells"] if done.failed else []
    left_out += [f"{done.demo} cells on demonstration rows"] if done.demo else []
    ending = f" (left out: {' and '.join(left_out)})" if left_out else ""
    print(f"written: {len(done.files)} evaluations below {options.out}{ending}")
    return 0
