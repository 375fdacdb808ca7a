"""Four small tasks for lm-evaluation-harness, one a request type, with rows written for this project.

They show how a task of one's own is made and need no hub: ``--include_path`` of this folder, which `icrbench lm-eval`
gives by itself. They are too small for results.
"""
