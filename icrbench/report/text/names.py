"""What a method is called where people read it."""

from collections.abc import Iterable

_NAMES = {"ltv": "linear task vector", "m2iv": "M2IV-style"}
_FORMS = {"m2iv": "our own form after M2IV (Li et al. 2025), not the authors' code"}
"""Forms of our own carry a name that says so, and a note below every table."""

_MARK = "‡"


def marked(name: str, explicit: bool) -> str:
    """Return a name, marked if demonstrations stood before every query."""
    return f"{name} {_MARK}" if explicit else name


def explicit_notes(explicit: Iterable[bool]) -> list[str]:
    """Return what the mark means, if one of these has it."""
    return [f"{_MARK}: explicit, since demonstrations stand before every query."] if any(explicit) else []


def display_name(label: str) -> str:
    """Show a label with the method's displayed name: ``m2iv:rank=4`` is "M2IV-style:rank=4"."""
    name = _method(label)
    return _NAMES.get(name, name) + label.removeprefix(name)


def form_notes(labels: Iterable[str]) -> list[str]:
    """Write a sentence for each method among the labels that is a form of our own."""
    methods = {_method(label) for label in labels}
    return [f"{_NAMES[method]}: {form}." for method, form in _FORMS.items() if method in methods]


def _method(label: str) -> str:
    """Its method: ``m2iv`` of "m2iv:rank=4" and of "m2iv (older, 1a2b)"."""
    return label.partition(":")[0].partition(" ")[0]
