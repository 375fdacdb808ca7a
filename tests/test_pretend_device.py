"""The devices that tests stand in for GPUs with: they compute as the CPU does, and refuse what CUDA refuses."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import pretend_device  # noqa: F401  # makes the devices known

HERE, THERE = "pretend:0", "pretend:1"


def own(*shape: int, device: str = HERE) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).to(device)


ONE, ROW, FIRST = torch.tensor(1.0), torch.ones(2), torch.tensor([0])

REFUSED: dict[str, Callable[[], object]] = {
    "an operand on the CPU": lambda: own(3, 2) + torch.ones(3, 2),
    "the device's as the second": lambda: torch.ones(3, 2) + own(3, 2),
    "an operand on the other device": lambda: own(3, 2) + own(3, 2, device=THERE),
    "a single number on the other device": lambda: own(2) + own(2, device=THERE).sum(),
    "a single number on the device, a vector on the CPU": lambda: own(2).sum() + ROW,
    "a number on the CPU that is written into": lambda: ONE.clone().add_(own(1)[0]),
    "two numbers on the CPU": lambda: torch.addcmul(own(2), ONE, ONE),
    "a condition on the CPU": lambda: torch.where(ROW > 0, own(2), own(2)),
    "a mask on the CPU": lambda: own(2).masked_fill(ROW > 0, 0.0),
    "a matrix on the CPU": lambda: own(3, 2) @ torch.ones(2, 3),
    "weights on the CPU": lambda: nn.functional.linear(own(3, 2), torch.ones(4, 2)),
    "embeddings on the CPU": lambda: nn.functional.embedding(FIRST.to(HERE), torch.ones(4, 2)),
    "pieces of two devices": lambda: torch.cat([own(2), ROW]),
    "numbers of two devices, put together": lambda: torch.stack([own(2).sum(), ONE]),
    "places to gather on the CPU": lambda: own(2).gather(0, FIRST),
    "rows to choose on the CPU": lambda: own(2).index_select(0, FIRST),
    "a comparison of two devices": lambda: torch.equal(own(2), ROW),
    "the CPU's, at indices on the device": lambda: ROW[FIRST.to(HERE)],
    "at indices on the other device": lambda: own(2)[FIRST.to(THERE)],
    "values on the CPU, at indices": lambda: own(2).index_put_((FIRST,), torch.ones(1)),
    "attention over the CPU's keys": lambda: nn.functional.scaled_dot_product_attention(
        own(1, 1, 2, 4), torch.ones(1, 1, 2, 4), own(1, 1, 2, 4)
    ),
}

ALLOWED: dict[str, Callable[[], Tensor]] = {
    "a single number on the CPU": lambda: own(2) + ONE,
    "a single number on the CPU first": lambda: ONE - own(2),
    "a single number on the CPU, in place": lambda: own(2).add_(ONE),
    "a choice against a number": lambda: torch.where(own(2) > 1, own(2), ONE),
    "a number filled in under a mask": lambda: own(2).masked_fill(own(2) > 1, ONE),
    "indices on the CPU": lambda: own(2)[FIRST],
    "a mask on the CPU as an index": lambda: own(2)[ROW > 0],
    "a number written at indices": lambda: own(2).index_put_((FIRST,), ONE),
    "copied from the CPU": lambda: own(2).copy_(ROW),
    "copied from the other device": lambda: own(2).copy_(own(2, device=THERE)),
    "moved here": lambda: own(2, device=THERE).to(HERE),
    "the shape of another tensor": lambda: own(1).expand_as(ROW),
    "the kind of another tensor": lambda: ROW.type_as(own(2)),
    "made here": lambda: torch.arange(4, device=HERE),
    "made here of numbers": lambda: torch.tensor([1, 2], device=HERE),
    "made here of another tensor's shape": lambda: torch.zeros_like(ROW, device=HERE),
}


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("case", REFUSED)
def test_mixing_devices_is_an_error(case: str, inference: bool) -> None:
    with torch.inference_mode(inference), pytest.raises(RuntimeError, match=r"Expected .* the same device"):
        REFUSED[case]()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("case", ALLOWED)
def test_what_a_gpu_allows_is_allowed(case: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        assert ALLOWED[case]().device == torch.device(HERE)


def test_numbers_are_the_cpus_and_leave_by_the_cpu_alone() -> None:
    assert (own(3) * 2).cpu().tolist() == (own(3) * 2).tolist() == [2.0, 4.0, 6.0]
    assert own(3).sum().item() == 6.0
    assert own(3, device=THERE).cpu().device == torch.device("cpu")
    with pytest.raises(TypeError, match="can't convert pretend:0 device type tensor to numpy"):
        own(3).numpy()


def test_a_slice_takes_values_from_anywhere_and_views_see_it() -> None:
    whole = own(3, 2)
    first = whole[0]
    whole[0] = torch.zeros(2)
    assert first.tolist() == [0.0, 0.0]
    assert whole[1].tolist() == [3.0, 4.0]


def test_random_numbers_are_the_devices_own() -> None:
    torch.manual_seed(0)
    drawn = torch.rand(4, device=HERE)
    cpu = torch.rand(4)
    torch.manual_seed(0)
    assert torch.equal(torch.rand(4), cpu)
    assert torch.equal(torch.rand(4, device=HERE), drawn)
    assert not torch.equal(drawn.cpu(), cpu)
    with pytest.raises(RuntimeError, match="Expected a 'pretend' device type for generator"):
        torch.rand(4, device=HERE, generator=torch.Generator())


@pytest.mark.parametrize("devices", [(HERE, HERE), (THERE, THERE), (HERE, THERE)])
def test_gradients_are_the_cpus(devices: tuple[str, str]) -> None:
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.Linear(4, 4)]
    inputs = torch.randn(3, 4)

    def trained() -> list[Tensor]:
        states = inputs
        for layer in layers:
            states = torch.tanh(layer(states.to(layer.weight.device)))
        (states.square().sum()).backward()
        optimizer = torch.optim.AdamW([weight for layer in layers for weight in layer.parameters()], lr=0.1)
        optimizer.step()
        return [weight.detach().clone().cpu() for layer in layers for weight in layer.parameters()]

    state = [{name: weight.clone() for name, weight in layer.state_dict().items()} for layer in layers]
    want = trained()
    for layer, own_state, device in zip(layers, state, devices, strict=True):
        layer.load_state_dict(own_state)
        layer.zero_grad()
        layer.to(device)
        assert layer.weight.device == torch.device(device)
    torch.testing.assert_close(trained(), want)
