"""icrbench: implicit in-context learning, measured honestly."""

__version__ = "0.1.0"
