"""How long a run still takes, from how long its parts took."""

import time
from collections.abc import Mapping


class Pace:
    """Parts of a run: how many are left, and how long they take at the pace of those that have been done.

    Args:
        costs: of every part, in tokens, as they are estimated.
    """

    def __init__(self, costs: Mapping[str, float]) -> None:
        self._waiting = dict(costs)
        self._cost_waiting = sum(costs.values())
        self._running: dict[str, tuple[float, float]] = {}
        self._cost_done = 0.0
        self._seconds_done = 0.0

    def begin(self, part: str) -> None:
        """Count a part as at work from now on."""
        cost = self._waiting.pop(part, 0.0)
        self._cost_waiting -= cost
        self._running[part] = (cost, time.monotonic())

    def end(self, part: str) -> None:
        """Count a part as done that was at work, or was there already."""
        if part in self._running:
            cost, begun = self._running.pop(part)
            self._cost_done += cost
            self._seconds_done += time.monotonic() - begun
        else:
            self._cost_waiting -= self._waiting.pop(part, 0.0)

    def again(self, part: str) -> None:
        """Let a part that was at work wait again."""
        self._waiting[part] = self._running.pop(part)[0]
        self._cost_waiting += self._waiting[part]

    def seconds_left(self, workers: int = 1) -> float | None:
        """Seconds until all is done by so many workers; None before anything is."""
        if not self._cost_done:
            return None
        pace, now = self._seconds_done / self._cost_done, time.monotonic()
        running = (max(0.0, cost * pace - (now - begun)) for cost, begun in self._running.values())
        return (self._cost_waiting * pace + sum(running)) / workers
