from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from icr_setup import ToyEncoder, some_batch, some_directions
from icrbench.backbone.trunk import trunk_states
from icrbench.methods.icr.objective import Weights, entropy, terms
from icrbench.methods.icr.router import Router, evened
from icrbench.methods.icr.routing import Directions, routed
from icrbench.methods.icr.training import routed_logits
from icrbench.methods.icr.trunkstore import TrunkBatch
from slow_attention import Reference, Term
from tiny import FAMILIES, tiny_backbone

SIZES = {"width": ToyEncoder.width, "layers": 2, "rank": 3, "heads": 6, "hidden": 7}
WEIGHTS = Weights(0.01, 0.001, 0.02, (2.6, 3.0), 1 / 3)


def router_of(seed: int = 0, *, started: bool = False, **kinds: Any) -> Router:
    """A router; ``started`` moves its alpha branch away from the zero it begins with."""
    router = Router.initial(**SIZES, generator=torch.Generator().manual_seed(seed), **kinds)
    if started and isinstance(router.alpha, nn.Sequential):
        generator = torch.Generator().manual_seed(99)
        with torch.no_grad():
            for parameter in router.alpha[2].parameters():
                parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return router


def test_equals_the_formula() -> None:
    router, embeddings = router_of(started=True), ToyEncoder()(["a", "b", "c"])
    alpha, gamma = router(embeddings)
    assert alpha.shape == (3, 2, 3)
    assert gamma.shape == (3, 2, 6)
    w = {name: tensor.detach().double().numpy() for name, tensor in router.state_dict().items()}
    x = embeddings.double().numpy()

    def branch(name: str) -> Any:
        hidden = np.maximum(0, x @ w[f"{name}.0.weight"].T + w[f"{name}.0.bias"])
        return hidden @ w[f"{name}.2.weight"].T + w[f"{name}.2.bias"]

    np.testing.assert_allclose(alpha.detach(), np.tanh(branch("alpha")).reshape(3, 2, 3), atol=1e-6)
    np.testing.assert_allclose(gamma.detach(), 1 / (1 + np.exp(-branch("gamma").reshape(3, 2, 6))), atol=1e-6)


def test_starts_with_alpha_at_zero_and_everything_else_alive() -> None:
    router = router_of()
    alpha, gamma = router(ToyEncoder()(["a", "b"]))
    assert torch.equal(alpha, torch.zeros(2, 2, 3))
    assert gamma.std() > 0.01
    zero = {name for name, tensor in router.named_parameters() if not tensor.any()}
    assert zero == {"alpha.2.weight", "alpha.2.bias"}


def test_the_start_follows_the_generator_alone() -> None:
    torch.manual_seed(1)
    first = router_of()
    torch.manual_seed(2)
    again, other = router_of(), router_of(seed=1)
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name])
    assert not torch.equal(first.gamma[0].weight, other.gamma[0].weight)


@pytest.mark.parametrize("branch", ["alpha", "gamma"])
def test_a_shared_branch_is_one_number_for_all(branch: str) -> None:
    full, router = router_of(started=True), router_of(started=True, **{branch: "shared"})
    embeddings = ToyEncoder()(["a", "b", "c"])
    place = ("alpha", "gamma").index(branch)
    found = router(embeddings)
    assert [tensor.shape for tensor in found] == [tensor.shape for tensor in full(embeddings)]
    assert torch.equal(found[place], torch.full_like(found[place], 0.0 if branch == "alpha" else 0.5))  # the start
    with torch.no_grad():
        getattr(router, branch).value.fill_(0.7)
    value = np.tanh(0.7) if branch == "alpha" else 1 / (1 + np.exp(-0.7))
    found = router(embeddings)
    torch.testing.assert_close(found[place], torch.full_like(found[place], value))
    assert found[1 - place].std(0).min() > 1e-3  # the other branch still reads the query
    names = {name for name, _ in router.named_parameters() if name.startswith(branch)}
    assert names == {f"{branch}.value"}


def test_evened_strengths_have_their_mean_size_and_the_sign_of_their_mean() -> None:
    strengths = torch.tensor([[0.4, -0.1, 0.1], [-0.6, 0.2, -0.1], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(evened(strengths), torch.tensor([[0.2] * 3, [-0.3] * 3, [0.0] * 3]))
    assert evened(strengths).abs().sum(-1).tolist() == pytest.approx(strengths.abs().sum(-1).tolist())


def test_equal_strengths_stay_as_they_are_and_zero_has_the_gradient_of_a_mean() -> None:
    strengths = torch.tensor([[0.3] * 4, [-0.3] * 4, [0.0] * 4], requires_grad=True)
    found = evened(strengths)
    torch.testing.assert_close(found, strengths)
    (gradient,) = torch.autograd.grad(found[:, 0].sum(), [strengths])
    torch.testing.assert_close(gradient, torch.full((3, 4), 0.25))


@pytest.mark.parametrize("branch", ["alpha", "gamma"])
def test_a_uniform_branch_keeps_queries_and_layers_apart(branch: str) -> None:
    full, router = router_of(started=True), router_of(started=True, **{branch: "uniform"})
    embeddings = ToyEncoder()(["a", "b", "c"])
    place = ("alpha", "gamma").index(branch)
    before, found = full(embeddings), router(embeddings)
    size = before[place].abs().mean(2, keepdim=True)
    torch.testing.assert_close(found[place].abs(), size.expand_as(before[place]))
    assert found[place][..., 0].flatten().unique().numel() == 6  # three queries, two layers
    assert torch.equal(found[1 - place], before[1 - place])


class Setting:
    """A batch, its trunk states and a loss, both by the code and by the slow reference."""

    def __init__(self, family: str) -> None:
        self.family = family
        self.backbone = tiny_backbone(family)
        self.found: Directions = some_directions(self.backbone)
        self.batch = some_batch()
        self.answers = torch.tensor([7, 100, 31])
        with torch.no_grad():
            plain = entropy(self.backbone.logits(self.batch.at_last(self.backbone.hidden_states(self.batch))))
            states = trunk_states(self.backbone, self.found.layers[0], self.batch)
        # Half a nat less than the truth, so that the confidence term is active for every row.
        self.data = TrunkBatch(self.batch, states, self.answers, plain - 0.5)

    def loss(self, router: Router, scale: float = 0.9) -> Tensor:
        logits, alpha, gamma = routed_logits(
            self.backbone, router, self.found, self.data, "attention", ToyEncoder(), scale
        )
        return terms(logits, self.answers, self.data.entropy, alpha, gamma, WEIGHTS).total(WEIGHTS)

    def slow_loss(self, router: Router, scale: float = 0.9) -> Tensor:
        """In float64 from the tokens on, with the T x T matrices."""
        alpha, gamma = router.double()(ToyEncoder()(self.batch.texts).double())
        low_rank = {
            layer: Term(
                self.found.queries[place],
                self.found.keys[place],
                scale * alpha[:, place],
                gamma[:, place],
                self.backbone.attention_scale(layer),
            )
            for place, layer in enumerate(self.found.layers)
        }
        logits = self.batch.at_last(Reference(self.family).logits(self.batch, low_rank))
        return terms(logits, self.answers, self.data.entropy.double(), alpha, gamma, WEIGHTS).total(WEIGHTS)


def gradients(loss: Tensor, router: nn.Module) -> dict[str, Tensor]:
    names = [name for name, _ in router.named_parameters()]
    found = torch.autograd.grad(loss, list(router.parameters()))
    return {name: gradient.double() for name, gradient in zip(names, found, strict=True)}


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "gpt_neox"])
def test_loss_and_gradient_equal_the_slow_reference(family: str, started: bool) -> None:
    setting = Setting(family)
    router = router_of(started=started)
    loss = setting.loss(router)
    found = gradients(loss, router)
    slow = setting.slow_loss(router)
    expected = gradients(slow, router)
    assert loss.item() == pytest.approx(slow.item(), rel=1e-5)
    for name, gradient in found.items():
        largest = expected[name].abs().max()
        # At the zero start the alpha branch's first layer gets no gradient: the last layer's must not vanish.
        assert (largest > 0) == (started or name not in ("alpha.0.weight", "alpha.0.bias"))
        assert (gradient - expected[name]).abs().max() <= 1e-4 * largest, name


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_gradient_equals_finite_differences(family: str, started: bool) -> None:
    setting = Setting(family)
    router = router_of(started=started)
    found = gradients(setting.loss(router), router)
    parameters = dict(router.named_parameters())

    def slope(name: str, direction: Tensor, step: float) -> float:
        kept, losses = parameters[name].detach().clone(), []
        with torch.no_grad():
            for sign in (1, -1):
                parameters[name].copy_(kept + sign * step * direction)
                losses.append(float(setting.loss(router)))
            parameters[name].copy_(kept)
        return (losses[0] - losses[1]) / (2 * step)

    checked = [name for name in parameters if started or name not in ("alpha.0.weight", "alpha.0.bias")]
    for name in checked:
        gradient = found[name].float()
        steepest = gradient / gradient.norm()
        assert slope(name, steepest, 5e-3) == pytest.approx(float(gradient.norm()), rel=0.02, abs=1.5e-4), name
        single = torch.zeros_like(gradient).flatten()
        single[gradient.abs().argmax()] = 1
        entry = single.view_as(gradient)
        assert slope(name, entry, 5e-3) == pytest.approx(float((gradient * entry).sum()), rel=0.02, abs=1.5e-4), name


@pytest.mark.parametrize("kinds", [{"alpha": "shared"}, {"gamma": "shared"}])
def test_gradient_of_a_shared_branch_equals_finite_differences(
    kinds: dict[str, Any],
) -> None:
    setting = Setting("llama")
    router = router_of(started=True, **kinds)
    (branch,) = kinds
    value = getattr(router, branch).value
    with torch.no_grad():
        value.fill_(0.2)
    (gradient,) = torch.autograd.grad(setting.loss(router), [value])
    losses = []
    with torch.no_grad():
        for moved in (0.205, 0.195):
            value.fill_(moved)
            losses.append(float(setting.loss(router)))
    assert abs(float(gradient)) > 2e-3
    assert (losses[0] - losses[1]) / 0.01 == pytest.approx(float(gradient), rel=0.02, abs=1.5e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_gradient_of_learned_directions_equals_finite_differences(family: str) -> None:
    setting = Setting(family)
    router = router_of(started=True)
    bases = {"queries": setting.found.queries.requires_grad_(), "keys": setting.found.keys.requires_grad_()}
    gradients = torch.autograd.grad(setting.loss(router), list(bases.values()))
    for (kind, basis), gradient in zip(bases.items(), gradients, strict=True):
        kept = basis.detach().clone()
        for layer in range(2):
            along = torch.zeros_like(gradient)
            along[layer] = gradient[layer] / gradient[layer].norm()
            losses = []
            with torch.no_grad():
                for sign in (1, -1):
                    basis.copy_(kept + sign * 1e-2 * along)
                    losses.append(float(setting.loss(router)))
                basis.copy_(kept)
            slope = (losses[0] - losses[1]) / 2e-2
            assert slope == pytest.approx(float(gradient[layer].norm()), rel=0.02, abs=1.5e-4), (kind, layer)
            assert slope > 1e-3, (kind, layer)


def test_no_gradient_reaches_the_model_or_the_trunk() -> None:
    setting = Setting("llama")
    router = router_of(started=True)
    setting.loss(router).backward()
    assert all(parameter.grad is not None for parameter in router.parameters())
    for parameter in setting.backbone.model.parameters():
        assert parameter.grad is None
        assert not parameter.requires_grad
    assert setting.data.states.grad is None


def test_the_scale_multiplies_the_routed_alpha_and_not_the_penalised_one() -> None:
    setting = Setting("llama")
    router = router_of(started=True)
    arguments: Any = (setting.backbone, router, setting.found, setting.data, "paper", ToyEncoder())
    with torch.no_grad():
        full, half = (routed_logits(*arguments, scale) for scale in (1.0, 0.5))
    torch.testing.assert_close(half[1], full[1])
    torch.testing.assert_close(half[2], full[2])
    assert (half[0] - full[0]).abs().max() > 1e-3
    with routed(setting.backbone, setting.found, 0.5 * full[1], full[2], "paper"), torch.no_grad():
        expected = setting.backbone.logits(setting.batch.at_last(setting.backbone.hidden_states(setting.batch)))
    torch.testing.assert_close(half[0], expected, atol=1e-4, rtol=1e-4)
