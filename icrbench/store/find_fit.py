"""How a user names a fitted method, for commands that apply one and do not run a grid; and which stored fit that is."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from icrbench import method_spec
from icrbench.backbone import Backbone
from icrbench.method import FitData, Method, Scope
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.store.artefact import DESCRIPTION, Artefact, same_weights
from icrbench.store.records import CellRecord, by_protocol
from icrbench.store.store import Store
from icrbench.util.cache import cache_folder
from icrbench.util.errors import UserError, unknown


@dataclass(frozen=True)
class FitName:
    """A method with its fit, as a user names it.

    Attributes:
        method: its label, as ``--methods`` takes it; not needed beside ``artifact``.
        artifact: the fit's folder, ``OUT/fitted/METHOD-KEY``.
        out: instead, a results folder that has one fit of this label for the model and the task, or, for a plain name
            that is no label there, one fit of the method; of several that differ in their seed alone, the lowest seed
            is taken. A method without a fit needs neither.
        task: the task it is for; None where no task of ours is meant.
    """

    method: str | None
    artifact: Path | None = None
    out: Path | None = None
    task: str | None = None

    def check(self, model: str) -> None:
        """Find what can be found wrong before the model is loaded.

        Args:
            model: as the user names it.

        Raises:
            UserError: if no method is named, or it needs a fit and none can be meant.
        """
        if self.artifact is not None:
            if self.out is not None:
                raise UserError("--artifact and --out both say where the fit is: give one of them.")
            return
        method = self._method()
        if method.scope is Scope.NONE:
            return
        if self.out is None:
            raise UserError(
                f"method {method.name} needs a fit: run it once with `icrbench run --out OUT`, then give --out OUT."
            )
        if not any(self.out.glob(f"fitted/{method.name}-*")):
            raise self._missing(model)

    def artefact(self, backbone: Backbone) -> Artefact:
        """Return the method with its fit.

        Raises:
            UserError: as ``check``; if method and fit do not go together, the fit belongs to another model, or the
                results folder has none or several.
        """
        self.check(backbone.revision.name)
        if self.artifact is not None:
            artefact = Artefact.load(self.artifact, backbone)
            if self.method is not None and not self._describes(artefact.method):
                raise UserError(
                    f"{self.artifact} holds a fit of {artefact.method.name}, not of {self.method}: name that method."
                )
            return artefact
        method = self._method()
        if method.scope is not Scope.NONE:
            return Artefact.load(self._stored(backbone, method), backbone)
        data = FitData(pools={}, target=None, workspace=cache_folder())
        return Artefact(method, method.fit(backbone, data, Randomness(0)), backbone.identity())

    def _method(self) -> Method:
        if self.method is None:
            raise UserError("no method asked for: name one with --method, or a fit with --artifact.")
        return make_method(*method_spec.split(self.method))

    def _describes(self, method: Method) -> bool:
        """Whether the name and the hyperparameters asked for are those of a method."""
        name, asked = method_spec.split(str(self.method))
        if name != method.name:
            return False
        wanted, found = make_method(name, asked).hyperparameters(), method.hyperparameters()
        return all(wanted[key] == found[key] for key in asked)

    def _stored(self, backbone: Backbone, method: Method) -> Path:
        """Return the folder of the one fit that results of this method, model and task were made with."""
        assert self.out is not None, "a method that needs a fit is given a folder"
        here = backbone.identity()
        fits: dict[Path, list[CellRecord]] = {}
        store = Store(self.out)
        for record in [] if store.empty else store.records():
            identity = record["identity"]
            if identity["method"]["name"] != method.name:
                continue
            if not same_weights(identity["model"], here):
                continue
            # A universal method has one fit for all tasks, also for those without a result.
            if self.task not in (None, record["cell"]["task"]) and method.scope is not Scope.UNIVERSAL:
                continue
            folder = store.fit_folder(identity)
            if (folder / DESCRIPTION).exists():
                fits.setdefault(folder, []).append(record)
        fits = self._labelled(fits)
        if not fits:
            raise self._missing(backbone.revision.name)
        if len(fits) == 1:
            return next(iter(fits))
        wanted = self._for(backbone.revision.name)
        facts = {folder: _facts(records) for folder, records in fits.items()}
        apart = _apart(list(facts.values()))
        if apart == ["seed"]:  # none of them is better than another
            seed, chosen = min((int(known["seed"]), folder) for folder, known in facts.items())
            print(f"{wanted}: seed {seed} of {len(fits)}; --artifact names another", file=sys.stderr)
            return chosen
        told = ", ".join(
            f"{folder} ({', '.join(f'{name}={known[name]}' for name in apart if name in known)})"
            for folder, known in sorted(facts.items())
        )
        raise UserError(f"{self.out} has {len(fits)} fits of {wanted}: give --artifact, with one of {told}.")

    def _labelled(self, fits: dict[Path, list[CellRecord]]) -> dict[Path, list[CellRecord]]:
        """Keep the fits of the label asked for; all fits, where a plain name is no label of the folder."""
        name, asked = method_spec.split(str(self.method))
        label = method_spec.label(name, asked)
        labels = {folder: {record["cell"]["label"] for record in records} for folder, records in fits.items()}
        own = {folder: records for folder, records in fits.items() if label in labels[folder]}
        if fits and asked and not own:
            raise unknown(f"fit in {self.out}", label, set().union(*labels.values()))
        return own or fits

    def _for(self, model: str) -> str:
        return f"{self.method} for {model}" + (f" and {self.task}" if self.task else "")

    def _missing(self, model: str) -> UserError:
        tasks = ["--tasks", self.task] if self.task else []
        line = ["icrbench", "run", "--methods", str(self.method), "--models", model, *tasks, "--out", str(self.out)]
        return UserError(f"{self.out} has no fit of {self._for(model)}: make one with `{shlex.join(line)}`.")


def _apart(facts: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the facts whose values differ between fits."""
    names = dict.fromkeys(name for known in facts for name in known)
    differing = [name for name in names if len({known.get(name) for known in facts}) > 1]
    return [name for name in differing if name != "last used"] or differing  # it differs always, and says least


def _facts(records: Sequence[CellRecord]) -> dict[str, str]:
    """Collect what the results made with a fit say of it."""
    identity = records[0]["identity"]
    return {
        **{name: str(value) for name, value in identity["method"]["hyperparameters"].items()},
        "seed": str(identity["seed"]),
        "trained on": identity["target"] or "the in-domain tasks",
        "dtype": identity["model"]["dtype"],
        "protocol": "+".join(sorted({record["cell"]["protocol"] for record in by_protocol(records)})),
        "clean": "+".join(sorted({str(record["cell"]["clean"]).lower() for record in records})),
        "data": "+".join(sorted({record["data"]["kind"] for record in records})),
        "last used": max(record["finished"] for record in records),
    }
