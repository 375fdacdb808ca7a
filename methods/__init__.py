"""The methods: each is one module or one package here, imported as ``icrbench.methods.NAME``."""
