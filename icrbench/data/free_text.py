"""Text that belongs to no task, as a query: a request of lm-evaluation-harness, a user's own words."""

from pathlib import Path

from icrbench.data.task import Example, FileSource, Task


def as_query(text: str) -> tuple[Task, Example]:
    """Make a query of a text that belongs to no task, for methods that choose demonstrations by it."""
    task = Task(
        name="free text",
        title="free text",
        role="far_ood",
        version=1,
        license="",
        citation="",
        template="{text}",
        options=(),
        fields={"text": "text"},
        choices=None,
        label_column="",
        label_values=(),
        source=FileSource(Path(), Path()),
    )
    return task, Example(id="", fields={"text": text}, options=(), label=0, content_hash="")
