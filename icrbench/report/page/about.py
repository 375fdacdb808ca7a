"""What a method is, for its dialog: one line of description, and its paper."""

from collections.abc import Iterable
from functools import cache

from icrbench.method_spec import summaries

_PAPERS = {
    "atv": ("arXiv 2506.03426", "2506.03426"),
    "cartridges": ("arXiv 2506.06266", "2506.06266"),
    "ct_kv": ("arXiv 2507.04221", "2507.04221"),
    "elicit": ("Wang et al. 2024", "2410.09343"),
    "few_shot": ("Brown et al. 2020", "2005.14165"),
    "function_vector": ("Todd et al. 2024", "2310.15213"),
    "hidden_calibration": ("Cho et al. 2024", "2406.16535"),
    "hificl": ("arXiv 2603.12760", "2603.12760"),
    "i2cl": ("Li et al. 2024", "2405.14660"),
    "ia2": ("arXiv 2509.22621", "2509.22621"),
    "icr": ("arXiv 2509.22854", "2509.22854"),
    "icv": ("Liu et al. 2023", "2311.06668"),
    "iterative_vector": ("Liu & Deng 2025", "https://proceedings.mlr.press/v267/liu25j.html"),
    "knn_prompting": ("Xu et al. 2023", "2303.13824"),
    "label_anchor": ("Wang et al. 2023", "2305.14160"),
    "learned_task_vector": ("arXiv 2509.24169", "2509.24169"),
    "live": ("Peng et al. 2024", "2406.13185"),
    "lora": ("Hu et al. 2021", "2106.09685"),
    "ltv": ("Kwon et al. 2026", "2605.20730"),
    "m2iv": ("Li et al. 2025", "2504.04633"),
    "mimic": ("Jiang et al. 2025", "2504.08851"),
    "reft": ("Wu et al. 2024", "2404.03592"),
    "sadi": ("Wang et al. 2024", "2410.12299"),
    "soft_prompt": ("Lester et al. 2021", "2104.08691"),
    "state_vector": ("Li et al. 2024", "2404.11225"),
    "task_vector": ("Hendel et al. 2023", "2310.15916"),
    "ttt": ("Akyürek et al. 2024", "2411.07279"),
}
"""How ``docs/methods.md`` names the source of each, and where it is: its number on arXiv, or an address."""


def about(methods: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return ``words``, ``paper`` and ``link`` of methods, as far as there are any: a user's own method has none."""
    return {method: known for method in sorted(set(methods)) if (known := _about(method))}


def _about(method: str) -> dict[str, str]:
    words = _summaries().get(method)
    found = {"words": words} if words else {}
    if method in _PAPERS:
        paper, place = _PAPERS[method]
        link = place if place.startswith("https:") else f"https://arxiv.org/abs/{place}"
        found |= {"paper": paper, "link": link}
    return found


_summaries = cache(summaries)
