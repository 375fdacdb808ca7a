"""Results of the same cells that other code computed: one sentence, before they are computed again."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from icrbench.store.records import CellRecord, identity_key
from icrbench.store.store import Store
from icrbench.util.errors import UserError

_WORDS = {"core": "icrbench", "method": "the method"}


def changed_code(store: Store, identities: Iterable[Mapping[str, Any]]) -> str | None:
    """Say which cells a results folder holds as other code computed them; None if there are none.

    Args:
        store: the results folder.
        identities: of the cells that are asked for.
    """
    missing = [identity for identity in identities if not store.holds(identity_key(identity))]
    records: list[CellRecord] = []
    if missing and not store.empty:
        with suppress(UserError):  # a damaged record is told of when its cell's turn comes
            records = store.records()
    there = {_without_code(record["identity"]): record["identity"].get("code", {}) for record in records}
    changes: dict[str, None] = {}
    count = 0
    for identity in missing:
        then, now = there.get(_without_code(identity)), identity["code"]
        if then not in (None, now):  # equal: another process has just finished the cell
            count += 1
            changed = [name for name in now if then.get(name) != now[name]]
            changes |= dict.fromkeys(_change(name, then.get(name), now[name]) for name in changed)
    if not count:
        return None
    return (
        f"{count} of the cells asked for are in {store.folder} as other code computed them"
        f" ({', '.join(changes)} changed since): they are computed again and reports mark the older ones;"
        " give another --out to keep the two apart."
    )


def _without_code(identity: Mapping[str, Any]) -> str:
    return identity_key({name: value for name, value in identity.items() if name != "code"})


def _change(name: str, then: str | None, now: str) -> str:
    return _WORDS.get(name) or f"{name} {then} to {now}"
