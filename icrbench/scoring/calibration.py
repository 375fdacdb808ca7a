"""Prompts that say nothing about the answer, and what a method answers to them.

A prior is measured as the cell is scored: by the same scorer, under the method, behind its demonstrations. Methods that
read the query's text read these texts, too. ``scoring/prior.py`` makes a prior of the logits.

* ``cc``: every field of the template holds "N/A", nothing, or "[MASK]" (Zhao et al. 2021; three texts).
* ``dc``: every field holds random words of the task's train inputs, as many as such a field has on average (Fei et al.
  2023; 20 texts).
* ``bc``: 64 train inputs as they are, labels unread. Zhou et al. (2023) take the test rows; here no test row ever
  changes the answer of another, so that rows can be scored alone.

The prompts depend on the task alone, so that all methods and seeds have the same ones. A task whose rows differ in
their options has prompts for each set of options.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from icrbench.backbone import Backbone
from icrbench.backbone.reuse import Reused
from icrbench.data.rows import choice_fields, choice_texts
from icrbench.data.task import NO_LABEL, Example, Task
from icrbench.method import Fitted
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.scoring.prior import Kind

CONTENT_FREE = ("N/A", "", "[MASK]")
RANDOM_TEXTS = 20
INPUTS = 64
_VOCABULARY = 1_000
"""Inputs from which random words are drawn."""

Options = tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """What a method answers to the prompts of one kind.

    Attributes:
        options: of the rows that the prompts are for.
        ids: of the train rows that were read; empty for texts that are made up.
        logits: of the options, one row a prompt; empty where no train row has these options.
    """

    options: Options
    ids: tuple[str, ...]
    logits: tuple[tuple[float, ...], ...]


def examples(
    task: Task, option_sets: Sequence[Options], inputs: Sequence[Example] | None
) -> Mapping[Kind, Mapping[Options, tuple[Example, ...]]]:
    """Return the texts of every kind by the options they are for; of ``bc`` all inputs, in reading order.

    Args:
        task: the task.
        option_sets: the options that test rows have.
        inputs: train inputs without labels; None where the protocol gives none, and then there is only ``cc``.
    """
    found: dict[Kind, Mapping[Options, tuple[Example, ...]]] = {
        "cc": {options: tuple(_content_free(task, options)) for options in option_sets}
    }
    if inputs is not None:
        found["dc"] = {options: tuple(_random_words(task, options, inputs)) for options in option_sets}
        found["bc"] = {options: _drawn(task, options, inputs) for options in option_sets}
    return found


def measure(
    backbone: Backbone,
    fitted: Fitted,
    task: Task,
    texts: Mapping[Kind, Mapping[Options, tuple[Example, ...]]],
    scoring: ScoringOptions,
    reused: Reused,
) -> dict[Kind, list[Measured]]:
    """Answer the prompts under a fitted method.

    Args:
        backbone: the model.
        fitted: the method.
        task: the task.
        texts: as of ``examples``. An input that the method shows in its own prompt is passed over.
        scoring: how to compute.
        reused: as for ``score``.
    """
    chosen = {
        kind: {options: own if kind != "bc" else _not_shown(task, fitted, own) for options, own in by_set.items()}
        for kind, by_set in texts.items()
    }
    every = [example for by_set in chosen.values() for own in by_set.values() for example in own]
    answers = iter(score(backbone, fitted, task, every, scoring, reused))
    return {
        kind: [
            Measured(
                options,
                tuple(example.id for example in own) if kind == "bc" else (),
                tuple(next(answers).option_logits for _ in own),
            )
            for options, own in by_set.items()
        ]
        for kind, by_set in chosen.items()
    }


def _content_free(task: Task, options: Options) -> Iterator[Example]:
    for number, text in enumerate(CONTENT_FREE):
        yield _made_up(task, f"cc/{number}", options, dict.fromkeys(task.fields, text), [text] * len(options))


def _random_words(task: Task, options: Options, inputs: Sequence[Example]) -> Iterator[Example]:
    rng = _generator("dc", task, options)
    read = rng.sample(inputs, min(_VOCABULARY, len(inputs)))
    fields = {name: [example.fields[name].split() for example in read] for name in task.fields}
    choices = [text.split() for example in read for text in choice_texts(example)]
    for number in range(RANDOM_TEXTS):
        made = {name: _words(rng, texts) for name, texts in fields.items()}
        answers = [_words(rng, choices) for _ in options] if choices else []
        yield _made_up(task, f"dc/{number}", options, made, answers)


def _words(rng: random.Random, texts: Sequence[Sequence[str]]) -> str:
    """Random words of some texts, as many as one of them has on average."""
    every = [word for text in texts for word in text]
    count = max(1, round(len(every) / len(texts)))
    return " ".join(rng.choices(every, k=count)) if every else ""


def _drawn(task: Task, options: Options, inputs: Sequence[Example]) -> tuple[Example, ...]:
    same = [example for example in inputs if example.options == options]
    return tuple(_generator("bc", task, options).sample(same, len(same)))


def _not_shown(task: Task, fitted: Fitted, inputs: Sequence[Example]) -> tuple[Example, ...]:
    """Up to ``INPUTS`` of the inputs, without those that stand in the method's own demonstrations, answer included."""
    found: list[Example] = []
    for example in inputs:
        if len(found) == INPUTS:
            break
        if not any(task.prompt(example) in shown for shown in fitted.prefix(task, example)):
            found.append(example)
    return tuple(found)


def _made_up(task: Task, name: str, options: Options, fields: Mapping[str, str], choices: Sequence[str]) -> Example:
    lettered = choice_fields(options, choices) if task.choices is not None else {}
    return Example(f"{task.name}/{name}", {**fields, **lettered}, options, NO_LABEL, "")


def _generator(kind: Kind, task: Task, options: Options) -> random.Random:
    # random.Random hashes a string seed with SHA-512: the same on every machine.
    return random.Random(repr((kind, task.name, options)))
