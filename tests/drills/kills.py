"""Kill processes at random moments, again and again, and compare what is there in the end with an undisturbed run.

    python tests/drills/kills.py --kills 100 --processes 1,2,3

Too long for the test suite. A tiny random model, three tasks and four methods (no fit, a fit a task, one universal fit
with its caches). On each results folder one, two or three processes work at once; each is killed (SIGKILL) after a
random time unless it is done by then, and another takes its place. When a folder has had its share of kills, one last
process finishes it. Every result and every cost of every record must equal that of the undisturbed run, row by row;
only measured times and memory may differ. Prints one line a folder; exits with 1 if anything differs.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))  # helpers of the tests

from icrbench.cli import main
from icrbench.runner import run as _imported  # everything slow is imported before the first fork
from icrbench.store.store import Store
from records import unmeasured
from tiny import tiny_model, tokenizer

assert _imported
METHODS = (
    "zero_shot,few_shot:per_class=1,task_vector:per_class=1:held_out=4,"
    "icr:prompts_per_domain=4:prompts_agnews=4:per_class=1:train_per_domain=4:encoder=random:hidden=8:rank=2"
)


def command(model: Path, folder: Path) -> list[str]:
    line = ["run", "--methods", METHODS, "--models", str(model), "--tasks", "sst2,mr,trec", "--demo", "--limit", "6"]
    return [*line, "--seeds", "0", "--quiet", "--out", str(folder / "out"), "--cache-dir", str(folder / "cache")]


def started(line: list[str], log: Path) -> int:
    """Run a command in a process of its own; returns its number."""
    child = os.fork()
    if child:
        return child
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os._exit(main(line))


def ended(child: int, until: float) -> int | None:
    """The exit code of a process that ends before a moment, or None after killing it then."""
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return None if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def outcome(folder: Path) -> dict[str, Any]:
    """All that is a result or a cost, by cell."""
    store = Store(folder / "out")
    found = {}
    for record in store.records():
        rows = store.rows(record["key"]).to_pylist() if record["result"] else []
        found[record["key"]] = (record["cell"], record["status"], unmeasured(record["result"] or {}), rows)
    return found


def disturbed(folder: Path, line: list[str], processes: int, kills: int, longest: float, chance: random.Random) -> int:
    """Work on a folder with several processes until so many have been killed; returns how many ended by themselves."""
    alive: dict[int, float] = {}
    killed = finished = 0
    while killed < kills:
        while len(alive) < processes:
            alive[started(line, folder / "log")] = time.monotonic() + chance.uniform(0, longest)
        child = min(alive, key=lambda one: alive[one])
        code = ended(child, alive.pop(child))
        killed += code is None
        finished += code is not None
        if code == 0:  # all is there: begin again, so that kills meet work
            for other in alive:
                ended(other, 0)
            alive.clear()
            shutil.rmtree(folder / "out", ignore_errors=True)
            shutil.rmtree(folder / "cache", ignore_errors=True)
    for other in alive:
        ended(other, 0)
    return finished


def compare(folder: Path, wanted: dict[str, Any], say: Callable[[str], object]) -> bool:
    """Whether a folder holds what an undisturbed run gives, and no temporary files."""
    found = outcome(folder)
    same = found.keys() == wanted.keys()
    for key in wanted.keys() | found.keys():
        if found.get(key) != wanted.get(key):
            same = False
            ours, theirs = found.get(key, (None,) * 4), wanted.get(key, (None,) * 4)
            say(f"  differs: {theirs[0] or ours[0]}: {ours[1:3]} instead of {theirs[1:3]}")
    for path in (folder / "out").rglob(".*"):
        if path.is_file() and not path.name.startswith(".lock"):
            say(f"  left over: {path.relative_to(folder)}")
    return same


def drill() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", default="1,2,3")
    parser.add_argument("--each", type=int, default=10, help="kills a folder")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    place = Path(tempfile.mkdtemp(prefix="icrbench-drill-"))
    model = place / "tiny"
    tiny_model("llama").save_pretrained(model)
    tokenizer().save_pretrained(model)
    plain = place / "undisturbed"
    plain.mkdir()
    begin = time.monotonic()
    assert ended(started(command(model, plain), plain / "log"), begin + 3600) == 0, (plain / "log").read_text()
    longest = time.monotonic() - begin
    wanted = outcome(plain)
    print(f"undisturbed: {len(wanted)} cells in {longest:.1f} s", flush=True)
    left, number, right = asked.kills, 0, True
    sizes = [int(part) for part in asked.processes.split(",")]
    while left > 0:
        processes, kills = sizes[number % len(sizes)], min(asked.each, left)
        folder = place / f"{number:03}"
        folder.mkdir()
        line = command(model, folder)
        finished = disturbed(folder, line, processes, kills, longest, chance)
        code = ended(started(line, folder / "log"), time.monotonic() + 3600)
        same = compare(folder, wanted, print) and code == 0
        right = right and same
        verdict = "equal" if same else f"NOT EQUAL (exit code {code}), see {folder}"
        print(f"{processes} processes, {kills} kills, {finished} ended by themselves: {verdict}", flush=True)
        if same:
            shutil.rmtree(folder)
        left, number = left - kills, number + 1
    if right:
        shutil.rmtree(place)
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(drill())
