import pytest
import torch

from icrbench.backbone import make_batch
from icrbench.backbone.metering import metered
from tiny import tiny_backbone


def test_sequences_tokens_and_time_are_counted_and_the_model_is_left_alone() -> None:
    backbone = tiny_backbone("llama")
    with torch.no_grad(), metered(backbone) as cost:
        backbone.hidden_states(make_batch([[1, 2, 3], [4]], ["", ""]))
        backbone.hidden_states(make_batch([[1, 2, 3, 4, 5]], [""]))
    assert (cost.sequences, cost.tokens) == (3, 11)
    assert cost.seconds > 0
    with torch.no_grad():
        backbone.hidden_states(make_batch([[1]], [""]))
    assert cost.sequences == 3


def test_memory_held_in_between_is_seen() -> None:
    backbone = tiny_backbone("llama")
    with metered(backbone) as little:
        pass
    with metered(backbone) as much:
        held = torch.ones(50_000_000)  # 200 MB, written to
        del held
    if little.peak_bytes is None or much.peak_bytes is None:
        pytest.skip("this system does not say how much memory was used at most")
    assert little.peak_bytes < 50e6
    assert 180e6 < much.peak_bytes < 400e6


def test_what_fails_is_measured_no_further() -> None:
    backbone = tiny_backbone("llama")
    hooks = len(backbone.model.get_decoder()._forward_pre_hooks)
    with pytest.raises(ZeroDivisionError), metered(backbone):
        raise ZeroDivisionError
    assert len(backbone.model.get_decoder()._forward_pre_hooks) == hooks
