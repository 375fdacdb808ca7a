from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from icr_setup import demo_pool, demo_test, pools
from icrbench.data.find_tasks import load_tasks
from icrbench.data.task import Task
from icrbench.method import FitData, Pool, Scope
from icrbench.methods.few_shot import FewShot, FewShotFitted
from icrbench.randomness import Randomness
from icrbench.registry import make_method
from icrbench.scoring.batching import ScoringOptions
from icrbench.scoring.next_token import score
from icrbench.scoring.prompting import Prompter
from icrbench.store.artefact import Artefact
from icrbench.toolkit.encoder import sentence_encoder
from tiny import tiny_backbone, tokenizer

DOMAINS = ("agnews", "csqa", "piqa", "sst2", "trec")
TASKS = load_tasks()
DEFAULT = FewShot()


def fit(
    data: Mapping[str, Pool], target: str, method: FewShot = DEFAULT, seed: int = 0, family: str = "llama"
) -> FewShotFitted:
    return method.fit(
        tiny_backbone(family), FitData(data, target if target in data else None, Path("unused")), Randomness(seed)
    )


def demonstrations(fitted: FewShotFitted, task: Task = TASKS["mr"]) -> list[str]:
    return list(fitted.prefix(task, demo_test(task.name)[0]))


def labels(pool: Pool) -> dict[str, int]:
    return {pool.task.demonstration(row): row.label for row in pool.train}


@pytest.mark.parametrize(("name", "classes"), [("sst2", 2), ("agnews", 4), ("csqa", 5), ("trec", 6)])
def test_a_task_with_a_pool_shows_five_of_every_class(name: str, classes: int) -> None:
    pool = demo_pool(name)
    shown = demonstrations(fit({name: pool}, name), pool.task)
    assert len(set(shown)) == 5 * classes
    assert Counter(labels(pool)[text] for text in shown) == dict.fromkeys(range(classes), 5)
    assert [labels(pool)[text] for text in shown] != sorted(labels(pool)[text] for text in shown)


def test_a_task_without_one_shows_three_of_every_domain_from_different_classes() -> None:
    data = pools(*DOMAINS)
    fitted = fit(data, "mr")
    shown = demonstrations(fitted)
    assert len(set(shown)) == 15
    found: Counter[str] = Counter()
    for name in DOMAINS:
        own = [labels(data[name])[text] for text in shown if text in labels(data[name])]
        found[name] = len(own)
        assert len(set(own)) == min(3, data[name].task.max_options)
    assert found == dict.fromkeys(DOMAINS, 3)
    origin = [next(name for name in DOMAINS if text in labels(data[name])) for text in shown]
    assert origin != sorted(origin)  # mixed, not domain after domain
    assert [row_id.split("/")[0] for row_id in fitted.config["ids"]] == origin


def test_the_choice_depends_on_the_seed_not_on_the_order_of_the_pools() -> None:
    data = pools(*DOMAINS)
    first = demonstrations(fit(data, "mr"))
    assert demonstrations(fit(dict(reversed(data.items())), "mr")) == first
    assert demonstrations(fit(data, "mr", seed=1)) != first
    assert demonstrations(fit(pools("sst2"), "sst2")) != demonstrations(fit(pools("sst2"), "sst2", seed=1))


def test_all_queries_see_the_same_random_demonstrations() -> None:
    fitted, task = fit(pools("sst2"), "sst2"), TASKS["sst2"]
    seen = {tuple(fitted.prefix(task, query)) for query in demo_test("sst2")}
    assert len(seen) == 1
    prompts = [Prompter(tiny_backbone("llama"), task)(query, fitted.prefix(task, query)) for query in demo_test("sst2")]
    text = "\n".join(demonstrations(fitted)) + "\n"
    for prompt, query in zip(prompts, demo_test("sst2"), strict=True):
        assert tokenizer().decode(list(prompt.tokens)) == text + task.prompt(query)
        assert prompt.text == task.prompt(query)  # what per-query methods condition on is the query alone


def test_scores_do_not_depend_on_the_prefix_cache() -> None:
    backbone, fitted = tiny_backbone("gemma3"), fit(pools("sst2"), "sst2", FewShot(per_class=2), family="gemma3")
    found = [
        torch.tensor(
            [row.option_logits for row in score(backbone, fitted, TASKS["sst2"], demo_test("sst2")[:6], options)]
        )
        for options in (ScoringOptions(), ScoringOptions(prefix_cache=False, batch_size=1))
    ]
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("own", [True, False])
def test_retrieval_shows_the_nearest_first_and_never_the_query(own: bool) -> None:
    data, target = (pools("trec"), "trec") if own else (pools("sst2", "trec"), "mr")
    method = FewShot(select="similar", per_class=2, per_task=4)
    fitted = fit(data, target, method)
    rows = [(pool.task, row) for _, pool in sorted(data.items()) for row in pool.train]
    vectors = normalize(sentence_encoder("minilm")([task.prompt(row) for task, row in rows]), dim=1)
    count = 2 * 6 if own else 2 * 4
    # A train row asked as a query must not find itself; one of the test rows has nothing to leave out.
    for query, known in [(data["trec"].train[3], True), (demo_test("trec")[0], False)]:
        similarity = vectors @ normalize(sentence_encoder("minilm")([TASKS["trec"].prompt(query)]), dim=1)[0]
        nearest = [i for i in similarity.argsort(descending=True).tolist() if rows[i][1] is not query]
        shown = list(fitted.prefix(TASKS["trec"], query))
        assert shown == [rows[i][0].demonstration(rows[i][1]) for i in nearest[:count]]
        assert TASKS["trec"].demonstration(query) not in shown
        assert known == any(row is query for _, row in rows)


def test_retrieval_leaves_out_every_copy_of_the_query() -> None:
    pool = demo_pool("sst2")
    query = pool.train[0]
    doubled = Pool(pool.task, (*pool.train, replace(query, id="sst2/train/copy")), "0")
    shown = fit({"sst2": doubled}, "sst2", FewShot(select="similar")).prefix(pool.task, query)
    assert pool.task.demonstration(query) not in shown
    assert len(shown) == 10


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_cached_parameters_are_keys_and_values_of_the_shown_tokens(family: str) -> None:
    backbone = tiny_backbone(family)
    fitted = fit(pools("sst2"), "sst2", family=family)
    text = "\n".join(demonstrations(fitted))
    tokens = len(text.encode()) + (1 if family == "gemma3" else 0)  # one token a byte; Gemma's BOS
    per_token = {"llama": 2 * 8, "gemma3": 2 * 16, "gpt2": 6 * 8}[family]  # G d_k
    assert fitted.cached_parameters == 2 * tokens * 6 * per_token
    assert backbone.adds_bos == (family == "gemma3")


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_cached_parameters_of_retrieval_are_those_of_the_longest_choice(family: str) -> None:
    pool = demo_pool("sst2")
    fitted = fit({"sst2": pool}, "sst2", FewShot(select="similar", per_class=2), family=family)
    longest = sorted(labels(pool), key=lambda text: len(text.encode()), reverse=True)[:4]
    tokens = len("\n".join(longest).encode()) + (1 if family == "gemma3" else 0)
    assert fitted.cached_parameters == 2 * tokens * 6 * {"llama": 16, "gemma3": 32}[family]


@pytest.mark.parametrize("select", ["random", "similar"])
def test_saved_and_loaded_it_shows_the_same(select: Any, tmp_path: Path) -> None:
    method = FewShot(select=select)
    fitted, backbone = fit(pools("trec"), "trec", method), tiny_backbone("llama")
    Artefact(method, fitted, backbone.identity()).save(tmp_path)
    loaded = Artefact.load(tmp_path, backbone)
    for query in demo_test("trec")[:5]:
        assert loaded.fitted.prefix(TASKS["trec"], query) == fitted.prefix(TASKS["trec"], query)
    assert loaded.fitted.cached_parameters == fitted.cached_parameters


def test_it_is_fitted_once_a_task_and_takes_overrides() -> None:
    assert FewShot.scope is Scope.TASK
    assert FewShot.seeded
    assert make_method("few_shot", {"per_class": "3", "select": "similar"}) == FewShot(per_class=3, select="similar")
    assert (FewShot().per_class, FewShot().per_task) == (5, 3)
