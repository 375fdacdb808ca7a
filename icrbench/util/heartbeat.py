"""A heartbeat: a call every few seconds while a thread gets on with its work, and none while it hangs."""

import threading
import time
from collections.abc import Callable

IDLE_SHARE = 0.01
"""Share of one core that a process may take which does nothing but wait: its libraries' threads look around."""


class Heartbeat(threading.Thread):
    """Calls a function every few seconds, as long as the thread that made it gets on.

    It gets on if it has used processor time since the last look, or if the other threads of the process (of a library
    that computes or loads for it) have used more than `IDLE_SHARE` of a core. A process that is stopped, and a thread
    that waits for ever, have no heartbeat.

    Args:
        beat: called from a thread of its own.
        every: seconds between two looks.
    """

    def __init__(self, beat: Callable[[], object], every: float) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self._beat = beat
        self._every = every
        self._stopped = threading.Event()
        # Not on macOS: there a heartbeat says only that the process is there.
        clock = getattr(time, "pthread_getcpuclockid", None)
        self._clock: int | None = clock(threading.get_ident()) if clock else None
        self._own, self._others = self._used(), 0.0
        self.start()

    def run(self) -> None:
        """Look and call, until `stop`."""
        self._others = time.process_time() - time.thread_time()
        while not self._stopped.wait(self._every):
            if self._got_on():
                self._beat()

    def stop(self) -> None:
        """End it; no call follows, unless one is under way."""
        self._stopped.set()

    def _got_on(self) -> bool:
        if self._clock is None:
            return True
        own, others = self._used(), time.process_time() - time.thread_time()
        got_on = own > self._own or others - self._others > IDLE_SHARE * self._every
        self._own, self._others = own, others
        return got_on

    def _used(self) -> float:
        """Processor seconds of the thread that is watched; those it had, once it has ended."""
        try:
            return 0.0 if self._clock is None else time.clock_gettime(self._clock)
        except OSError:
            return self._own
