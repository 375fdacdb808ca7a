"""The batch script of a run under Slurm: a job array, each task of which runs one share."""

import inspect
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icrbench.runner.request import Request
from icrbench.runner.standing import FOLDER
from icrbench.util.errors import UserError, shown

OTHER_NAMES = {"settings": "set"}
"""Arguments of `Request.build` whose flag is called otherwise."""
OUT_OF_TIME = 124
"""Exit code of a script whose time was up, as of timeout(1)."""
NOT_A_SHARES = ("share", "command")
_OWN = ("array", "output", "wrap")
"""Options of sbatch that are not the user's to set: they say which shares there are, and what runs."""

SCRIPT = """\
#!/bin/bash
{directives}

# Each task runs one of {shares} shares of a run. The results folder keeps what is done, so a task that is started again
# goes on where it stopped.
export OMP_NUM_THREADS="${{OMP_NUM_THREADS:-$SLURM_CPUS_ON_NODE}}"

late=
trap 'late=yes; kill -TERM "$run"' USR2  # the time limit is near: an orderly end
{command} --share "$SLURM_ARRAY_TASK_ID/{shares}" &
run=$!
wait "$run"; code=$?
[ -z "$late" ] || {{ wait "$run"; code={out_of_time}; }}

# Out of time, or died: start again, unless that was done so often already. Up to 2 they are the run's own ends.
if [ "$code" -gt 2 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {retries} ]; then
  scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}" && sleep 600  # in which Slurm ends this start
fi
exit "$code"
"""


@dataclass(frozen=True)
class Slurm:
    """What Slurm is asked for, beside GPUs.

    Attributes:
        partition, account, time: as sbatch takes them; None for the site's default.
        extra: further options of sbatch, ``mem=64G`` or ``exclusive``; they come before all others.
    """

    partition: str | None = None
    account: str | None = None
    time: str | None = None
    extra: Sequence[str] = ()

    def options(self, gpus: int) -> dict[str, str | None]:
        """Return sbatch's options by name; None for one without a value.

        Args:
            gpus: of a task, unless ``extra`` says it.

        Raises:
            UserError: if one is no option, or not the user's to set.
        """
        asked: dict[str, str | None] = {}
        for text in self.extra:
            name, equals, given = text.partition("=")
            if not re.fullmatch(r"[a-z][a-z-]*", name):
                raise UserError(f"--slurm-extra takes an option of sbatch, as mem=64G, not {shown(text)}.")
            if name in _OWN:
                raise UserError(f"--slurm-extra cannot set {name}: icrbench does; --workers says how many tasks.")
            asked[name] = given if equals else None
        named = {"partition": self.partition, "account": self.account, "time": self.time}
        if gpus and not any(name.startswith(("gpus", "gres")) for name in asked):
            named["gpus"] = str(gpus)
        found = {**{name: value for name, value in named.items() if value is not None}, **asked}
        for name, value in found.items():
            if value is not None and not re.fullmatch(r"[^\s\"\\]+", value):
                raise UserError(f"sbatch takes no {shown(value)} for {name}: leave out spaces, quotes and backslashes.")
        return found


def batch_script(
    command: str, out: Path, shares: int, options: Mapping[str, str | None], retries: int, only: int | None = None
) -> str:
    """Return the script.

    Args:
        command: that runs the whole, as `share_command` says it.
        out: results folder.
        shares: how many there are.
        options: of sbatch.
        retries: how often a task is started again at most.
        only: the one share to run; None for all.
    """
    log = str((out / FOLDER).absolute()).replace("%", "%%") + "/share-%a.log"
    directives = {
        "job-name": "icrbench",
        "array": f"1-{shares}" if only is None else str(only),
        "chdir": str(Path.cwd()),
        "output": log,
        "open-mode": "append",
        "requeue": None,
        "signal": "B:USR2@120",
        **options,
    }
    return SCRIPT.format(
        directives="\n".join(f"#SBATCH --{name}{_value(value)}" for name, value in directives.items()),
        command=f"{shlex.quote(sys.executable)} -P -m {command}",
        shares=shares,
        retries=retries,
        out_of_time=OUT_OF_TIME,
    )


def share_command(arguments: Mapping[str, Any]) -> str:
    """Return the command line whose arguments of `Request.build` these are, without its share."""
    defaults = inspect.signature(Request.build).parameters
    words = ["icrbench", "run"]
    for name, value in arguments.items():
        if name in NOT_A_SHARES or value == defaults[name].default or value in (None, []):
            continue
        flag = f"--{OTHER_NAMES.get(name, name).replace('_', '-')}"
        if value is True:
            words.append(flag)
        elif value is False:
            words.append(f"--no-{name}")
        elif name == "settings":
            words += [word for setting in value for word in (flag, str(setting))]
        else:
            words.append(f"{flag}={','.join(map(str, value)) if isinstance(value, list) else value}")
    return shlex.join(words)


def _value(value: str | None) -> str:
    if value is None:
        return ""
    if re.fullmatch(r"[\w./:@%,+=-]+", value):
        return f"={value}"
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'="{escaped}"'
