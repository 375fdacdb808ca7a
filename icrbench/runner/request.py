"""What the user asked for, checked before any work is done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from icrbench.backbone import Backbone
from icrbench.backbone.chat import ChatFrame
from icrbench.backbone.load import load_backbone
from icrbench.backbone.quantised import check_quantize
from icrbench.data.find_tasks import get_tasks, load_tasks
from icrbench.data.rules import PROTOCOLS, Rules
from icrbench.data.sources import Demo, Hub, LocalDir, Source
from icrbench.data.task import Task
from icrbench.experiments import get_experiments, specs
from icrbench.model_names import check_model
from icrbench.protocol import Datasets, needed_domains
from icrbench.registry import import_folder
from icrbench.runner import presets
from icrbench.runner.labels import LabelledMethod, check_precision, experiment_methods, parse_methods
from icrbench.runner.presets import Preset
from icrbench.runner.variation import PLAIN, Variation, variations
from icrbench.scoring.batching import ScoringOptions
from icrbench.util.cache import cache_folder
from icrbench.util.errors import UserError, shown, unknown

DEFAULT_OUT = Path("runs/default")
MOST_SHARES = 100_000
PATHS = ("data_dir", "tasks_dir", "methods_dir", "out", "cache_dir")
"""Arguments of `Request.build` that are paths."""


@dataclass(frozen=True)
class Request:
    """A run, as asked for on the command line or from Python.

    Attributes:
        methods: in the order of the table's work.
        models: names, hub ids, folders or GGUF files, or models loaded already.
        tasks: to score.
        known_tasks: all tasks there are, in-domain ones among them.
        seeds: for methods with randomness.
        source: where data comes from.
        rules: protocol, cleaning, test rows.
        out: results folder.
        workspace: folder for intermediate artefacts.
        scoring: how to compute.
        device, dtype, device_map, quantize: how to load models; None for the default.
        chat_template: put every prompt into the model's chat template.
        trust_remote_code: whether code that comes with a model may run.
        priors: also measure what calibration needs.
        command: the command line that asked for it, for the records.
        only: the tasks that some labels are confined to; all of them for a label that is not here.
        variations: how every cell is had, the plain way first.
        share: of how many parts only which one is run, counted from 1; None for the whole.
    """

    methods: Sequence[LabelledMethod]
    models: Sequence[str | Backbone]
    tasks: Sequence[Task]
    known_tasks: Sequence[Task]
    seeds: Sequence[int]
    source: Source
    rules: Rules
    out: Path
    workspace: Path
    scoring: ScoringOptions
    device: str | None = None
    dtype: str | None = None
    device_map: str | None = None
    quantize: str | None = None
    chat_template: bool = False
    trust_remote_code: bool = False
    priors: bool = True
    command: str = ""
    share: tuple[int, int] | None = None
    only: Mapping[str, frozenset[str]] = field(default_factory=dict)
    variations: Sequence[Variation] = (PLAIN,)

    @classmethod
    def build(
        cls,
        *,
        models: str | Sequence[str | Backbone],
        methods: str | Sequence[str] | None = None,
        experiment: str | None = None,
        tasks: str | Sequence[str] | None = None,
        seeds: Sequence[int] | None = None,
        limit: int | Literal["all"] | None = None,
        preset: str = "paper",
        settings: Sequence[str] = (),
        protocol: str = "paper",
        clean: bool = False,
        data_dir: Path | None = None,
        demo: bool = False,
        tasks_dir: Path | None = None,
        methods_dir: Path | None = None,
        out: Path = DEFAULT_OUT,
        cache_dir: Path | None = None,
        device: str | None = None,
        dtype: str | None = None,
        device_map: str | None = None,
        quantize: str | None = None,
        trust_remote_code: bool = False,
        batch_size: int | None = None,
        chat_template: bool = False,
        priors: bool = True,
        share: str | None = None,
        command: str = "",
    ) -> Self:
        """Check everything that can be checked without loading data or a model.

        Args:
            models: names, hub ids, folders or GGUF files; a text may hold several, joined by commas, like the next.
            methods: ``all``, or methods as ``icr:rank=4``.
            experiment: instead of methods, the rows of tables: names of experiments, or ``all``; beside them,
                experiments that vary something of every method.
            tasks: ``all``, roles or names; None for all, or for the experiment's own.
            seeds: None for the preset's.
            limit: test rows a task; None for the preset's.
            preset: sizes of the run.
            settings: ``method.hyperparameter=value`` texts.
            protocol: ``paper`` or ``in_task``.
            clean: drop train rows that share texts with test splits.
            data_dir: folder with ``TASK/train.jsonl`` and ``TASK/test.jsonl``; None for the hub.
            demo: use the bundled rows.
            tasks_dir: folder with further task files.
            methods_dir: folder with further method files.
            out: results folder.
            cache_dir: intermediate artefacts; None for the user's cache folder.
            device: torch device; None for the first GPU, else the CPU.
            dtype: number type; None for float32 on a CPU, else bfloat16.
            device_map: to spread a model over devices.
            quantize: ``int8`` or ``int4``: quantise the weights of models given by name, with torchao.
            trust_remote_code: run code that comes with a model, if it names some.
            batch_size: most prompts a batch; None to go by free memory.
            chat_template: put every prompt into the model's chat template, as a user's turn.
            priors: also measure what calibration needs.
            share: ``3/8`` for the third of eight parts that take about as long; None for the whole.
            command: what the user typed.

        Raises:
            UserError: for anything wrong, in one sentence.
        """
        if methods_dir is not None:
            import_folder(methods_dir)
        sizes = presets.preset(preset)
        chosen = next((name for name in PROTOCOLS if name == protocol), None)
        if chosen is None:
            raise unknown("protocol", protocol, PROTOCOLS)
        only: dict[str, frozenset[str]] = {}
        task_names = None if tasks is None else _joined(tasks)
        variations = _variations(experiment, methods)
        if methods is None:
            labelled, found, only = _experiment(str(experiment), settings, sizes, task_names, tasks_dir)
        else:
            labelled = parse_methods(_joined(methods), settings, sizes)
            found = get_tasks("all" if task_names is None else task_names, tasks_dir)
        check_precision(labelled, dtype)
        check_quantize(quantize)
        if quantize is not None and not all(isinstance(model, str) for model in models):
            raise UserError(
                "a model that is loaded already is not quantised here: give its name, or leave out quantize."
            )
        return cls(
            methods=labelled,
            models=_models(models),
            tasks=found,
            known_tasks=list(load_tasks(tasks_dir).values()),
            seeds=sizes.seeds if seeds is None else list(dict.fromkeys(seeds)),
            source=_source(data_dir, demo),
            rules=Rules(chosen, clean, sizes.limit if limit is None else None if limit == "all" else limit),
            out=out,
            workspace=cache_dir or cache_folder(),
            scoring=ScoringOptions(batch_size=batch_size),
            device=device,
            dtype=dtype,
            device_map=device_map,
            quantize=quantize,
            chat_template=chat_template,
            trust_remote_code=trust_remote_code,
            priors=priors,
            share=None if share is None else _share(share),
            command=command,
            only=only,
            variations=variations,
        )

    def load(self, model: str | Backbone) -> Backbone:
        """Load one of the models as asked for, unless it is loaded already; raises as `load_backbone`."""
        if isinstance(model, Backbone):
            if not self.chat_template:
                return model
            frame = ChatFrame.of(model.tokenizer, model.revision.name)
            return Backbone(model.model, model.tokenizer, model.revision, frame)
        return load_backbone(
            model,
            device=self.device,
            dtype=self.dtype,
            device_map=self.device_map,
            quantize=self.quantize,
            chat_template=self.chat_template,
            trust_remote_code=self.trust_remote_code,
        )

    def datasets(self) -> Datasets:
        """Load the data of the run."""
        methods = [item.method for item in self.methods]
        domains = needed_domains(self.known_tasks, self.tasks, methods, self.rules.protocol)
        return Datasets(self.tasks, domains, self.source, self.rules, self.workspace, self.known_tasks)


def _share(text: str) -> tuple[int, int]:
    number, slash, shares = text.partition("/")
    if slash and number.isdecimal() and shares.isdecimal() and 1 <= int(number) <= int(shares) <= MOST_SHARES:
        return int(number), int(shares)
    raise UserError(f"a share is written 3/8 (the third of eight, at most {MOST_SHARES}), not {shown(text)}.")


def _joined(names: str | Sequence[str]) -> str:
    return names if isinstance(names, str) else ",".join(names)


def _models(asked: str | Sequence[str | Backbone]) -> list[str | Backbone]:
    words = asked.split(",") if isinstance(asked, str) else asked
    named = [word.strip() if isinstance(word, str) else word for word in words]
    models = list(dict.fromkeys(model for model in named if model))
    if not models:
        raise UserError("no model asked for: name one with --models; `icrbench list models` shows some.")
    for model in models:
        if isinstance(model, str):
            check_model(model)
    return models


def _variations(experiment: str | None, methods: str | Sequence[str] | None) -> list[Variation]:
    """Return the plain way, and those of the experiments that vary something."""
    if experiment is None:
        if methods is None:
            raise UserError("nothing to run: name methods with --methods, or a table with --experiment.")
        return [PLAIN]
    chosen = get_experiments(experiment)
    plain = [own.name for own in chosen if own.vary is None]
    if plain and (methods is not None or len(plain) < len(chosen)):
        raise UserError(
            f"experiment {plain[0]} has methods of its own: run it without --methods and apart from experiments that"
            " vary templates or demonstrations."
        )
    return [PLAIN, *(way for own in chosen if own.vary is not None for way in variations(own.vary))]


def _experiment(
    text: str, settings: Sequence[str], sizes: Preset, tasks: str | None, tasks_dir: Path | None
) -> tuple[list[LabelledMethod], list[Task], dict[str, frozenset[str]]]:
    """Read the methods and tasks of experiments, and the tasks that each label is confined to."""
    chosen = get_experiments(text)
    methods, labels = experiment_methods(specs(chosen), settings, sizes)
    wanted: dict[str, set[str]] = {}
    found: dict[str, Task] = {}
    for experiment in chosen:
        own = {task.name: task for task in get_tasks(experiment.tasks if tasks is None else tasks, tasks_dir)}
        found |= own
        for row in experiment.rows:
            wanted.setdefault(labels[row.method], set()).update(own)
    return methods, list(found.values()), {label: frozenset(names) for label, names in wanted.items()}


def _source(data_dir: Path | None, demo: bool) -> Source:
    if demo:
        return Demo()
    if data_dir is None:
        return Hub()
    if not data_dir.is_dir():
        raise UserError(f"no folder {data_dir}: give --data-dir the folder that holds TASK/train.jsonl.")
    return LocalDir(data_dir)
