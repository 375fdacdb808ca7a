"""Any method under lm-evaluation-harness: ``model="icrbench"`` there, `ICRBenchLM` here. See ``docs/lm_eval.md``."""

from lm_eval.api.registry import model_registry

from icrbench.lm_eval.model import ICRBenchLM

__all__ = ["ICRBenchLM"]

if "icrbench" not in model_registry:  # versions that read the entry point have put it there
    model_registry.register("icrbench", target=ICRBenchLM)
