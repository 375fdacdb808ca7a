"""Names that are wrong, said before torch is imported, which takes seconds."""

import argparse
import sys
from importlib import metadata

from icrbench import method_spec
from icrbench.data.find_tasks import get_tasks
from icrbench.data.rules import PROTOCOLS
from icrbench.experiments import get_experiments
from icrbench.model_names import check_model
from icrbench.runner.presets import preset
from icrbench.util.errors import unknown


def check_names(options: argparse.Namespace) -> None:
    """Check every name among the options of a run.

    `Request.build` checks everything again, from Python too; where torch is there already, this saves nothing.

    Raises:
        UserError: for the first name that is not known, with the nearest known ones.
    """
    if "torch" in sys.modules:
        return
    preset(options.preset)
    if options.protocol not in PROTOCOLS:
        raise unknown("protocol", options.protocol, PROTOCOLS)
    for model in options.models.split(","):
        if model.strip():
            check_model(model.strip())
    if options.tasks is not None:
        get_tasks(options.tasks, options.tasks_dir)
    if options.experiment is not None:
        get_experiments(options.experiment)
    # With further methods installed, only an import tells which there are.
    if options.methods is not None and not metadata.entry_points(group=method_spec.GROUP):
        known = method_spec.declared_names(options.methods_dir)
        for text in options.methods.split(","):
            name, _ = method_spec.split(text)
            if name not in ("", "all", *known):
                raise unknown("method", name, known)
