"""What a method is called where people read it."""

_DISPLAYED = {"m2iv": "M2IV-style"}
"""Forms of our own carry a name that says so (M2IV: Li et al. 2025; the one here is not their code)."""


def display_name(label: str) -> str:
    """A label with the method's displayed name: ``m2iv:rank=4`` is "M2IV-style:rank=4"; most stay as they are."""
    method, colon, rest = label.partition(":")
    name, space, mark = method.partition(" ")  # "m2iv (older, 1a2b)"
    return _DISPLAYED.get(name, name) + space + mark + colon + rest
