"""``icrbench lm-eval``: lm-evaluation-harness's own command line, with a method of ours as the model."""

import argparse
import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, NoReturn

from lm_eval._cli.run import Run
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.utils import setup_logging

from icrbench.lm_eval.model import ICRBenchLM
from icrbench.util.errors import UserError
from icrbench.util.files import write_atomic

DEFAULT_OUT = Path("runs/default")


class _Parser(argparse.ArgumentParser):
    """lm-eval's parser, which says what is wrong in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"lm-eval: {message}; `lm_eval run --help` lists its flags.")


def evaluate(
    model: str,
    method: str | None,
    out: Path | None,
    artifact: Path | None,
    flags: Sequence[str],
    *,
    quantize: str | None = None,
    trust_remote_code: bool = False,
) -> int:
    """Evaluate with lm-eval.

    Args:
        model: as `load_backbone` takes it.
        method: a method as ``--methods`` takes it; not needed beside ``artifact``.
        out: results folder that has its fit, and gets lm-eval's results unless ``flags`` say otherwise.
        artifact: instead, folder of the fit.
        flags: everything else, passed on to lm-eval.
        quantize: ``int8`` or ``int4``.
        trust_remote_code: run code that comes with the model.

    Raises:
        UserError: for anything wrong that the user can put right.
    """
    setup_logging()
    asked = _parsed(flags)
    config = _checked(lambda: EvaluatorConfig.from_cli(argparse.Namespace(**vars(asked))))
    if not config.tasks:
        raise UserError("no task asked for: name some with --tasks; `lm_eval ls tasks` shows lm-eval's.")
    ours = {"pretrained": model, "method": method, "out": out, "artifact": artifact}
    given = {name: str(value) for name, value in ours.items() if value is not None}
    for name in (*ours, "batch_size", "device", "max_batch_size", "quantize", "trust_remote_code"):
        if name in config.model_args:
            raise UserError(f"--model_args {name}=… has a flag of its own: use that.")
    lm = ICRBenchLM(
        **given,
        **config.model_args,
        quantize=quantize,
        trust_remote_code=trust_remote_code,
        device=asked.device,
        batch_size=config.batch_size,
        max_batch_size=config.max_batch_size or 64,
    )
    if lm.shows_demonstrations and config.num_fewshot:
        raise UserError(f"{lm.artefact.method.name} brings demonstrations of its own: leave out --num_fewshot.")
    output = _output_folder(Path(config.output_path or (out or DEFAULT_OUT) / "lm_eval"), lm)
    asked.model = "icrbench"
    asked.model_args = {**given, **config.model_args}
    asked.output_path = str(output)
    asked.device = str(lm.device)  # what it is, where lm-eval would write down its own default
    asked.include_path = config.include_path or str(resources.files("icrbench.lm_eval.example_tasks"))
    asked.use_cache = f"{config.use_cache}-{lm.identity_hash}" if config.use_cache else None
    before = set(output.rglob("results_*.json"))
    with ICRBenchLM.prepared(lm):
        _checked(lambda: asked.func(asked))
    if not set(output.rglob("results_*.json")) - before:
        raise UserError(f"lm-eval could not save its results in {output}: see its messages above.")
    print(f"written: {output}")
    return 0


def _parsed(flags: Sequence[str]) -> argparse.Namespace:
    parser = _Parser(prog="icrbench lm-eval", allow_abbrev=False)
    Run.create(parser.add_subparsers(parser_class=_Parser))
    asked = parser.parse_args(["run", *flags])
    if asked.model is not None:
        raise UserError("lm-eval: -M is not for here: name the model with --model, which is a model of ours.")
    return asked


def _checked(step: Callable[[], Any]) -> Any:
    """Run a step of lm-eval's; what it says about wrong flags and tasks becomes a UserError."""
    try:
        return step()
    except (ValueError, TypeError, FileNotFoundError) as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        source = Path(trace.tb_frame.f_code.co_filename) if trace is not None else Path()
        if "lm_eval/config" in source.as_posix():
            raise UserError(f"lm-eval: {str(error).rstrip('.')}.") from error
        raise


def _output_folder(folder: Path, lm: ICRBenchLM) -> Path:
    """Where results go: a folder of this method alone, since lm-eval names folders after the model."""
    if folder.suffix == ".json":
        raise UserError(f"--output_path {folder} is a file: give a folder, which methods can share.")
    mine = folder / lm.name
    probe = mine / f"probe-{os.getpid()}"
    write_atomic(probe, b"")  # lm-eval evaluates for hours and then goes on without saving
    probe.unlink()
    return mine
