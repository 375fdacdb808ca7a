"""YAML files a person writes: every complaint names the file, the line and the key."""

from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import yaml

from icrbench.util.errors import UserError, said, shortened, shown, unknown

LARGEST = 1 << 20  # bytes of a file that a person writes
MOST = 10**9  # of a number


class Section:
    """One mapping of a YAML file, read key by key.

    Each getter raises a `UserError` naming file, line and key when the value is missing or of another kind.
    """

    def __init__(self, path: Path, prefix: str, line: int, entries: dict[str, tuple[Any, int, Any]]) -> None:
        self.path = path
        self._prefix = prefix
        self._line = line
        self._entries = entries  # key -> (value, 1-based line, the value's node)

    def fail(self, key: str, problem: str) -> NoReturn:
        """Raise the error for ``key``: at the key's line, or at the section's when the key is absent."""
        line = self._entries[key][1] if key in self._entries else self._line
        raise UserError(f"{self.path}, line {line}, key '{self._prefix}{key}': {problem}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def only(self, *known: str) -> None:
        """Refuse every key that is not in ``known``."""
        for key in self._entries:
            if key not in known:
                self.fail(key, str(unknown("key", key, known)))

    def require(self, *needed: str) -> None:
        """Refuse a section that lacks some of its keys, naming all of them at once."""
        missing = [key for key in needed if key not in self._entries]
        if len(missing) > 1:
            self.fail(missing[0], f"this key is missing, and so are {', '.join(missing[1:])}: add them.")
        if missing:
            self.fail(missing[0], "this key is missing: add it.")

    def value(self, key: str) -> Any:
        """Return the value as YAML gives it."""
        if key not in self._entries:
            self.fail(key, "this key is missing: add it.")
        return self._entries[key][0]

    def text(self, key: str) -> str:
        """Return a string that is not blank and holds no control characters but line feeds and tabs."""
        value = self.value(key)
        if not isinstance(value, str) or not value.strip():
            self.fail(key, f"must be text, but is {shown(value)}: quote it.")
        if any(ord(character) < 32 and character not in "\n\t" for character in value):
            self.fail(key, "holds a control character: remove it.")
        return value

    def optional_text(self, key: str) -> str | None:
        """As `text`, but an absent key or ``null`` gives ``None``."""
        return None if key not in self._entries or self.value(key) is None else self.text(key)

    def number(self, key: str) -> int:
        """Return a whole number of at least 1 and at most ``MOST``."""
        value = self.value(key)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            self.fail(key, f"must be a whole number from 1 to {MOST}, but is {shown(value)}.")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """Read a list of at least two different strings, none blank or with spaces around it."""
        value = self.value(key)
        if not isinstance(value, list) or len(value) < 2:
            self.fail(key, f"must be a list of at least two texts, but is {shown(value)}.")
        for item in value:
            if not isinstance(item, str):
                self.fail(
                    key,
                    f"must hold texts, but holds {shown(item)}: quote it (YAML takes yes for true).",
                )
            if not item or item != item.strip():
                self.fail(key, f"holds {shown(item)}: remove the blank or the spaces around it.")
            if any(ord(character) < 32 for character in item):
                self.fail(key, f"holds {shown(item)}: an option is one line without control characters.")
            if value.count(item) > 1:
                self.fail(key, f"holds '{item}' twice: each must differ from the others.")
        return tuple(value)

    def section(self, key: str) -> "Section":
        """Read a mapping inside this mapping."""
        if not isinstance(self.value(key), dict):
            self.fail(key, f"must hold keys and values, but is {shown(self.value(key))}.")
        _, line, node = self._entries[key]
        return _section(self.path, f"{self._prefix}{key}.", line, node, self.value(key))


def read_yaml(path: Path) -> Section:
    """Read a YAML file whose top level is a mapping.

    Raises:
        UserError: if the file cannot be read, is not UTF-8 or not YAML, holds a key twice, or is no mapping.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST:
            raise UserError(f"{path} has {size} bytes, which no file written by a person has: check the path.")
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}): check the path.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8.") from error
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        value = None if node is None else loader.construct_document(node)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = str(path) if mark is None else f"{path}, line {mark.line + 1}"
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be read"
        raise UserError(f"{place}: this is not valid YAML ({shortened(str(problem))}): correct the line.") from error
    except UserError:
        raise
    except Exception as error:  # the date 2026-99-99, a tag that does not fit its value: the library raises anything
        raise UserError(f"{path}: a value cannot be read ({said(error)}): quote it.") from error
    if not isinstance(value, dict):
        raise UserError(f"{path}, line 1: the file must hold keys and values (name: ..., title: ...).")
    return _section(path, "", 1, node, value)


class _Loader(yaml.SafeLoader):
    """YAML without aliases, whose few bytes can stand for any amount of values, and without half characters."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a node; an alias is an error at its line."""
        if self.check_event(yaml.events.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem="aliases are not read, write the value out", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_scalar(self, node: Any) -> Any:
        """Construct a text; half of a surrogate pair, which an escape can spell, is an error at its line."""
        value = super().construct_scalar(node)
        if any("\ud800" <= character <= "\udfff" for character in str(value)):
            raise yaml.MarkedYAMLError(problem="it holds half a character", problem_mark=node.start_mark)
        return value


def _section(path: Path, prefix: str, line: int, node: Any, value: dict[Hashable, Any]) -> Section:
    """Pair each key of a mapping node with its value and line; YAML lets the last of two equal keys win."""
    entries: dict[str, tuple[Any, int, Any]] = {}
    for key_node, value_node in node.value:
        key = str(key_node.value)
        here = key_node.start_mark.line + 1
        if key in entries:
            raise UserError(f"{path}, line {here}, key '{prefix}{key}': the key stands twice: keep one.")
        if key not in value:
            raise UserError(f"{path}, line {here}, key '{prefix}{key}': a key must be plain text: quote it.")
        entries[key] = (value[key], here, value_node)
    return Section(path, prefix, line, entries)
