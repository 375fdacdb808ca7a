"""What a method is called where people read it."""

from collections.abc import Iterable

_DISPLAYED = {"m2iv": ("M2IV-style", "our own form after M2IV (Li et al. 2025), not the authors' code")}
"""Forms of our own carry a name that says so, and a note below every table."""


def display_name(label: str) -> str:
    """A label with the method's displayed name: ``m2iv:rank=4`` is "M2IV-style:rank=4"; most stay as they are."""
    method, colon, rest = label.partition(":")
    name, space, mark = method.partition(" ")  # "m2iv (older, 1a2b)"
    return _DISPLAYED.get(name, (name,))[0] + space + mark + colon + rest


def form_notes(labels: Iterable[str]) -> list[str]:
    """A sentence for each method among these labels that is a form of our own."""
    methods = {label.split(":")[0].split(" ")[0] for label in labels}
    return [f"{name}: {form}." for method, (name, form) in _DISPLAYED.items() if method in methods]
