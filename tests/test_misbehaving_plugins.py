"""Methods that misbehave: their own cells fail with a sentence, and all others are what they are without them."""

import signal
import sys
import threading
from typing import Any

import pytest

from cli_setup import Commands, Done, icrbench, model_folder
from icrbench import method
from icrbench.store.priors import keys_with_priors, read_priors
from records import unmeasured

__all__ = ["icrbench"]  # a fixture
pytestmark = pytest.mark.usefixtures("own_registry")

PLUGIN = """
import os, signal, sys, threading, time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar
import torch
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from icrbench.method import Fitted, Method, Scope, register

class BadFitted(Fitted):
    last_token_only: ClassVar[bool] = {last}

    @property
    def first_layer(self):
        return {first}

    @contextmanager
    def intervene(self, backbone, batch):
        {intervene}
        yield

@register("bad")
@dataclass(frozen=True)
class Bad(Method):
    '''Misbehaves.'''
    scope: ClassVar[Scope] = Scope.TASK
    fitted: ClassVar[type[Fitted]] = BadFitted

    def fit(self, backbone, data, rng):
        {fit}
        return {returned}
"""
WEIGHT = "backbone.part(2, 'q_proj').weight"

MISDEEDS: dict[str, tuple[dict[str, str], str]] = {
    "a hook left in fit": (
        {"fit": "backbone.blocks[1].register_forward_hook(lambda module, args, output: output * 2)"},
        "a hook on model.layers.1",
    ),
    "a hook left in intervene": (
        {"intervene": "backbone.attention(3).register_forward_pre_hook(lambda module, args: None)"},
        "a hook on model.layers.3.self_attn",
    ),
    "a hook on all modules": (
        {"fit": "torch.nn.modules.module.register_module_forward_hook(lambda module, args, output: None)"},
        "a hook on all modules",
    ),
    "weights changed in fit": (
        {"fit": f"with torch.no_grad(): {WEIGHT}.mul_(2)"},
        "the weight model.layers.2.self_attn.q_proj.weight changed",
    ),
    "weights changed in intervene": (
        {"intervene": f"{WEIGHT}.data.add_(0.01)"},
        "the weight model.layers.2.self_attn.q_proj.weight changed",
    ),
    "a row of the embeddings": (
        {"fit": "backbone.model.get_input_embeddings().weight.data[101] = 0"},
        "the weight model.embed_tokens.weight changed",
    ),
    "a column behind torch's back": (
        {"fit": f"{WEIGHT}.data.numpy()[:, 7] += 1"},
        "the weight model.layers.2.self_attn.q_proj.weight changed",
    ),
    "a weight in another's place": (
        {"fit": "backbone.part(2, 'q_proj').weight = torch.nn.Parameter(torch.zeros(48, 48), requires_grad=False)"},
        "the attribute _parameters of model.layers.2.self_attn.q_proj",
    ),
    "gradients wanted": ({"fit": f"{WEIGHT}.requires_grad_(True)"}, "q_proj.weight changed"),
    "an attribute on a module": (
        {"intervene": "backbone.attention(1).scaling *= 2"},
        "the attribute scaling of model.layers.1.self_attn",
    ),
    "another forward": (
        {"fit": "backbone.blocks[0].forward = lambda hidden, *args, **kwargs: hidden"},
        "the attribute forward of model.layers.0",
    ),
    "another forward of the class": (
        {"fit": "type(backbone.blocks[0].mlp).forward = lambda self, states: states"},
        "the function LlamaMLP.forward replaced",
    ),
    "a function of the library": (
        {"fit": "sys.modules[type(backbone.blocks[0]).__module__].rotate_half = lambda states: states"},
        "rotate_half replaced",
    ),
    "a function of ours": (
        {"fit": "import icrbench.runner.worker as ours; ours.score = lambda *args: []"},
        "the function icrbench.runner.worker.score replaced",
    ),
    "training mode": ({"fit": "backbone.model.train()"}, "the attribute training of the model"),
    "the configuration": ({"fit": "backbone.model.config.rms_norm_eps = 1.0"}, "rms_norm_eps of the configuration"),
    "the tokenizer": ({"fit": "backbone.tokenizer.add_tokens(['good'])"}, "tokens added to the tokenizer"),
    "the number type": ({"fit": "torch.set_default_dtype(torch.float64)"}, "another default number type"),
    "the working folder": ({"fit": "os.chdir('/')"}, "another working folder"),
    "sys.exit in fit": ({"fit": "sys.exit(0)"}, "bad tried to end the program, by sys.exit(0)"),
    "sys.exit in intervene": ({"intervene": "sys.exit(0)"}, "bad tried to end the program, by sys.exit(0)"),
    "a panic": ({"fit": "raise BaseException('help')"}, "bad failed with BaseException: help"),
    "nothing returned": ({"returned": "None"}, "bad.fit returned NoneType, not a Fitted"),
    "a list for a tensor": ({"returned": "BadFitted({}, {'x': [1.0]})"}, "returned list as the tensor 'x'"),
    "no json": ({"returned": "BadFitted({'x': torch.zeros(1)}, {})"}, "not JSON serializable"),
    "no numbers": (
        {"returned": "BadFitted({}, {'x': torch.tensor([1.0, float('nan')])})"},
        "the numbers of the fit's 'x' are not finite",
    ),
    "its own fit changed": (
        {"returned": "BadFitted({}, {'x': torch.ones(2)})", "intervene": "self.tensors['x'] += 1"},
        "another fit than it was given",
    ),
    "a thread": (
        {"fit": "threading.Thread(target=time.sleep, args=(0.5,), name='busy').start()"},
        "the thread busy still running",
    ),
    "the data": (
        {"fit": "next(iter(data.pools.values())).train[0].fields['text'] = 'good'"},
        "does not support item assignment",
    ),
}
HARMLESS: dict[str, dict[str, str]] = {
    "prints": {"fit": "print('x' * 100000); print('y', file=sys.stderr)", "intervene": "print('z')"},
    "a weight put back": {"intervene": f"kept = {WEIGHT}.clone(); {WEIGHT}.mul_(2); {WEIGHT}.copy_(kept)"},
    "a hook taken away": {"fit": "backbone.blocks[1].register_forward_hook(lambda *args: None).remove()"},
    "kept states written to": {
        "first": "2",
        "intervene": (
            "hook = backbone.blocks[2].register_forward_pre_hook("
            "lambda module, args, kwargs: [(args[0] if args else kwargs['hidden_states']).add_(1)] and None,"
            " with_kwargs=True)\n        try:\n            yield\n        finally:\n"
            "            hook.remove()\n        return"
        ),
    },
}


def run(icrbench: Commands, parts: dict[str, str], out: str = "out", priors: bool = False, **options: object) -> Done:
    folder = icrbench.folder / "plugins"
    folder.mkdir(exist_ok=True)
    lines = {"fit": "pass", "intervene": "pass", "returned": "BadFitted({}, {})", "last": "False", "first": "None"}
    (folder / "bad.py").write_text(PLUGIN.format(**{**lines, **parts}))
    # bad stands between two runs of every other kind of cell: fitted or not, states kept or not
    order = "zero_shot,bad,few_shot:per_class=1,task_vector:layer=2:per_class=1:held_out=2"
    return icrbench.run(
        "--methods-dir", folder, priors=priors, **{"methods": order, "tasks": "sst2", "out": out, **options}
    )


Cells = dict[tuple[str, str], Any]


def cells(icrbench: Commands, out: str = "out") -> Cells:
    """Of all methods but the bad one, everything that is a result: rows and all numbers but seconds."""
    from icrbench.store.store import Store

    store = Store(icrbench.folder / out)
    found: Cells = {}
    for record in store.records():
        if record["cell"]["method"] != "bad":
            assert record["result"] is not None, record["error"]
            rows = store.rows(record["key"]).to_pylist()
            found[record["cell"]["label"], record["cell"]["task"]] = (unmeasured(record["result"]), rows)
    return found


@pytest.fixture(scope="module")
def clean() -> Cells:
    return {}


@pytest.mark.parametrize("misdeed", MISDEEDS)
def test_a_misdeed_costs_its_own_cells_alone(icrbench: Commands, clean: Cells, misdeed: str) -> None:
    if not clean:
        done = icrbench.run(
            methods="zero_shot,few_shot:per_class=1,task_vector:layer=2:per_class=1:held_out=2", out="clean"
        )
        assert done.code == 0
        clean.update(cells(icrbench, "clean"))
    parts, said = MISDEEDS[misdeed]
    done = run(icrbench, parts)
    assert (done.code, done.counts) == (1, (3, 0, 1)), done
    errors = {r["error"]["message"] for r in icrbench.records() if r["error"] is not None}
    assert any(said in error for error in errors), errors
    assert cells(icrbench) == clean
    for thread in threading.enumerate():
        if thread.name == "busy":
            thread.join()


@pytest.mark.parametrize("deed", HARMLESS)
def test_what_leaves_nothing_behind_is_no_misdeed(icrbench: Commands, clean: Cells, deed: str) -> None:
    done = run(icrbench, HARMLESS[deed])
    assert (done.code, done.counts) == (0, (4, 0, 0)), done
    assert not clean or cells(icrbench) == clean


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        (
            "backbone.blocks[1].register_forward_hook(lambda module, args, output: output * 2)",
            "a hook on model.layers.1",
        ),
        ("self.tensors['x'] += 1", "another fit than it was given"),
        ("sys.exit(0)", "tried to end the program"),
    ],
    ids=["hook", "fit", "exit"],
)
def test_a_misdeed_while_priors_are_measured_costs_them_alone(icrbench: Commands, deed: str, said: str) -> None:
    assert icrbench.run(methods="few_shot:per_class=1", out="clean", priors=True).code == 0
    now = icrbench.folder / "now"
    parts = {
        "returned": "BadFitted({}, {'x': torch.ones(2)})",
        "intervene": f"if os.path.exists({str(now)!r}): {deed}",
    }
    assert run(icrbench, parts, methods="bad").code == 0
    now.touch()
    done = run(icrbench, parts, methods="bad,few_shot:per_class=1", priors=True)
    assert done.code == 0
    assert "no priors: bad" in done.out
    assert said in done.out
    assert cells(icrbench) == cells(icrbench, "clean")
    assert measured(icrbench, "out") == measured(icrbench, "clean")


def measured(icrbench: Commands, out: str) -> dict[str, Any]:
    """Of all cells that have priors, what was measured."""
    folder = icrbench.folder / out
    found = {key: read_priors(folder, key) for key in keys_with_priors(folder)}
    return {key: value["prompts"] for key, value in found.items() if value is not None}


def test_a_number_that_a_look_misses_is_found_at_the_end(icrbench: Commands) -> None:
    done = run(icrbench, {"fit": f"{WEIGHT}.data[5, 6] += 1"})
    assert done.code == 1
    assert "No cell of this run is kept" in done.out
    assert {record["status"] for record in icrbench.records()} == {"failed"}
    assert not list((icrbench.folder / "out" / "fitted").glob("*/fitted.json"))


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_inside_a_method_ends_the_run_and_keeps_what_is_finished(icrbench: Commands, name: str) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in a shell's background it is ignored
    try:
        done = run(icrbench, {"fit": f"os.kill(os.getpid(), signal.{name}); time.sleep(30)"})
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.code == 2
    assert "interrupted; finished cells are kept" in done.err
    assert {record["cell"]["method"] for record in icrbench.records()} == {"zero_shot"}
    assert icrbench.run(methods="zero_shot").counts == (0, 1, 0)


def test_sys_exit_at_import_is_a_sentence(icrbench: Commands) -> None:
    folder = icrbench.folder / "plugins"
    folder.mkdir()
    (folder / "bad.py").write_text("import sys\nsys.exit(0)\n")
    icrbench.refused(icrbench.run("--methods-dir", folder), "cannot be imported", "SystemExit")


def test_sys_exit_under_lm_eval_is_no_silent_success(icrbench: Commands) -> None:
    done = run(icrbench, {})
    assert done.code == 0
    method.REGISTRY.pop("bad")
    for name in [name for name in sys.modules if name.startswith("icrbench_methods_")]:
        del sys.modules[name]
    source = (icrbench.folder / "plugins" / "bad.py").read_text()
    (icrbench.folder / "plugins" / "bad.py").write_text(
        source.replace("        pass\n        yield", "        sys.exit(0)\n        yield")
    )
    folder = next((icrbench.folder / "out" / "fitted").glob("bad-*"))
    asked = ["lm-eval", "--model", model_folder(), "--artifact", folder, "--methods-dir", icrbench.folder / "plugins"]
    done = icrbench(*asked, "--tasks", "icrbench_last_word", "--limit", "1")
    assert done.code == 2
    assert "ended by sys.exit at" in done.err


def test_what_is_no_dataclass_cannot_be_registered(icrbench: Commands) -> None:
    folder = icrbench.folder / "plugins"
    folder.mkdir()
    (folder / "bad.py").write_text(
        "from icrbench.method import register\n@register('bad')\nclass Bad:\n    '''No method.'''\n"
    )
    icrbench.refused(icrbench.run("--methods-dir", folder, methods="bad"), "plugins/bad: ", "a frozen dataclass")
