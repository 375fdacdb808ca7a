import pytest
import torch

from icrbench.backbone import make_batch
from icrbench.backbone.prefix import SHORTEST_PREFIX, expanded, prefix_cache, shared_prefix
from tiny import EVERY_FAMILY, WINDOWED, tiny_backbone

LONG = tuple(range(40))


def test_the_shared_prefix_ends_where_sequences_part() -> None:
    assert shared_prefix([(*LONG, 7, 8), (*LONG, 7, 9), (*LONG, 1)]) == 40
    assert shared_prefix([(*LONG, 7, 8), (*LONG, 7, 9, 9)]) == 41
    assert shared_prefix([(*LONG[:20], 99, *LONG), (*LONG, 1), (*LONG, 2)]) == 20


def test_every_sequence_keeps_some_tokens_to_itself() -> None:
    assert shared_prefix([LONG, (*LONG, 1)]) == 39
    assert shared_prefix([LONG, LONG], own=5) == 35
    assert shared_prefix([LONG]) == 39


def test_short_prefixes_are_not_worth_it() -> None:
    same = LONG[:SHORTEST_PREFIX]
    assert shared_prefix([(*same, 98), (*same, 99)]) == SHORTEST_PREFIX
    assert shared_prefix([(*same[1:], 98), (*same[1:], 99)]) == 0
    assert shared_prefix([(1, 2), (3, 4)]) == 0


@pytest.mark.parametrize("family", EVERY_FAMILY)
@pytest.mark.parametrize("length", [10, 50])
def test_a_cached_prefix_is_the_whole_sequence(family: str, length: int) -> None:
    """Also where the prefix is longer than the windows, and the rest too."""
    backbone = tiny_backbone(family)
    generator = torch.Generator().manual_seed(9)
    shared = torch.randint(0, 256, (length,), generator=generator).tolist()
    ends = [torch.randint(0, 256, (n,), generator=generator).tolist() for n in (30, 3, 11)]
    with torch.no_grad():
        whole = make_batch([shared + end for end in ends], [""] * 3)
        wanted = backbone.logits(whole.at_last(backbone.hidden_states(whole)))
        prefix = prefix_cache(backbone, shared)
        kept = [(layer.keys.clone(), layer.values.clone()) for layer in prefix.layers]
        parts = make_batch(ends, [""] * 3, prefix_length=length)
        for _ in range(2):  # using it leaves it as it was
            states = backbone.hidden_states(parts, expanded(prefix, 3))
            torch.testing.assert_close(backbone.logits(parts.at_last(states)), wanted, rtol=0, atol=1e-4)
    for layer, (keys, values) in zip(prefix.layers, kept, strict=True):
        assert torch.equal(layer.keys, keys)
        assert torch.equal(layer.values, values)
    assert prefix.get_seq_length() == length


@pytest.mark.parametrize("family", WINDOWED)
def test_windowed_layers_keep_no_more_than_their_window(family: str) -> None:
    lengths = {layer.keys.shape[2] for layer in prefix_cache(tiny_backbone(family), list(range(50))).layers}
    assert min(lengths) < 24


def test_expanding_copies_nothing() -> None:
    prefix = prefix_cache(tiny_backbone("llama"), list(range(20)))
    wide = expanded(prefix, 64)
    assert wide.layers[0].keys.shape[0] == 64
    assert wide.layers[0].keys.data_ptr() == prefix.layers[0].keys.data_ptr()


def test_padding_rows_to_a_rectangle() -> None:
    for padding, ids, last in (("right", [[5, 6, 7], [8, 0, 0]], [2, 0]), ("left", [[5, 6, 7], [0, 0, 8]], [2, 2])):
        batch = make_batch([[5, 6, 7], [8]], ["a", "b"], padding=padding)  # type: ignore[arg-type]
        assert batch.input_ids.tolist() == ids
        assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0] if padding == "right" else [0, 0, 1]]
        assert batch.last.tolist() == last
        assert batch.position_ids[0].tolist() == [0, 1, 2]
        assert batch.position_ids[1, batch.last[1]] == 0
        assert batch.at_last(batch.input_ids[:, :, None])[:, 0].tolist() == [7, 8]
    behind = make_batch([[5, 6], [8]], ["a", "b"], prefix_length=3)
    assert behind.attention_mask.tolist() == [[1] * 5, [1, 1, 1, 1, 0]]
    assert behind.position_ids.tolist() == [[3, 4], [3, 3]]
