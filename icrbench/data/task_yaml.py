"""From one YAML file to one `Task`, with every mistake named by file, line and key."""

import re
import string
from pathlib import Path

from icrbench.data.task import (
    ANSWER_FORMS,
    CHOICES_FIELD,
    LETTERS_FIELD,
    OPEN_ENDED,
    ROLES,
    AnswerForm,
    FileSource,
    HubSource,
    Role,
    Task,
)
from icrbench.util.errors import shown
from icrbench.util.yamlfile import Section, read_yaml

KEYS = (
    "name",
    "title",
    "role",
    "version",
    "license",
    "citation",
    "note",
    "source",
    "fields",
    "choices",
    "label",
    "template",
    "options",
    "answer",
    "max_new_tokens",
)


OPTIONAL = ("version", "citation", "note", "choices", "options", "answer", "max_new_tokens")


def read_task(path: Path) -> Task:
    """Read and check one task file.

    Raises:
        UserError: naming file, line and key.
    """
    top = read_yaml(path)
    top.only(*KEYS)
    form = _answer_form(top)
    needed = "max_new_tokens" if form == "generate" else "options"
    top.require(*(key for key in KEYS if key not in OPTIONAL or key == needed))
    options = () if form == "generate" else top.texts("options")
    choices = _choices(top, options)
    fields = _fields(top)
    _check_template(top, set(fields) | ({CHOICES_FIELD, LETTERS_FIELD} if choices else set()))
    label = top.section("label")
    label.only(*(["column"] if form == "generate" else ["column", "values"]))
    return Task(
        name=_name(top),
        title=top.text("title"),
        role=_role(top, form),
        version=top.number("version") if "version" in top else 1,
        license=top.text("license"),
        citation=top.optional_text("citation") or "",
        template=top.text("template"),
        options=options,
        fields=fields,
        choices=choices,
        label_column=label.text("column"),
        label_values=() if form == "generate" else _label_values(label, options, listed=isinstance(choices, str)),
        source=_source(top),
        note=top.optional_text("note"),
        answer_form=form,
        max_new_tokens=top.number("max_new_tokens") if form == "generate" else 0,
    )


def _name(top: Section) -> str:
    name = top.text("name")
    # The name becomes a folder of --data-dir and an entry of a comma list.
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", name):
        top.fail("name", f"'{name}' must be of lower-case letters, digits, '-' and '_'.")
    if name in {*ROLES, "all"}:
        top.fail("name", f"'{name}' stands for a group of tasks: choose another name.")
    return name


def _answer_form(top: Section) -> AnswerForm:
    text = top.optional_text("answer") or "first_token"
    if text not in ANSWER_FORMS:
        top.fail(
            "answer", f"'{text}' is no form of answer: write {', '.join(ANSWER_FORMS[:-1])} or {ANSWER_FORMS[-1]}."
        )
    for key in ("options", "choices") if text == "generate" else ("max_new_tokens",):
        if key in top:
            other = "belongs to answers that are chosen" if text == "generate" else "belongs to answer: generate"
            top.fail(key, f"{other}: remove it.")
    return text


def _role(top: Section, form: AnswerForm) -> Role:
    text = top.text("role")
    for role in ROLES:
        if text == role:
            if (role == OPEN_ENDED) != (form == "generate"):
                top.fail(
                    "role", f"answer: {form} and role: {role} do not go together: {OPEN_ENDED} is for generate alone."
                )
            return role
    top.fail("role", f"'{text}' is no role: write {', '.join(ROLES[:-1])} or {ROLES[-1]}.")


def _choices(top: Section, options: tuple[str, ...]) -> tuple[str, ...] | str | None:
    if "choices" not in top:
        return None
    if options != tuple(string.ascii_uppercase[: len(options)]):
        top.fail("options", "with 'choices', the options must be the letters A, B, C and so on, in order.")
    if isinstance(top.value("choices"), str):
        return top.text("choices")
    columns = top.texts("choices")
    if len(columns) != len(options):
        top.fail("choices", f"names {len(columns)} columns for {len(options)} options: they must be as many.")
    return columns


def _fields(top: Section) -> dict[str, str]:
    section = top.section("fields")
    for name in section:
        if not name.isidentifier():
            section.fail(name, "must be a plain name of letters, digits and '_'.")
        if name in {CHOICES_FIELD, LETTERS_FIELD}:
            section.fail(name, "this name is kept for multiple choice: use the key 'choices', or another name.")
    return {name: section.text(name) for name in section}


def _check_template(top: Section, known: set[str]) -> None:
    template = top.text("template")
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        top.fail("template", f"has a brace that does not match ({error}): write {{{{ and }}}} for plain braces.")
    used = set()
    for _, name, spec, conversion in parts:
        if name is None:
            continue
        if spec or conversion or name not in known:
            top.fail(
                "template",
                f"uses {{{name}}}, which is not mapped: known fields are {', '.join(sorted(known))}.",
            )
        used.add(name)
    # The letters may be written out, as in "Answer (A/B):"; anything else left out is a slip.
    for name in sorted(known - used - {LETTERS_FIELD}):
        top.fail("template", f"does not use {{{name}}}: add it, or remove the field.")


def _label_values(label: Section, options: tuple[str, ...], listed: bool) -> tuple[int | str | bool, ...] | str:
    values = label.value("values")
    if isinstance(values, str):
        if not listed:
            label.fail("values", "names a column, which needs 'choices' to name one too: list the values instead.")
        return label.text("values")
    if not isinstance(values, list) or not all(isinstance(value, int | str) for value in values):
        label.fail("values", f"must be a list of numbers or texts, but is {shown(values)}.")
    if len(values) != len(options):
        label.fail(
            "values",
            f"lists {len(values)} values for {len(options)} options: one for each, in the same order.",
        )
    if len({(type(value), value) for value in values}) != len(values):
        label.fail("values", f"lists a value twice: {shown(values)}.")
    return tuple(values)


def _source(top: Section) -> HubSource | FileSource:
    section = top.section("source")
    section.only("hub", "files")
    if len(list(section)) != 1:
        top.fail("source", "must hold one of 'hub' and 'files'.")
    if "files" in section:
        files = section.section("files")
        files.only("train", "test")
        folder = top.path.parent
        return FileSource(train=folder / files.text("train"), test=folder / files.text("test"))
    hub = section.section("hub")
    hub.only("id", "config", "revision", "splits")
    splits = hub.section("splits")
    splits.only("train", "test")
    return HubSource(
        id=hub.text("id"),
        config=hub.optional_text("config"),
        revision=hub.text("revision"),
        train=splits.text("train"),
        test=splits.text("test"),
    )
