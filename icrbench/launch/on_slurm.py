"""A run under Slurm: submitted as one job array of shares, watched, and told of at the end."""

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from icrbench.launch import slurm
from icrbench.launch.batch_script import batch_script, share_command
from icrbench.launch.how import Launch
from icrbench.launch.shares import Share, Shares
from icrbench.protocol import Datasets
from icrbench.runner.estimate import Costs
from icrbench.runner.plan import Unit
from icrbench.runner.request import Request
from icrbench.runner.shares import deal
from icrbench.runner.standing import FOLDER, Reporter
from icrbench.store.records import by_protocol
from icrbench.store.store import Store
from icrbench.util.errors import UserError
from icrbench.util.files import write_atomic
from icrbench.util.progress import say

POLL = 5.0  # seconds between two looks
SHOWN = 5  # cells named in a sentence
SCRIPT = "slurm.sh"


class SlurmRun:
    """A run, cut into shares.

    Args:
        request: what to run.
        arguments: of `Request.build` that it was built from.
        how: with how many shares, and what Slurm is asked for.
        units: of the plan, the same for every model.
        datasets: for the estimates.

    Attributes:
        script: the batch script.

    Raises:
        UserError: if the number of workers is not given, or options are none.
    """

    def __init__(
        self,
        request: Request,
        arguments: Mapping[str, Any],
        how: Launch,
        units: Sequence[Unit],
        datasets: Datasets,
    ) -> None:
        if how.workers is None:
            raise UserError("--launcher slurm needs --workers: how many tasks its job array has.")
        self._request, self._retries = request, how.retries
        number = max(1, min(how.workers, len(units) * len(request.models)))
        spread = {"device_map": "auto"} if how.gpus_per_model > 1 and request.device_map is None else {}
        self._command = share_command({**arguments, **spread})
        self._options = how.slurm.options(0 if request.device == "cpu" else how.gpus_per_model)
        self.script = self._script(number, how.retries)
        costs = Costs(datasets)
        tokens = [sum(costs.cells(unit)) for unit in units]
        self.shares = [
            Share(
                place,
                f"{self._command} --share {place}/{number}",
                cells=[
                    (str(model), cell)
                    for model, places in zip(request.models, dealt, strict=True)
                    for own in places
                    for cell in units[own].cells
                ],
                tokens=sum(tokens[own] for places in dealt for own in places),
            )
            for place, dealt in enumerate(deal(units, len(request.models), datasets, number), start=1)
        ]

    @property
    def resources(self) -> str:
        """What each task gets."""
        asked = [name if value is None else f"{name}={value}" for name, value in self._options.items()]
        threads = os.environ.get("OMP_NUM_THREADS") or "as many as Slurm gives it cores"
        return f"asked of Slurm: {', '.join(asked) or 'nothing'}; threads: {threads}"

    def leave(self) -> int:
        """Submit, say how to watch, and stay no longer; returns 0.

        Raises:
            UserError: if Slurm refuses the job.
        """
        job = self._submit()
        say(f"watch it with `icrbench status {self._request.out} --watch`, cancel it with `scancel {job}`")
        return 0

    def watch(self, *, quiet: bool) -> int:
        """Submit, and stay until all shares have ended; returns 0, or 1 if a cell failed or could not be had.

        Ctrl-C cancels the job.

        Raises:
            UserError: if Slurm refuses the job, or does not answer for long.
        """
        following = Shares(self.shares, self._request.out, self._submit_again, self._retries, say)
        self._submit()
        out, command = self._request.out, self._request.command
        reporter = Reporter(out, command, following.progress, lines=not quiet and not sys.stderr.isatty())
        try:
            while not following.look():
                reporter.update()
                time.sleep(POLL)
            following.settle()
        except KeyboardInterrupt:
            if jobs := following.jobs:
                wrong = slurm.cancel(jobs)
                say(f"Slurm job {' '.join(jobs)} {f'could not be cancelled: {wrong}' if wrong else 'is cancelled'}.")
            raise
        finally:
            reporter.update(over=True)
        return self._close(following)

    def _submit(self) -> str:
        """Write the script into the results folder and submit it; returns the job."""
        folder = self._request.out / FOLDER
        write_atomic(folder / SCRIPT, self.script)
        job = slurm.submit(self.script)
        for share in self.shares:
            share.job = job
        say(f"submitted as Slurm job {job}, {len(self.shares)} shares; script and logs in {folder}")
        return job

    def _script(self, number: int, retries: int, only: int | None = None) -> str:
        return batch_script(self._command, self._request.out, number, self._options, retries, only)

    def _submit_again(self, share: Share, retries: int) -> str:
        return slurm.submit(self._script(len(self.shares), retries, share.number))

    def _close(self, following: Shares) -> int:
        """Say how it went, and name what there is no result of."""
        progress = following.progress()
        incomplete = [share for share in self.shares if share.ending]
        failed, absent = self._without_result(incomplete)
        for sentence in failed[:SHOWN]:
            say(f"failed: {sentence}")
        if incomplete and not failed and not absent:  # older records stand where theirs would be
            absent = [f"cells of {share}" for share in incomplete]
        if absent:
            names = ", ".join(absent[:SHOWN]) + (" and others" if len(absent) > SHOWN else "")
            say(f"could not be had: {names}; the same command tries them again.")
        for own in following.refused():
            say(f"{own['what']}: {own['why']}")
        say(
            f"{progress['done']} cells run, {progress['kept']} already there, {progress['failed']} failed of"
            f" {progress['cells']}; results in {self._request.out}"
        )
        return 1 if incomplete else 0

    def _without_result(self, shares: Sequence[Share]) -> tuple[list[str], list[str]]:
        """Return a sentence for each cell of shares that failed, and the names of those that there is nothing of."""
        store, rules = Store(self._request.out), self._request.rules
        records = [] if store.empty else by_protocol(store.records())
        known = {
            (own["cell"]["model"], own["cell"]["label"], own["cell"]["task"], own["cell"]["seed"]): own
            for own in sorted(records, key=lambda own: own["finished"])
            if own["cell"]["protocol"] == rules.protocol
            and own["cell"]["clean"] == rules.clean
            and own["data"]["limit"] == rules.limit
        }
        failed, absent = [], []
        for model, cell in (own for share in shares for own in share.cells):
            record = known.get((model, cell.label, cell.task, cell.seed))
            if record is None:
                absent.append(f"{model} {cell}")
            elif record["error"] is not None:
                failed.append(f"{model} {cell}: {record['error']['message']}")
        return failed, absent
