import math
from itertools import repeat

import pytest
import torch
from torch import Tensor

from icrbench.toolkit.optimisation import Schedule, optimise
from icrbench.util.errors import UserError


def test_the_learning_rate_rises_then_falls_to_nothing() -> None:
    schedule = Schedule(steps=100, warmup=0.1)
    factors = [schedule.factor(step) for step in range(101)]
    assert factors[0] == 0
    assert factors[5] == pytest.approx(0.5)
    assert factors[10] == 1
    assert factors[55] == pytest.approx(0.5)
    assert factors[100] == pytest.approx(0)
    assert Schedule(steps=10, warmup=0.0).factor(0) == 1


def test_the_learning_rate_falls_in_a_line_or_stays_where_it_is() -> None:
    linear, constant = (Schedule(steps=100, warmup=0.1, decay=decay) for decay in ("linear", "constant"))
    assert [linear.factor(step) for step in (0, 5, 10, 55, 100)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    assert [constant.factor(step) for step in (0, 5, 10, 55, 100)] == pytest.approx([0, 0.5, 1, 1, 1])


def test_a_whole_cosine_is_counted_from_the_first_step() -> None:
    whole = Schedule(steps=100, warmup=0.1, decay="whole_cosine")
    assert [whole.factor(step) for step in (0, 5, 10)] == pytest.approx([0, 0.5, 1])
    assert whole.factor(11) == pytest.approx(0.5 * (1 + math.cos(math.pi * 0.11)))
    assert whole.factor(100) == pytest.approx(0)
    assert Schedule(steps=10, warmup=0.0, decay="whole_cosine").factor(0) == 1


def test_steps_are_those_of_adamw_written_out() -> None:
    start = torch.tensor([1.0, -2.0])
    trained, slow = start.clone(), start.clone()
    schedule = Schedule(steps=4, warmup=0.25, weight_decay=0.1, clip=0.5)
    losses = optimise(
        [([trained], 0.1), ([slow], 0.01)],
        lambda target: ((trained - target) ** 2).sum() + (slow**4).sum(),
        repeat(torch.tensor([3.0, 1.0])),
        schedule,
        "test",
    )
    values = {0.1: start.double(), 0.01: start.double()}
    moments = {rate: (torch.zeros(2).double(), torch.zeros(2).double()) for rate in values}
    for step in range(4):
        gradients = {0.1: 2 * (values[0.1] - torch.tensor([3.0, 1.0])), 0.01: 4 * values[0.01] ** 3}
        norm = math.sqrt(sum(float((g**2).sum()) for g in gradients.values()))
        shrink = min(1.0, 0.5 / norm)
        factor = step / 1 if step < 1 else 0.5 * (1 + math.cos(math.pi * (step - 1) / 3))
        for rate, gradient in gradients.items():
            first, second = moments[rate]
            first, second = 0.9 * first + 0.1 * shrink * gradient, 0.999 * second + 0.001 * (shrink * gradient) ** 2
            moments[rate] = first, second
            scaled = (first / (1 - 0.9 ** (step + 1))) / ((second / (1 - 0.999 ** (step + 1))).sqrt() + 1e-8)
            values[rate] = values[rate] * (1 - rate * factor * 0.1) - rate * factor * scaled
    torch.testing.assert_close(trained.double(), values[0.1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(slow.double(), values[0.01], atol=1e-5, rtol=1e-5)
    assert len(losses) == 4
    assert not trained.requires_grad


def test_a_loss_that_is_not_finite_stops_with_advice() -> None:
    value = torch.ones(1)
    with pytest.raises(UserError, match=r"made up: the loss is not finite at step 1: nothing is trained yet"):
        optimise([([value], 1.0)], lambda _: (value / 0).sum(), repeat(0), Schedule(3), "made up")
    with pytest.raises(UserError, match=r"made up: the loss is not finite at step 2: lower the learning rate\."):
        optimise([([value], 1.0)], lambda zero: value.sum() / zero, iter([1, 0]), Schedule(3), "made up")


def test_only_what_is_listed_is_trained() -> None:
    frozen, trained = torch.ones(1, requires_grad=False), torch.ones(1)

    def loss(_: int) -> Tensor:
        return (frozen * trained).sum()

    optimise([([trained], 0.1)], loss, repeat(0), Schedule(2, warmup=0), "test")
    assert float(frozen) == 1
    assert float(trained) < 1
