import json
import math

import pytest
import torch

from cli_setup import Commands, icrbench
from icr_setup import ToyEncoder, pools, some_batch
from icrbench.analysis.iclness import TINY, iclness, log_probability_change
from icrbench.analysis.latency import latency
from icrbench.analysis.routing import importance
from icrbench.backbone import make_batch
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from icrbench.data.find_tasks import load_tasks
from icrbench.method import Fitted
from icrbench.toolkit.episodes import Labelled, Questions
from tiny import tiny_backbone

__all__ = ["icrbench"]  # a fixture


class Shifted(Fitted):
    """Rolls the last token's state."""

    def intervene(self, backbone, batch):  # type: ignore[no-untyped-def]
        return steered(backbone, batch, {Site("block", 2): lambda states: states.roll(1, -1)}, "last")


def test_importance_by_hand() -> None:
    alpha = torch.tensor([[[0.5, -0.1], [0.2, 0.0], [0.1, 0.1]], [[0.3, 0.1], [0.0, -0.2], [0.1, 0.1]]])
    gamma = torch.tensor([[[0.2, 0.4], [0.9, 0.9], [0.5, 0.5]], [[0.4, 0.2], [0.7, 0.7], [0.5, 0.5]]])
    found = importance(alpha, gamma)
    assert found["layer"] == pytest.approx([0, 0, 0])  # for each query, each layer is lowest in one of the two
    torch.testing.assert_close(torch.tensor(found["head"]), torch.tensor([[0.3, 0.3], [0.8, 0.8], [0.5, 0.5]]))
    first = (0.5 * 0.3 + 0.2 * 0.9 + 0.1 * 0.5 + 0.3 * 0.3 + 0.0 * 0.7 + 0.1 * 0.5) / 6
    assert found["pid"][0] == pytest.approx(first)


def test_layers_are_scaled_and_multiplied_query_by_query() -> None:
    """Means of queries come last: the last query, which ranks no layer, is left out."""
    size = [[0.1, 0.3, 0.5], [0.6, 0.4, 0.2], [0.3, 0.3, 0.3]]
    gate = [[0.1, 0.5, 0.3], [0.5, 0.7, 0.2], [0.1, 0.5, 0.9]]
    alpha = torch.tensor(size)[..., None] * torch.tensor([1.0, -1.0])
    found = importance(alpha, torch.tensor(gate)[..., None])
    first = [0, 0.5 * 1, 1 * 0.5]
    second = [1 * 0.6, 0.5 * 1, 0]
    expected = [(a / 1.0 + b / 1.1) / 2 for a, b in zip(first, second, strict=True)]
    assert found["layer"] == pytest.approx(expected)


def test_layer_importance_adds_up_to_one() -> None:
    generator = torch.Generator().manual_seed(0)
    found = importance(torch.randn(5, 4, 3, generator=generator), torch.rand(5, 4, 6, generator=generator))
    assert sum(found["layer"]) == pytest.approx(1)
    assert all(0 <= value <= 1 for value in found["layer"])


def test_changes_are_differences_of_whole_log_softmaxes() -> None:
    backbone, fitted = tiny_backbone("gemma3"), Shifted({}, {})
    rows = [Labelled(load_tasks()["sst2"], row) for row in pools("sst2")["sst2"].train[:5]]
    questions = Questions(backbone).zero_shot(rows)
    slow = torch.zeros(300, dtype=torch.float64)
    with torch.no_grad():
        for question in questions:
            batch = make_batch([question.prompt.tokens], [question.prompt.text])
            plain = backbone.model(batch.input_ids).logits[0, -1].double().log_softmax(-1)
            with fitted.applied(backbone, batch):
                changed = backbone.model(batch.input_ids).logits[0, -1].double().log_softmax(-1)
            slow += (changed - plain) / len(questions)
    torch.testing.assert_close(log_probability_change(backbone, fitted, questions), slow, atol=1e-4, rtol=1e-4)
    assert not log_probability_change(backbone, Fitted({}, {}), questions).any()


def test_iclness_of_each_token_by_loops() -> None:
    changes = torch.randn(4, 9, generator=torch.Generator().manual_seed(1)).double()
    found = iclness(changes)
    for token in range(9):
        own = changes[:, token].tolist()
        mean = sum(own) / 4
        std = math.sqrt(sum((value - mean) ** 2 for value in own) / 4)
        share = sum(value > 0 for value in own) / 4
        borda = sum(sum(float(other) < value for other in row) for row, value in zip(changes, own, strict=True))
        score = mean / (std + TINY) * share * math.log(1 + borda)
        wanted = {"mean": mean, "std": std, "share": share, "borda": borda, "score": score}
        assert {name: float(values[token]) for name, values in found.items()} == pytest.approx(wanted)


def test_latency_has_a_number_for_every_method_and_length() -> None:
    backbone = tiny_backbone("llama")
    found = latency(backbone, {"plain": (Fitted({}, {}), 0), "shown": (Fitted({}, {}), 30)}, [4, 40], "some text")
    assert set(found) == {"plain", "shown"}
    assert all(len(own) == 2 and min(own) > 0 for own in found.values())
    assert backbone.hidden_states(some_batch()).isfinite().all()


def test_the_command_stores_every_analysis(icrbench: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("method", "bases"):
        monkeypatch.setattr(f"icrbench.methods.icr.{module}.sentence_encoder", lambda *_: ToyEncoder())
    tiny = "rank=2:prompts_per_domain=4:prompts_agnews=4:per_class=1:queries_per_set=4:train_per_domain=4:epochs=1"
    done = icrbench.run(command="analyse", methods=f"zero_shot,few_shot:per_class=1,icr:{tiny}", tasks="sst2,mr")
    assert done.code == 0, done.err
    found = {}
    for path in (icrbench.folder / "out" / "analysis").iterdir():
        content = json.loads(path.read_text())
        assert path.name.startswith(content["kind"] + "-")
        found[content["kind"]] = content
    assert set(found) == {"iclness", "routing", "latency"}
    assert set(found["routing"]["by_task"]) == {"sst2", "mr"}
    layers = found["routing"]["layers"]
    assert all(len(own["layer"]) == len(own["head"]) == len(layers) for own in found["routing"]["by_task"].values())
    assert len(found["iclness"]["tokens"]) == 200
    scores = [token["score"] for token in found["iclness"]["tokens"]]
    assert scores == sorted(scores, reverse=True)
    assert len(found["latency"]["seconds"]) == 3
    assert icrbench("report", icrbench.folder / "out", "--table", "iclness").code in (0, 2)
