from dataclasses import asdict

import pytest
import torch

from icrbench.backbone import make_batch
from icrbench.backbone.metering import Cost, count_read, metered
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


def test_steps_and_the_examples_they_were_taken_on_are_counted() -> None:
    backbone, batch = tiny_backbone("llama"), make_batch([[1, 2, 3], [4]], ["", ""])
    weight = torch.ones(48, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with metered(backbone) as cost:
        with torch.no_grad():
            backbone.hidden_states(batch)
        for _ in range(3):
            (backbone.hidden_states(batch) * weight).sum().backward()
            optimizer.step()
    assert (cost.sequences, cost.steps, cost.examples) == (8, 3, 6)
    optimizer.step()
    assert cost.steps == 3
    with metered(backbone) as untrained:
        backbone.hidden_states(batch)
    assert (untrained.steps, untrained.examples) == (0, 0)


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


def test_what_is_read_from_a_cache_counts_as_if_it_had_been_computed() -> None:
    backbone = tiny_backbone("llama")
    with torch.no_grad(), metered(backbone) as outer:
        backbone.hidden_states(make_batch([[1, 2]], [""]))
        with metered(backbone) as inner:
            backbone.hidden_states(make_batch([[1, 2, 3]], [""]))
            count_read(Cost(5.0, 4, 10, 10**12))
    assert inner.taken is not None
    assert outer.taken is not None
    assert [(cost.sequences, cost.tokens) for cost in (inner.taken, inner, outer.taken, outer)] == [
        (1, 3),
        (5, 13),
        (2, 5),
        (6, 15),
    ]
    assert outer.seconds > 5 > outer.taken.seconds >= inner.taken.seconds
    if outer.peak_bytes is not None:
        assert outer.peak_bytes == 10**12
    assert Cost.read(asdict(outer)) == outer


def test_an_inner_measurement_does_not_hide_the_outer_s_peak() -> None:
    backbone = tiny_backbone("llama")
    with metered(backbone) as outer:
        held = torch.ones(50_000_000)  # 200 MB, written to
        del held
        with metered(backbone) as inner:
            pass
    if outer.peak_bytes is None or inner.peak_bytes is None:
        pytest.skip("this system does not say how much memory was used at most")
    assert inner.peak_bytes < 50e6
    assert outer.peak_bytes > 180e6
