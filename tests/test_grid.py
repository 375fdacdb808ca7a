"""From the text of --methods and --set to methods and their labels."""

from typing import Any

import pytest

from icrbench.method import Scope
from icrbench.registry import methods
from icrbench.runner.labels import check_precision, parse_methods
from icrbench.runner.presets import Preset, preset
from icrbench.util.errors import UserError

NONE = Preset("none", None, (0,), {})


def parsed(text: str, *settings: str, sizes: Preset = NONE) -> dict[str, dict[str, Any]]:
    return {item.label: item.method.hyperparameters() for item in parse_methods(text, settings, sizes)}


def test_defaults_and_order() -> None:
    found = parsed("zero_shot,icr")
    assert list(found) == ["zero_shot", "icr"]
    assert found["icr"]["rank"] == 8


def test_all_is_every_method() -> None:
    assert list(parsed("all")) == list(methods())
    assert {"zero_shot", "few_shot", "icr"} <= set(methods())


@pytest.mark.parametrize("name", ["hificl", "i2cl", "icr", "label_anchor:mode=reweight", "lora", "mimic"])
def test_what_is_trained_by_gradient_refuses_float16(name: str) -> None:
    found = parse_methods(f"zero_shot,label_anchor,{name}", [], NONE)
    with pytest.raises(UserError, match=rf"^--dtype float16 .* train {name.split(':')[0]}: use bfloat16 or float32\.$"):
        check_precision(found, "float16")
    check_precision(found, "bfloat16")
    check_precision(found, None)
    check_precision(parse_methods("zero_shot,label_anchor,icv,task_vector", [], NONE), "float16")


def test_the_presets_say_where_a_method_gets_less_than_its_paper_gives() -> None:
    def below(name: str) -> dict[str, dict[str, Any]]:
        found = parse_methods("all", [], preset(name))
        return {item.label: less for item in found if (less := item.method.below_published())}

    assert below("paper") == {}
    cpu = below("cpu")
    assert cpu["function_vector"] == {"per_class": (3, 5), "mean_prompts": (20, 100), "effect_prompts": (6, 25)}
    assert cpu["mimic"] == {"most_steps": (50, None)}
    assert "task_vector" not in cpu  # 16 dummies of 1 are more
    assert not {"zero_shot", "few_shot", "icv"} & set(cpu)


def test_in_preset_cpu_what_is_trained_for_a_task_has_the_same_number_of_steps() -> None:
    found = [item.method for item in parse_methods("all", [], preset("cpu"))]
    trainings = {"ia2": 2}  # on attention, then on answers
    steps = {
        method.name: method.hyperparameters()["most_steps"] * trainings.get(method.name, 1)
        for method in found
        if method.trained and method.scope is Scope.TASK and "most_steps" in method.hyperparameters()
    }
    assert {"hificl", "i2cl", "live", "lora", "m2iv", "mimic", "soft_prompt"} <= set(steps)
    assert set(steps.values()) == {50}


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("icr:rank=4", []),
        ("icr", ["icr.rank=4"]),
        (" icr : rank = 4 ", []),
        ("icr", ["icr.rank = 4"]),
        ("icr:rank=4", ["icr.rank=2"]),  # what is nearest to the name wins
    ],
)
def test_ways_to_set_a_hyperparameter(text: str, settings: list[str]) -> None:
    assert {label: values["rank"] for label, values in parsed(text, *settings).items()} == {"icr:rank=4": 4}


@pytest.mark.parametrize("text", ["icr,icr:rank=4,icr:rank=2", "icr:rank=2,icr:rank=4,icr"])
def test_settings_go_to_every_variant_of_a_method(text: str) -> None:
    found = parsed(text, "icr.epochs=7")
    assert {label: (values["rank"], values["epochs"]) for label, values in found.items()} == {
        "icr:epochs=7": (8, 7),
        "icr:epochs=7:rank=4": (4, 7),
        "icr:epochs=7:rank=2": (2, 7),
    }


def test_types_follow_the_declaration() -> None:
    values = parsed("icr:center=False:clip=2:basis=random:rank=4.0:learning_rate=1e-3:encoder=17")
    (icr,) = values.values()
    assert (icr["center"], icr["clip"], icr["basis"], icr["rank"]) == (False, 2.0, "random", 4)
    assert (icr["learning_rate"], icr["encoder"]) == (0.001, "17")


def test_presets_come_before_what_is_asked_for() -> None:
    cpu = preset("cpu")
    (plain,) = parsed("icr", sizes=cpu).items()
    assert plain[0] == "icr"
    assert plain[1]["batch_size"] == cpu.methods["icr"]["batch_size"] != parsed("icr")["icr"]["batch_size"]
    assert parsed("icr:batch_size=3", sizes=cpu)["icr:batch_size=3"] == {**plain[1], "batch_size": 3}


@pytest.mark.parametrize("name", ["paper", "cpu", "demo"])
def test_every_preset_can_be_run(name: str) -> None:
    sizes = preset(name)
    assert sizes.seeds
    assert set(sizes.methods) <= set(methods())
    assert parse_methods("all", [], sizes)


@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", [], "no method asked for"),
        ("icrr", [], "unknown method 'icrr': did you mean icr"),
        ("icr:", [], "cannot read ''"),
        ("icr:rank=", [], "cannot read 'rank='"),
        ("icr:=4", [], "cannot read '=4'"),
        ("icr:rank=4=5", [], "whole number, not '4=5'"),
        ("icr:rank=1e400", [], "whole number"),
        ("icr", ["icr"], "cannot read 'icr'"),
        ("icr", [".rank=4"], "write method.hyperparameter=value"),
        ("icr", ["icr.=4"], "write method.hyperparameter=value"),
        ("icr", ["icrr.rank=4"], "unknown method in --set 'icrr': did you mean icr"),
        ("icr", ["few_shot.per_class=4"], "sets a method that is not run"),
        ("icr:rank=2:rank=4", [], "gives 'rank' twice, as 2 and 4: keep one"),
        ("icr:rank=4:basis=pca: rank =4", [], "gives 'rank' twice"),
        ("icr", ["icr.rank=2", "icr.rank=4"], "--set icr.rank gives 'rank' twice, as 2 and 4"),
        ("icr", ["icr.rnk=4"], "unknown hyperparameter of icr 'rnk': did you mean rank"),
    ],
)
def test_mistakes(text: str, settings: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        parsed(text, *settings)
