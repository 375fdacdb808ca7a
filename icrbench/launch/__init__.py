"""A run on several processes or machines: one driver hands pieces of work out, workers report what became of them.

`Board` knows what there is to do and who does it, an `Engine` starts workers somewhere, `drive` brings the two
together, and a `Station` is what a worker does with a piece. Results do not depend on any of them: a piece computes
what it would compute in a single process, and only the driver decides who computes it.
"""
