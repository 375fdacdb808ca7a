"""Which data a method may see: the one place where that is decided."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from icrbench.data import contamination
from icrbench.data.rules import Protocol, Rules, own_rows
from icrbench.data.sources import LocalDir, Source, TaskData, load, subsample
from icrbench.data.task import NO_LABEL, Example, Task
from icrbench.method import FitData, Method, Pool, Scope
from icrbench.util.errors import UserError


class Datasets:
    """The data of a run: test rows to score and train pools to fit on."""

    def __init__(
        self,
        tasks: Iterable[Task],
        domains: Iterable[Task],
        source: Source,
        rules: Rules,
        workspace: Path,
        known: Iterable[Task] = (),
    ) -> None:
        """Load what a run needs.

        Args:
            tasks: to score.
            domains: in-domain tasks that methods may learn from.
            source: where the data is.
            rules: how it is handed out.
            workspace: folder for intermediate artefacts.
            known: every task there is: cleaning looks at their test splits too, so that what is left of a train pool
                does not depend on which tasks a run scores. A data folder need not hold them all.
        """
        self._rules = rules
        self._workspace = workspace
        self.tasks = {task.name: task for task in tasks}
        domains = list(domains)
        self._domains = [task.name for task in domains]
        wanted = {**self.tasks, **{task.name: task for task in domains}}
        self.data: dict[str, TaskData] = {name: self._load(task, source) for name, task in wanted.items()}
        tests = [data.test for data in self.data.values()]
        if rules.clean:
            others = [task for task in known if task.name not in self.data and _is_there(task, source)]
            tests += [load(task, source).test for task in others]
        self._pools = {name: self._pool(data, tests) for name, data in self.data.items()}
        self._overlaps: dict[tuple[str, ...], dict[str, int]] = {}
        self._own_overlaps: dict[tuple[str, frozenset[str]], int] = {}

    def _load(self, task: Task, source: Source) -> TaskData:
        try:
            return load(task, source)
        except UserError as error:
            if task.name in self.tasks:
                raise
            way = ", or ask for --protocol in_task, where a task's own train rows do" * (
                self._rules.protocol == "paper"
            )
            problem = str(error).removesuffix(".")
            raise UserError(f"methods learn from task '{task.name}', which has role id: {problem}{way}.") from error

    def test(self, task: str) -> tuple[Example, ...]:
        """The rows to score: the same for every method and seed, so that results can be compared row by row."""
        return subsample(self.data[task].test, self._rules.limit, "limit", task)

    def for_fit(self, method: Method, task: str | None) -> FitData:
        """Return what ``fit`` may see.

        Args:
            method: the method.
            task: the task to be scored; only task-scope methods are fitted for it.
        """
        return FitData(self.pools(method, task), self.target(method, task), self._workspace)

    def applies(self, method: Method, task: str) -> bool:
        """Whether the method can be fitted for a task: one that needs rows of the task itself may not get any."""
        return not method.own_rows or self.target(method, task) is not None

    def target(self, method: Method, task: str | None) -> str | None:
        """Return the task whose own train split a fit sees; None for fits on the in-domain tasks, shared by many."""
        pools = self.pools(method, task)
        return task if method.scope is Scope.TASK and task in pools else None

    def pools(self, method: Method, task: str | None) -> Mapping[str, Pool]:
        """Return the train pools of a fit."""
        if method.scope is Scope.NONE:
            return {}
        mine = method.scope is Scope.TASK and task is not None
        own = mine and self._own_rows(str(task))
        names = [task] if own and task is not None else self._domains
        if not names:
            raise UserError("no in-domain task to learn from: add a task with role id.")
        return {name: self._pools[name] for name in names}

    def inputs(self, task: str) -> tuple[Example, ...] | None:
        """Return the inputs of a task's own train split, without labels; None where the protocol gives none."""
        if self._own_rows(task):
            return tuple(replace(example, label=NO_LABEL) for example in self._pools[task].train)
        return None

    def inputs_sha256(self, task: str) -> str | None:
        """Which inputs ``inputs`` gives."""
        return self._pools[task].sha256 if self._own_rows(task) else None

    def _own_rows(self, task: str) -> bool:
        """Whether anything of a task's own train split may be used."""
        return own_rows(self._rules.protocol, self.data[task].task.role)

    def overlap(self, method: Method, task: str) -> dict[str, int]:
        """Test rows of ``task`` that share texts with a pool the method sees, by ``"train->test"``; zeros left out."""
        pools = {name: pool.train for name, pool in self.pools(method, task).items()}
        key = (task, *pools)
        if key not in self._overlaps:  # seconds of work, and the same for every seed
            found = contamination.count(pools, {task: self.test(task)})
            self._overlaps[key] = {f"{pool}->{task}": both.test_rows for (pool, _), both in found.items()}
        return {pair: rows for pair, rows in self._overlaps[key].items() if rows}

    def overlap_of(self, train_ids: Collection[str], task: str) -> int:
        """Test rows of ``task`` that share a text with some of its own train rows."""
        key = (task, frozenset(train_ids))
        if train_ids and key not in self._own_overlaps:
            rows = tuple(example for example in self._pools[task].train if example.id in key[1])
            (found,) = contamination.count({task: rows}, {task: self.test(task)}).values()
            self._own_overlaps[key] = found.test_rows
        return self._own_overlaps.get(key, 0)

    def _pool(self, data: TaskData, tests: Sequence[Sequence[Example]]) -> Pool:
        train = data.train
        if self._rules.clean:
            train = contamination.clean(train, tests)
            if not train:
                raise UserError(f"nothing is left of the train rows of '{data.task.name}' with --clean.")
        # The texts as they are: content hashes overlook case and spaces, which a model does not.
        content = json.dumps([[dict(example.fields), example.options, example.label] for example in train])
        return Pool(data.task, train, hashlib.sha256(content.encode()).hexdigest()[:16])


def _is_there(task: Task, source: Source) -> bool:
    """Whether a data folder has this task; other sources have all."""
    return not isinstance(source, LocalDir) or (source.path / task.name).is_dir()


def needed_domains(
    known: Iterable[Task], tasks: Iterable[Task], methods: Iterable[Method], protocol: Protocol
) -> list[Task]:
    """Return the in-domain tasks whose train pools some method of a run will ask for."""
    scopes = {method.scope for method in methods}
    out_of_domain = any(task.role != "id" for task in tasks)
    wanted = Scope.UNIVERSAL in scopes or (Scope.TASK in scopes and protocol == "paper" and out_of_domain)
    return [task for task in known if task.role == "id"] if wanted else []
