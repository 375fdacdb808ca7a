import pytest
import torch

from icr_setup import some_batch
from icrbench.backbone import make_batch
from icrbench.methods.icr.rollout import rollout_weights
from slow_attention import Reference
from tiny import FAMILIES, tiny_backbone, tiny_model


@pytest.mark.parametrize("family", FAMILIES)
def test_equals_the_product_of_the_library_s_attention_matrices(family: str) -> None:
    """The matrices as transformers returns them; 40 tokens are more than any window of the tiny models."""
    batch = some_batch((40,))
    model = tiny_model(family)
    model.set_attn_implementation("eager")
    with torch.inference_mode():
        output = model.get_decoder()(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_attentions=True, use_cache=False
        )
        found = rollout_weights(tiny_backbone(family), batch)
    flow = torch.eye(40, dtype=torch.float64)
    assert len(output.attentions) == 6
    for attention in output.attentions:
        mixed = 0.5 * attention[0].double().mean(0) + 0.5 * torch.eye(40)
        flow = mixed @ flow
    torch.testing.assert_close(found[0].double(), flow[-1], atol=1e-6, rtol=1e-4)
    assert float(found.sum()) == pytest.approx(1, abs=1e-6)
    assert (found > 0).sum() > 5


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_nothing(family: str) -> None:
    batch, backbone = some_batch((40, 23, 9)), tiny_backbone(family)
    with torch.inference_mode():
        together = rollout_weights(backbone, batch)
        for row, length in enumerate((40, 23, 9)):
            alone = rollout_weights(backbone, make_batch([batch.input_ids[row, :length].tolist()], [""]))
            torch.testing.assert_close(together[row, :length], alone[0], atol=1e-6, rtol=1e-4)
            assert not together[row, length:].any()


def test_the_slow_reference_agrees_with_the_library() -> None:
    """The oracle of the other tests: its attention is the library's."""
    batch = some_batch((40,))
    for family in FAMILIES:
        reference = Reference(family)
        slow = reference.logits(batch)
        eager = tiny_model(family, torch.float64)
        eager.set_attn_implementation("eager")
        output = eager(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, output_attentions=True, use_cache=False
        )
        torch.testing.assert_close(slow, output.logits, atol=1e-5, rtol=1e-5)
        for layer in range(6):
            torch.testing.assert_close(reference.seen[layer].attention, output.attentions[layer], atol=1e-6, rtol=1e-5)
