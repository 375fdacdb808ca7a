"""A worker process: ``python -m icrbench.launch.child DESCRIPTOR``, started by `icrbench.launch.local`.

Standard input brings one JSON line an order, the first the arguments of the run; reports go to the descriptor, a
JSON line each. Everything that is printed goes to the worker's log. When the input ends, so does the process: nothing
outlives its driver, not even in the middle of a piece.
"""

import json
import os
import queue
import sys
import threading
import time
from typing import Any

POLITE = 1.0  # seconds that a process whose driver is gone is given to end by itself


def main(descriptor: int) -> None:
    """Do what standard input says until it says ``close``."""
    orders: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(orders,), daemon=True).start()
    arguments = orders.get()
    # The slow imports come after the thread that ends the process with its driver.
    from icrbench.launch.station import Station
    from icrbench.util.progress import set_quiet

    set_quiet(True)
    with os.fdopen(descriptor, "w", encoding="utf-8") as reports:

        def tell(report: Any) -> None:
            print(json.dumps(report), file=reports, flush=True)

        station = Station(arguments, tell)
        while "close" not in (order := orders.get()):
            station.do(order)  # type: ignore[arg-type]
        station.close()


def _listen(orders: "queue.Queue[dict[str, Any]]") -> None:
    for line in sys.stdin:
        order = json.loads(line)
        orders.put(order)
        if "close" in order:
            return
    print("The driver is gone.", flush=True)
    time.sleep(POLITE)
    os._exit(1)


if __name__ == "__main__":
    main(int(sys.argv[1]))
