"""icrbench: implicit in-context learning, measured honestly.

From Python: `run` methods on models, read `results`, show the `leaderboard`, `load_fit` and use it (docs/python.md).
Importing the package imports none of them; torch comes with the first use that needs it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icrbench.api.fit import load_fit
    from icrbench.api.results import leaderboard, results
    from icrbench.api.run import run

__version__ = "0.1.0"
__all__ = ["leaderboard", "load_fit", "results", "run"]

_HOMES = {"leaderboard": "results", "load_fit": "fit", "results": "results", "run": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'icrbench' has no attribute '{name}'")
    import_module("icrbench.util.chatty").quieten()
    return getattr(import_module(f"icrbench.api.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
