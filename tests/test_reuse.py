import pytest
import torch

from icrbench.backbone import Backbone, Batch, make_batch
from icrbench.backbone.reuse import Reused
from icrbench.backbone.trunk import trunk_states
from tiny import tiny_backbone


def a_batch(seed: int = 3, padding: str = "right", lengths: tuple[int, ...] = (30, 19, 25)) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in lengths]
    return make_batch(rows, [""] * len(rows), padding="left" if padding == "left" else "right")


def test_each_batch_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, reused = tiny_backbone("llama"), Reused()
    computed: list[int] = []

    def counted(backbone: Backbone, layer: int, batch: Batch) -> torch.Tensor:
        computed.append(layer)
        return trunk_states(backbone, layer, batch)

    monkeypatch.setattr("icrbench.backbone.reuse.trunk_states", counted)
    first = reused.trunk(backbone, 3, a_batch())
    assert reused.trunk(backbone, 3, a_batch()) is first
    assert computed == [3]
    others = [
        reused.trunk(backbone, 4, a_batch()),
        reused.trunk(backbone, 3, a_batch(padding="left")),
        reused.trunk(backbone, 3, a_batch(seed=4)),
        reused.trunk(tiny_backbone("qwen2"), 3, a_batch()),
        reused.trunk(backbone, 3, a_batch(lengths=(30, 19, 24))),
    ]
    assert computed == [3, 4, 3, 3, 3, 3]
    assert all(not torch.equal(other, first) for other in others)


def test_padding_is_told_from_the_token_that_fills_it() -> None:
    backbone, reused = tiny_backbone("llama"), Reused()
    filled = make_batch([[5, 6, 0], [7, 8, 9]], ["", ""])
    padded = make_batch([[5, 6], [7, 8, 9]], ["", ""])
    assert torch.equal(filled.input_ids, padded.input_ids)
    first = reused.trunk(backbone, 3, filled)
    assert reused.trunk(backbone, 3, padded) is not first


def test_last_tokens_come_with_the_texts_of_the_batch_at_hand() -> None:
    backbone, reused = tiny_backbone("llama"), Reused()
    for texts in (("a", "b"), ("c", "d")):
        assert reused.last_tokens(backbone, make_batch([[5, 6, 0], [7, 8]], texts)).batch.texts == texts


def test_another_layer_makes_way_but_the_same_one_does_not() -> None:
    backbone = tiny_backbone("llama")
    size = trunk_states(backbone, 0, a_batch()).nbytes
    reused = Reused(limit_bytes=2 * size)
    first, second = (reused.trunk(backbone, 0, a_batch(seed)) for seed in (1, 2))
    third = reused.trunk(backbone, 0, a_batch(3))  # no room
    assert reused.trunk(backbone, 0, a_batch(1)) is first
    assert reused.trunk(backbone, 0, a_batch(2)) is second
    assert reused.trunk(backbone, 0, a_batch(3)) is not third
    upper = reused.trunk(backbone, 1, a_batch(1))  # pushes out what layer 0 used least recently
    assert reused.trunk(backbone, 1, a_batch(1)) is upper
    assert reused.trunk(backbone, 0, a_batch(2)) is second
    assert reused.trunk(backbone, 0, a_batch(1)) is not first


def test_without_room_there_still_is_an_answer() -> None:
    backbone, reused = tiny_backbone("llama"), Reused(limit_bytes=0)
    assert torch.equal(reused.trunk(backbone, 2, a_batch()), trunk_states(backbone, 2, a_batch()))
