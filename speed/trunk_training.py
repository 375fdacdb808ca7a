"""Training the router on cached trunk states, against running the whole model in every step.

Without trunk states each step needs the whole routed forward pass and the unrouted one for the confidence term.
"""

import tempfile
from pathlib import Path

import torch
from common import backbone, options, report, rows, seconds
from icr_overhead import RANK, untrained

from icrbench.backbone import Backbone
from icrbench.backbone.batch import make_batch
from icrbench.methods.icr.objective import Weights, depth_weights, entropy, terms
from icrbench.methods.icr.router import HIDDEN, Router
from icrbench.methods.icr.routing import Directions, routed
from icrbench.methods.icr.training import Training, epoch_batches, train_router
from icrbench.methods.icr.trunkstore import TrunkStore
from icrbench.randomness import Randomness
from icrbench.toolkit.encoder import sentence_encoder
from icrbench.toolkit.episodes import Labelled, Question, Questions

COUNT = 32  # prompts a domain
HOW = Training(
    epochs=2,
    batch_size=8,
    learning_rate=1e-3,
    weight_decay=0.01,
    clip=1.0,
    final_scale=0.8,
    length_groups=4,
    routing_scale="attention",
)


def fresh_router(model: Backbone, layers: int) -> Router:
    """Make the same start for every side."""
    width = sentence_encoder("minilm").width
    made = Router.initial(width, layers, RANK, model.dims.heads, HIDDEN, torch.Generator().manual_seed(0))
    return made.to(model.device)


def weights_of(model: Backbone, directions: Directions) -> Weights:
    """Return the paper's."""
    depth = depth_weights(directions.layers, model.dims.layers, 3.0, "model")
    return Weights(0.01, 0.001, 0.02, depth, len(depth) / model.dims.layers)


def train_without_trunk(model: Backbone, directions: Directions, prompts: list[Question]) -> None:
    """Train the direct way: every step runs all blocks, routed and unrouted."""
    weights = weights_of(model, directions)
    router = fresh_router(model, len(directions.layers))
    optimizer = torch.optim.AdamW(router.parameters(), HOW.learning_rate, weight_decay=HOW.weight_decay)
    lengths = [len(item.prompt.tokens) for item in prompts]
    rng = Randomness(0).python("order")
    for _ in range(HOW.epochs):
        for chosen in epoch_batches(lengths, HOW.batch_size, HOW.length_groups, rng):
            items = [prompts[row] for row in chosen]
            tokens, texts = [item.prompt.tokens for item in items], [item.prompt.text for item in items]
            batch = make_batch(tokens, texts, device=model.device)
            with torch.no_grad():
                unrouted = entropy(model.logits(batch.at_last(model.hidden_states(batch))))
            alpha, gamma = router(sentence_encoder("minilm")(batch.texts).to(model.device))
            with routed(model, directions, alpha, gamma, "attention"):
                logits = model.logits(batch.at_last(model.hidden_states(batch)))
            answers = torch.tensor([item.answer for item in items], device=model.device)
            optimizer.zero_grad()
            terms(logits, answers, unrouted, alpha, gamma, weights).total(weights).backward()
            torch.nn.utils.clip_grad_norm_(router.parameters(), HOW.clip)
            optimizer.step()


def main() -> None:
    """Measure and print the ratios."""
    asked = options(__doc__)
    model = backbone(asked)
    directions = untrained(model).directions
    prompts = []
    for name in ("agnews", "sst2", "trec", "csqa", "piqa"):
        pool, examples = rows(asked, name, COUNT)
        prompts += Questions(model).zero_shot(Labelled(pool.task, example) for example in examples)
    sentence_encoder("minilm")([item.prompt.text for item in prompts])  # the same for all sides

    weights = weights_of(model, directions)

    def train(store: TrunkStore) -> None:
        router = fresh_router(model, len(directions.layers))
        rng = Randomness(0).python("order")
        train_router(model, router, directions, store, HOW, weights, sentence_encoder("minilm"), rng)

    with tempfile.TemporaryDirectory() as folder:
        store = TrunkStore(model, directions.layers[0], [prompts], Path(folder))
        direct = seconds(lambda: train_without_trunk(model, directions, prompts))
        fill = seconds(store.fill)
        first = fill + seconds(lambda: train(store))
        second = seconds(lambda: train(store))
    report(
        f"two epochs over {len(prompts)} prompts, {asked.model}",
        ["", "seconds", "direct / this"],
        [
            ["direct", direct, 1.0],
            ["trunk states computed, then trained on", first, direct / first],
            ["a second variant on the same trunk states", second, direct / second],
        ],
    )


if __name__ == "__main__":
    main()
