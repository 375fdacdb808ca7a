"""The Python front door: what ``import icrbench`` offers."""
