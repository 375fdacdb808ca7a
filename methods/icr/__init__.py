"""In-Context Routing (ICR), arXiv 2509.22854 (ICML 2026): attention logits steered by a query-conditioned router.

Stage 1 collects query and key vectors of in-context prompts (`bases`) and finds their principal directions
(`directions`). Stage 2 lets a small network (`router`) decide, per query, how strongly each direction is added to the
attention logits of the late layers (`routing`). Stage 3 trains only that network (`training`, `objective`) on cached
trunk states (`trunkstore`).
"""

from .method import ICR, ICRFitted

__all__ = ["ICR", "ICRFitted"]
