"""Zero-shot scoring against lm-evaluation-harness's HF backend: same prompts, same options, one process.

Both sides get the same weights; lm-eval gets a batch size, ours picks its own as in any run. Tasks are those whose
options are single tokens, so that comparing whole options (lm-eval) and comparing their first tokens (icrbench) must
choose alike.
"""

from common import backbone, options, report, rows, side_by_side
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import AutoModelForCausalLM

from icrbench.model_names import local_source
from icrbench.registry import make_method
from icrbench.scoring.next_token import score

BATCH = 16
COUNT = 64


def main() -> None:
    """Measure and print the ratios."""
    asked = options(__doc__)
    model = backbone(asked)
    plain = AutoModelForCausalLM.from_pretrained(
        str(local_source(asked.model)), dtype=model.dtype, trust_remote_code=False
    ).to(model.device)
    harness = HFLM(pretrained=plain, tokenizer=model.tokenizer, batch_size=BATCH, add_bos_token=model.adds_bos)
    zero_shot = make_method("zero_shot", {}).fitted({}, {})
    table = []
    for name in ("agnews", "sst2", "csqa", "piqa"):
        pool, examples = rows(asked, name, COUNT)
        task = pool.task
        requests = [
            Instance("loglikelihood", {}, (task.prompt(example), f" {option}"), index)
            for index, example in enumerate(examples)
            for option in example.options
        ]
        chosen: dict[str, list[int]] = {}

        def theirs(requests=requests, examples=examples, chosen=chosen) -> None:
            values = [value for value, _ in harness.loglikelihood(requests, disable_tqdm=True)]
            start = 0
            chosen["lm-eval"] = []
            for example in examples:
                own = values[start : start + len(example.options)]
                chosen["lm-eval"].append(own.index(max(own)))
                start += len(example.options)

        def ours(task=task, examples=examples, chosen=chosen) -> None:
            scored = score(model, zero_shot, task, examples)
            chosen["icrbench"] = [result.prediction for result in scored]

        times = side_by_side({"lm-eval": theirs, "icrbench": ours}, asked.rounds)
        accuracy = {
            side: sum(a == e.label for a, e in zip(picks, examples, strict=True)) / len(examples)
            for side, picks in chosen.items()
        }
        agree = sum(a == b for a, b in zip(chosen["lm-eval"], chosen["icrbench"], strict=True)) / len(examples)
        table.append(
            [
                name,
                times["lm-eval"],
                times["icrbench"],
                times["lm-eval"] / times["icrbench"],
                100 * accuracy["lm-eval"],
                100 * accuracy["icrbench"],
                100 * agree,
            ]
        )
    total = sum(row[1] for row in table) / sum(row[2] for row in table)
    table.append(["all", sum(r[1] for r in table), sum(r[2] for r in table), total, None, None, None])
    report(
        f"zero-shot scoring, {asked.model}, {COUNT} rows a task, batch {BATCH} (lm-eval) and automatic (icrbench)",
        ["task", "lm-eval s", "icrbench s", "ratio", "lm-eval acc", "icrbench acc", "same choice %"],
        table,
    )


if __name__ == "__main__":
    main()
