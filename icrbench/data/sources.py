"""One loader for every place data comes from: the hub, a local folder, the bundled demonstration rows."""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from icrbench.data.find_tasks import builtin_folder
from icrbench.data.rows import Rows, canonical_rows, read_rows, to_examples
from icrbench.data.task import Example, FileSource, HubSource, Task
from icrbench.util.errors import UserError

Split = Literal["train", "test"]


@dataclass(frozen=True)
class Hub:
    """Each task's own source: its Hugging Face dataset."""


@dataclass(frozen=True)
class LocalDir:
    """A folder holding ``<task>/{train,test}.jsonl`` (or ``.parquet``), with the hub's columns."""

    path: Path


@dataclass(frozen=True)
class Demo:
    """The few rows that come with the package, written for it: for a first run, never for a result."""


Source = Hub | LocalDir | Demo


@dataclass(frozen=True)
class Provenance:
    """Where the rows of a task came from, and exactly which they were."""

    kind: Literal["hub", "local", "demo"]
    location: str
    revision: str | None
    """The hub revision asked for; ``None`` for files."""
    resolved: str | None
    """The commit it stood for, whose rows these are; ``None`` for files, and where the hub could not be asked."""
    sha256: dict[str, str]
    """Per split: of the file's bytes, or for the hub of the rows as canonical JSON."""
    n_train: int
    """Train rows kept."""
    n_test: int
    train_dropped_in_test: int
    """Train rows left out because their content occurs in the test split."""


@dataclass(frozen=True)
class TaskData:
    """The two splits of a task, whole."""

    task: Task
    train: tuple[Example, ...]
    test: tuple[Example, ...]
    provenance: Provenance


def load(task: Task, source: Source) -> TaskData:
    """Load both splits; train rows whose content occurs in the whole test split are dropped and counted.

    A task whose YAML file names its own files is always read from those.

    Raises:
        UserError: if the data is missing, broken or unreachable; the sentence says what to do.
    """
    if isinstance(task.source, FileSource):
        if task.source.test.is_relative_to(builtin_folder()):
            return _task_data(task, "demo", "bundled", None, read_rows(task.source.train), read_rows(task.source.test))
        if isinstance(source, LocalDir) and (source.path / task.name).is_dir():
            raise UserError(
                f"the file of task '{task.name}' names its own rows ({task.source.test}), and {source.path / task.name}"
                " is there, too: remove source.files there, or that folder."
            )
        location = str(task.source.test.parent)
        return _task_data(task, "local", location, None, read_rows(task.source.train), read_rows(task.source.test))
    if isinstance(source, Hub):
        hub = task.source
        location = hub.id if hub.config is None else f"{hub.id}:{hub.config}"
        resolved = _resolved(hub)
        train, test = (_hub_rows(hub, split, resolved) for split in (hub.train, hub.test))
        return _task_data(task, "hub", location, hub.revision, train, test, resolved)
    folder = (source.path if isinstance(source, LocalDir) else builtin_folder() / "demo") / task.name
    train, test = (read_rows(_file(task, folder, split)) for split in ("train", "test"))
    if isinstance(source, LocalDir):
        return _task_data(task, "local", str(source.path), None, train, test)
    return _task_data(task, "demo", "bundled", None, train, test)


def subsample(examples: Sequence[Example], n: int | None, *key: object) -> tuple[Example, ...]:
    """Choose ``n`` examples at random, the same ones for the same ``key`` parts; their order stays.

    Args:
        examples: what to choose from.
        n: how many; ``None``, or more than there are, keeps all.
        key: parts that name this choice, for example ``"limit", task.name, seed``.

    Raises:
        UserError: if ``n`` is below 1.
    """
    if n is None or n >= len(examples):
        return tuple(examples)
    if n < 1:
        raise UserError(f"cannot keep {n} examples of {len(examples)}: keep at least 1.")
    # random.Random hashes a string seed with SHA-512: the same on every machine.
    generator = random.Random(repr(tuple(map(str, key))))
    return tuple(examples[index] for index in sorted(generator.sample(range(len(examples)), n)))


def _task_data(
    task: Task,
    kind: Literal["hub", "local", "demo"],
    location: str,
    revision: str | None,
    train_rows: Rows,
    test_rows: Rows,
    resolved: str | None = None,
) -> TaskData:
    test = to_examples(task, "test", test_rows)
    train = to_examples(task, "train", train_rows)
    tested = {example.content_hash for example in test}
    kept = tuple(example for example in train if example.content_hash not in tested)
    if not kept:
        raise UserError(
            f"{train_rows.source}: every train row also occurs in {test_rows.source}: use another test split."
        )
    provenance = Provenance(
        kind=kind,
        location=location,
        revision=revision,
        resolved=resolved,
        sha256={"train": train_rows.sha256, "test": test_rows.sha256},
        n_train=len(kept),
        n_test=len(test),
        train_dropped_in_test=len(train) - len(kept),
    )
    return TaskData(task, kept, test, provenance)


def _file(task: Task, folder: Path, split: str) -> Path:
    found = [path for path in (folder / f"{split}.jsonl", folder / f"{split}.parquet") if path.is_file()]
    if len(found) > 1:
        raise UserError(f"{folder} holds both {split}.jsonl and {split}.parquet: keep one of them.")
    if not found:
        columns = ", ".join([*task.fields.values(), *_choice_columns(task), task.label_column])
        raise UserError(f"no data for '{task.name}': put {split}.jsonl or .parquet in {folder} (columns: {columns}).")
    return found[0]


def _choice_columns(task: Task) -> tuple[str, ...]:
    if task.choices is None:
        return ()
    return (task.choices,) if isinstance(task.choices, str) else task.choices


def _resolved(hub: HubSource) -> str | None:
    """Return the commit that a revision stands for now; both splits are then read at it, though the name may move."""
    if re.fullmatch(r"[0-9a-f]{40}", hub.revision):
        return hub.revision
    from huggingface_hub import HfApi  # needed for the hub alone

    try:
        return HfApi().dataset_info(hub.id, revision=hub.revision, timeout=20).sha
    except Exception:  # no network: what datasets has in its cache is read, or its error says what is wrong
        return None


def _hub_rows(hub: HubSource, split: str, resolved: str | None) -> Rows:
    name = f"{hub.id} ({hub.config or 'default'}, {split}, {hub.revision})"
    if Path(hub.id).is_dir():  # datasets would read that folder in place of the hub's
        raise UserError(f"the folder {Path(hub.id).resolve()} hides the hub dataset {hub.id}: run from another folder.")
    import datasets  # slow to import, and needed for the hub alone

    revision = resolved or hub.revision
    try:
        rows = datasets.load_dataset(hub.id, hub.config, split=split, revision=revision).to_list()
    except Exception as error:  # the library's own, its HTTP client's, the file system's: one meaning for the user
        problem = (str(error).strip().splitlines() or ["no reason given"])[0]
        raise UserError(
            f"cannot get {name} from the Hugging Face Hub ({type(error).__name__}: {problem}): "
            "check the connection, or use --data-dir with files of your own, or --demo."
        ) from error
    return canonical_rows(name, rows)
