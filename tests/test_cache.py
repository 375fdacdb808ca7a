"""Kept folders: whole or not at all, and no byte can change unseen."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icrbench.util import cache, files
from icrbench.util.cache import Damaged, kept, sealed, unsealed, verified, write_kept
from icrbench.util.errors import UserError
from icrbench.util.files import atomic_path, remove_abandoned, write_atomic
from mutations import EXAMPLES, Mutation, mutations


def fill(folder: Path) -> dict[str, Any]:
    (folder / "a.bin").write_bytes(bytes(range(200)))
    (folder / "part").mkdir()
    (folder / "part" / "b.txt").write_text("ü")
    return {"cost": 3}


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_kept_is_read_and_made_once(tmp_path: Path) -> None:
    first = kept(tmp_path / "x" / "kept", fill)
    again = kept(tmp_path / "x" / "kept", lambda _: pytest.fail("made twice"))
    assert (first.made, again.made) == (True, False)
    assert first.about == again.about
    assert again.about["cost"] == 3
    assert list(again.about["files"]) == ["a.bin", "part/b.txt"]
    assert [path.name for path in (tmp_path / "x").iterdir()] == ["kept"]


@pytest.mark.parametrize("name", ["a.bin", "part/b.txt", "contents.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "longer", "gone"])
def test_damage_is_named_and_healed(name: str, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "kept"
    kept(folder, fill)
    whole = content(folder)
    path = folder / name
    raw = path.read_bytes()
    path.write_bytes(
        {"flip": bytes([raw[0] ^ 1]) + raw[1:], "cut": raw[:-1], "longer": raw + b" ", "gone": b""}[damage]
    )
    if damage == "gone":
        path.unlink()
    with pytest.raises(Damaged, match=path.name):
        verified(folder)
    assert kept(folder, fill).made
    (sentence,) = capsys.readouterr().err.splitlines()
    assert str(path) in sentence
    assert content(folder) == whole


def test_a_file_of_something_else_is_damage_and_one_of_the_system_s_is_not(tmp_path: Path) -> None:
    kept(tmp_path / "kept", fill)
    (tmp_path / "kept" / "._a.bin").write_bytes(b"")
    assert not kept(tmp_path / "kept", fill).made
    (tmp_path / "kept" / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(Damaged, match="was put there by something else"):
        verified(tmp_path / "kept")


def test_a_folder_is_hashed_once_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path / "kept", fill)
    with monkeypatch.context() as patch:
        patch.setattr(cache, "_hash", lambda _: pytest.fail("hashed again"))
        verified(tmp_path / "kept")
    path = tmp_path / "kept" / "a.bin"
    times = path.stat()
    path.write_bytes(bytes(200))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # the same size and time, in place
    with pytest.raises(Damaged):
        verified(tmp_path / "kept")


def test_who_may_not_read_is_told_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept(tmp_path / "kept", fill)
    cache._SEEN.clear()

    def refuse(file: Path) -> str:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr(cache, "_hash", refuse)
    with pytest.raises(UserError, match=r"cannot read .*a\.bin \(Permission denied\): ask its owner") as error:
        kept(tmp_path / "kept", fill)
    assert not isinstance(error.value, Damaged)
    assert (tmp_path / "kept").is_dir()


def test_who_is_slower_takes_what_is_there(tmp_path: Path) -> None:
    def slower(folder: Path) -> Mapping[str, Any]:
        write_kept(tmp_path / "kept", fill)  # another process, meanwhile
        (folder / "a.bin").write_bytes(b"other")
        return {"cost": 4}

    assert kept(tmp_path / "kept", slower).about["cost"] == 3
    assert (tmp_path / "kept" / "a.bin").read_bytes() == bytes(range(200))
    assert len(list(tmp_path.iterdir())) == 1


def test_what_fails_leaves_nothing(tmp_path: Path) -> None:
    def broken(folder: Path) -> Mapping[str, Any]:
        fill(folder)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        kept(tmp_path / "kept", broken)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="not JSON compliant"):
        kept(tmp_path / "kept", lambda _: {"cost": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_new_files_have_the_permissions_of_any_new_file(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from icrbench.util.cache import write_kept\n"
        "from icrbench.util.files import write_atomic\n"
        "here = Path(sys.argv[1]); os.umask(int(sys.argv[2], 8))\n"
        "def fill(folder):\n"
        "    os.close(os.open(folder / 'a', os.O_CREAT | os.O_WRONLY, 0o600)); return {}\n"
        "write_kept(here / 'kept', fill); write_atomic(here / 'file', b'')\n"
        "print(*[oct(p.stat().st_mode & 0o777) for p in (here / 'file', here / 'kept', here / 'kept' / 'a')])"
    )
    for umask, modes in (("002", "0o664 0o775 0o664"), ("077", "0o600 0o700 0o600")):
        command = [sys.executable, "-c", code, str(tmp_path / umask), umask]
        assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split() == modes.split()


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from icrbench.util.files import atomic_folder, atomic_path\n"
        "with atomic_path(Path(sys.argv[1]) / 'a') as file, atomic_folder(Path(sys.argv[1]) / 'b') as folder:\n"
        "    (folder / 'x').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    (tmp_path / "._a").write_text("")
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == 3
    with atomic_path(tmp_path / "mine") as mine:
        remove_abandoned(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["._a", mine.name]


def test_what_another_machine_left_is_removed_when_it_is_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(files.platform, "node", lambda: "elsewhere")
        theirs = files._temporary(tmp_path / "a.json")
    theirs.write_text("")
    remove_abandoned(tmp_path)
    assert theirs.exists()
    os.utime(theirs, (0, 0))
    remove_abandoned(tmp_path)
    assert not theirs.exists()


def test_sealed_text_is_json() -> None:
    value = {"a": [1, 1.5, None, True], "b": {"c": "ü\n"}, "z": "\ud800"}
    read = unsealed(sealed(value))
    assert {name: read[name] for name in value} == value
    assert json.loads(sealed({"a": "ü"}))["a"] == "ü"
    with pytest.raises(ValueError, match="does not end with a hash"):
        unsealed(b'{"a": 1}')


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutations)
def test_no_change_of_sealed_text_is_unseen(mutation: Mutation) -> None:
    text = sealed({"accuracy": 0.5, "n": 40, "name": "ü"})
    with pytest.raises(ValueError, match=r"it does not end with a hash|it was changed after"):
        unsealed(mutation.of(text))


@settings(max_examples=EXAMPLES, deadline=None)
@given(mutations, st.integers(0, 2))
def test_no_change_of_a_kept_folder_is_unseen(
    tmp_path_factory: pytest.TempPathFactory, mutation: Mutation, number: int
) -> None:
    folder = tmp_path_factory.mktemp("cache") / "kept"
    write_kept(folder, fill)
    name = sorted(content(folder))[number]
    write_atomic(folder / name, mutation.of((folder / name).read_bytes()))
    with pytest.raises(Damaged, match="damaged"):
        verified(folder)
