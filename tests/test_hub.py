"""Fits on the hub: what is sent is what comes back. The hub is a folder here, at the library's boundary."""

import shutil
from pathlib import Path
from typing import Any

import pytest

import icrbench as package
from cli_setup import Commands, icrbench, model_folder
from icrbench.store.artefact import Artefact
from icrbench.util.errors import UserError

__all__ = ["icrbench"]  # a fixture


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub whose repositories are folders."""
    root = tmp_path / "hub"

    class Api:
        def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
            assert exist_ok
            if repo_id.startswith("others/"):
                raise ValueError("you may not write there\nat all")
            (root / repo_id).mkdir(parents=True)

        def upload_folder(self, *, repo_id: str, folder_path: Path, commit_message: str) -> None:
            shutil.copytree(folder_path, root / repo_id, dirs_exist_ok=True)

    def download(repo_id: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        if not (root / repo_id).is_dir():
            raise OSError("offline")
        assert revision in (None, "v1")
        return str(root / repo_id)

    monkeypatch.setattr("icrbench.api.hub.HfApi", Api)
    monkeypatch.setattr("icrbench.api.hub.snapshot_download", download)
    return root


def a_fit(commands: Commands) -> Path:
    assert commands.run(methods="icv:per_class=1", tasks="sst2").code == 0
    (fit,) = (commands.folder / "out" / "fitted").iterdir()
    return fit


def test_a_fit_goes_to_the_hub_and_back(icrbench: Commands, hub: Path) -> None:
    fit = a_fit(icrbench)
    done = icrbench("push", fit, "me/icv-tiny")
    assert (done.code, done.out) == (0, "https://huggingface.co/me/icv-tiny\n")
    sent = hub / "me" / "icv-tiny"
    assert {path.name for path in sent.iterdir()} == {"fitted.json", "fitted.safetensors", "README.md"}
    text = (sent / "README.md").read_text()
    (record,) = icrbench.records()
    assert record["result"] is not None
    assert f"| sst2 | 0 | demo | 4 | {100 * record['result']['accuracy']:.1f} [" in text
    assert 'icrbench.load_fit("me/icv-tiny"' in text
    for source in ("me/icv-tiny", "me/icv-tiny@v1"):
        there: Any = package.load_fit(source, str(model_folder()))
        assert there.artefact.sha256 == Artefact.read(fit).sha256


def test_mistakes_are_one_sentence(icrbench: Commands, hub: Path) -> None:
    icrbench.refused(icrbench("push", icrbench.folder, "me/nothing"), "does not hold a fitted method")
    icrbench.refused(icrbench("push", a_fit(icrbench), "others/icv"), "cannot push to 'others/icv' (you may not write")
    with pytest.raises(UserError, match="neither a folder"):
        package.load_fit("nobody/nothing", str(model_folder()))
