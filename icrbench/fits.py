"""A fitted method by name: what commands that apply one, and do not run a grid, are given."""

from pathlib import Path

from icrbench.backbone import Backbone
from icrbench.cache import cache_folder
from icrbench.errors import UserError
from icrbench.method import Artefact, FitData, Method, Scope, make_method
from icrbench.randomness import Randomness


def named_artefact(backbone: Backbone, name: str | None, folder: str | Path | None) -> Artefact:
    """The method a user names, with its fit.

    Args:
        backbone: the model.
        name: a method's name; not needed beside ``folder``.
        folder: of a fitted method, as a run leaves it. Methods without a fit need none.

    Raises:
        UserError: if the two do not go together, the method needs a fit, or the fit belongs to another model.
    """
    if folder is not None:
        artefact = Artefact.load(Path(folder), backbone)
        if name not in (None, artefact.method.name):
            raise UserError(f"{folder} holds a fit of {artefact.method.name}, not of {name}: name that method.")
        return artefact
    if name is None:
        raise UserError("no method asked for: name one with --method, or a fit with --artifact.")
    method = method_without_fit(name)
    data = FitData(pools={}, target=None, workspace=cache_folder())
    return Artefact(method, method.fit(backbone, data, Randomness(0)), backbone.identity())


def method_without_fit(name: str) -> Method:
    """A method that is applied as it is.

    Raises:
        UserError: for an unknown name, or a method that needs a fit.
    """
    method = make_method(name, {})
    if method.scope is not Scope.NONE:
        raise UserError(
            f"method {name} needs a fit: run it once with `icrbench run --out OUT`, then give --artifact"
            f" OUT/fitted/{name}-KEY."
        )
    return method
