"""Tasks and their examples: the text a model reads, and the registry of the YAML files that define it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Role = Literal["id", "near_ood", "far_ood", "open_ended"]
ROLES: tuple[Role, ...] = ("id", "near_ood", "far_ood", "open_ended")
OPEN_ENDED: Role = "open_ended"
"""The role of tasks whose answers are written, not chosen: no table or average mixes them with the others."""

AnswerForm = Literal["first_token", "sum", "mean", "generate"]
ANSWER_FORMS: tuple[AnswerForm, ...] = ("first_token", "sum", "mean", "generate")

DEMONSTRATION_SEPARATOR = "\n"
"""What stands between two demonstrations, and between the last one and the query."""

CHOICES_FIELD = "choices"
"""Template field of a multiple-choice task: its answers, one a line, as ``A. first``."""

LETTERS_FIELD = "letters"
"""Template field of a multiple-choice task: the letters of its answers, as ``A/B/C``."""

NO_LABEL = -1
"""Label of an example whose right answer is not known, or not to be read."""


@dataclass(frozen=True)
class Example:
    """One row of a split, ready to be put into its task's template."""

    id: str
    """``sst2/test/17``: task, split and row number, counted from 0 in the source file."""
    fields: Mapping[str, str] = field(hash=False)
    """The template's fields; for multiple choice also ``choices`` and ``letters``."""
    options: tuple[str, ...]
    """The answers to choose from, as the model is to write them; where answers are written, the right one alone."""
    label: int
    """Index of the right answer in ``options``, or ``NO_LABEL``."""
    content_hash: str
    """16 hex digits of the normalised content; equal for the same text in another row, split or task."""


@dataclass(frozen=True)
class HubSource:
    """A dataset on the Hugging Face Hub."""

    id: str
    config: str | None
    revision: str
    train: str
    """Name of the split used as train."""
    test: str
    """Name of the split used as test."""


@dataclass(frozen=True)
class FileSource:
    """Two files of the user's own, ``.jsonl`` or ``.parquet``."""

    train: Path
    test: Path


@dataclass(frozen=True)
class Task:
    """A dataset, the question asked about each row and the answers allowed; see ``tasks/*.yaml``."""

    name: str
    title: str
    role: Role
    version: int
    """Raised whenever the template, the options or the data change: results of two versions never meet."""
    license: str
    citation: str
    template: str
    options: tuple[str, ...]
    """For multiple choice the letters, of which a row uses as many as it has answers; none for written answers."""
    fields: Mapping[str, str] = field(hash=False)
    """Template field -> column of the data (dotted path)."""
    choices: tuple[str, ...] | str | None
    """Multiple choice: the columns of the answers, or the one column that lists them (dotted path)."""
    label_column: str
    label_values: tuple[int | str | bool, ...] | str
    """Label values in the order of the options, or the column that lists the row's own (dotted path).

    None where answers are written: the label column then holds the right answer's text."""
    source: HubSource | FileSource
    note: str | None = None
    answer_form: AnswerForm = "first_token"
    """By what an answer is told: the logit of each option's first token; the log-probability of all tokens of each
    option, added up or their mean; or the text that the model writes."""
    max_new_tokens: int = 0
    """Tokens of a written answer; 0 where answers are chosen."""

    @property
    def max_options(self) -> int:
        """The number of classes, for balanced sampling: the most options a row can have; 1 for written answers."""
        return max(1, len(self.options))

    @property
    def scores_whole_options(self) -> bool:
        """Whether all tokens of an option count, not the first alone."""
        return self.answer_form in ("sum", "mean")

    def prompt(self, example: Example) -> str:
        """Return the zero-shot text; it ends with the answer cue (``Sentiment:``) and no white space."""
        return self.template.format_map(example.fields).rstrip()

    def answer(self, example: Example) -> str:
        """Return the right option's text."""
        return example.options[example.label]

    def demonstration(self, example: Example) -> str:
        """Return the prompt followed by its right answer."""
        return f"{self.prompt(example)} {self.answer(example)}"

    def identity(self) -> dict[str, Any]:
        """All that can change a result, as JSON values; the data has its own hash (`data.Provenance`)."""
        form: dict[str, Any] = {} if self.answer_form == "first_token" else {"answer": self.answer_form}
        if self.max_new_tokens:
            form["max_new_tokens"] = self.max_new_tokens
        return {
            **form,
            "name": self.name,
            "role": self.role,
            "version": self.version,
            "template": self.template,
            "options": list(self.options),
            "fields": dict(self.fields),
            "choices": list(self.choices) if isinstance(self.choices, tuple) else self.choices,
            "label_column": self.label_column,
            "label_values": list(self.label_values) if isinstance(self.label_values, tuple) else self.label_values,
        }
