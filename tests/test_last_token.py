import pytest
import torch

from icrbench.backbone import make_batch
from icrbench.backbone.last_token import last_tokens
from icrbench.backbone.prefix import prompt_batches
from icrbench.backbone.sites import Site
from icrbench.backbone.steering import steered
from tiny import EVERY_FAMILY, tiny_backbone

families = pytest.mark.parametrize("family", EVERY_FAMILY)


def sequences(*lengths: int, seed: int = 3) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [tuple(torch.randint(0, 256, (length,), generator=generator).tolist()) for length in lengths]


@families
def test_a_change_at_the_last_token_costs_one_token(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icrbench.backbone.last_token.BATCH_TOKENS", 80)  # several batches
    backbone, prompts = tiny_backbone(family), sequences(31, 12, 50, 2, 27, 44)
    found: dict[int, list[torch.Tensor]] = {}
    with torch.no_grad():
        for part in last_tokens(backbone, prompts, [""] * len(prompts)):
            assert part.batch.input_ids.shape == (len(part.rows), 1)
            plain = part.states()
            with steered(backbone, part.batch, {Site("block", 2): lambda states: states.roll(1, -1)}, "last"):
                changed = part.states()
            again = part.states()
            assert torch.equal(plain, again)  # what is cached is left as it was
            for row, *states in zip(part.rows, plain, changed, strict=True):
                found[row] = states
        for row, prompt in enumerate(prompts):
            batch = make_batch([prompt], [""])
            torch.testing.assert_close(found[row][0], backbone.hidden_states(batch)[0, -1], atol=1e-4, rtol=1e-4)
            with steered(backbone, batch, {Site("block", 2): lambda states: states.roll(1, -1)}, "last"):
                whole = backbone.hidden_states(batch)[0, -1]
            torch.testing.assert_close(found[row][1], whole, atol=1e-4, rtol=1e-4)
            assert not torch.allclose(whole, found[row][0], atol=1e-2)


@families
def test_prompts_that_share_demonstrations_give_the_states_of_whole_prompts(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icrbench.backbone.prefix.BATCH_TOKENS", 60)
    backbone = tiny_backbone(family)
    shown, other = sequences(40, 45, seed=9)
    own = sequences(7, 12, 9, 3, 11)
    prompts = [shown + own[0], shown + own[1], other + own[2], shown[:20] + own[3] + own[4], shown + own[4]]
    seen: list[int] = []
    prefixed: list[int] = []
    with torch.no_grad():
        for rows, batch, cache in prompt_batches(backbone, prompts, [str(row) for row in range(len(prompts))]):
            states = batch.at_last(backbone.hidden_states(batch, cache))
            assert batch.texts == tuple(map(str, rows))
            seen += rows
            prefixed += rows if cache is not None else []
            for row, state in zip(rows, states, strict=True):
                whole = backbone.hidden_states(make_batch([prompts[row]], [""]))[0, -1]
                torch.testing.assert_close(state, whole, atol=1e-4, rtol=1e-4)
    assert sorted(seen) == list(range(len(prompts)))
    assert sorted(prefixed) == [0, 1]  # 4 shares as much, but does not follow them
