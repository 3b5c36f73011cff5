"""What is kept of a compile: whole or not used, judged anew, and never needed."""

from __future__ import annotations

import multiprocessing
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from gptoss_builder.plan import aot, compile_cache
from gptoss_builder.plan.aot import CompileRequest, compile_kernels, compile_report
from gptoss_builder.plan.compile_cache import Entry
from gptoss_builder.plan.launch import choose
from gptoss_builder.targets import ARCHITECTURES

REQUEST = CompileRequest(
    arch="sm90",
    precision="bf16",
    d_model=768,
    d_ff=1536,
    experts=8,
    launch=choose("sm90", "bf16", 768, 1536, "auto"),
)
MADE = Entry(
    {
        "num_warps": 8,
        "registers": 168,
        "spill_bytes": 0,
        "shared_memory_bytes": 147_480,
        "instructions": {"HGMMA": 24},
        "trap": False,
        "triton": "3.9.0",
    },
    b"\x7fELF" + bytes(range(256)) * 40 + b"\n",
)


class Compiler:
    """Stands for the child process; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[CompileRequest] = []

    def __call__(self, requests: Sequence[CompileRequest]) -> list[Entry]:
        self.asked += requests
        return [MADE for _ in requests]


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Compiler:
    made = Compiler()
    monkeypatch.setattr(aot, "_compile_one_architecture", made)
    return made


def test_an_entry_is_used_again_whatever_is_said_of_its_launch(compiler, tmp_path):
    first = compile_kernels([REQUEST], cache=tmp_path)
    renamed = REQUEST.model_copy(
        update={"launch": REQUEST.launch.model_copy(update={"evidence": "timed since"})}
    )
    (second,) = compile_kernels([renamed], cache=tmp_path)
    assert len(compiler.asked) == 1
    assert second.report.request.launch.evidence == "timed since"
    assert second.cubin == first[0].cubin == MADE.cubin


@pytest.mark.parametrize(
    "change",
    [{"d_ff": 1544}, {"write_gate_up": True}, {"gather": False}, {"kernel": "activation_backward"}],
)
def test_another_request_is_another_entry(compiler, tmp_path, change):
    compile_kernels([REQUEST, REQUEST.model_copy(update=change)], cache=tmp_path)
    assert len(compiler.asked) == 2


def damaged(content: bytes) -> dict[str, bytes]:
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1])
    return {
        "nothing": b"",
        "zeros": bytes(len(content)),
        "cut": content[:-1],
        "more": content + b"\n",
        "one digit of the figures": content.replace(b'"spill_bytes": 0', b'"spill_bytes": 8'),
        "one bit of the code": content[:middle] + flipped + content[middle + 1 :],
        "no text": b"\xff" + content,
    }


def test_a_damaged_entry_is_made_again(compiler, tmp_path):
    first = compile_kernels([REQUEST], cache=tmp_path)
    (entry,) = tmp_path.iterdir()
    whole = entry.read_bytes()
    for name, content in damaged(whole).items():
        assert content != whole, name
        compiler.asked.clear()
        entry.write_bytes(content)
        assert compile_kernels([REQUEST], cache=tmp_path) == first, name
        assert compiler.asked == [REQUEST], name
        assert entry.read_bytes() == whole, name


def test_what_is_kept_is_judged_by_the_table_as_it_is_now(compiler, tmp_path, monkeypatch):
    (before,) = compile_report([REQUEST], cache=tmp_path)
    assert before.problems() == ()
    smaller = ARCHITECTURES["sm90"].model_copy(update={"shared_memory_per_block": 100_000})
    monkeypatch.setattr(aot, "ARCHITECTURES", {**ARCHITECTURES, "sm90": smaller})
    (after,) = compile_report([REQUEST], cache=tmp_path)
    assert "a block has 100,000" in after.problems()[0]
    assert len(compiler.asked) == 1


def a_file(place: Path) -> None:
    place.write_bytes(b"")


def under_a_file(place: Path) -> None:
    place.parent.rmdir()
    place.parent.write_bytes(b"")


def a_folder_for_the_entry(place: Path) -> None:
    key = aot._key(REQUEST, aot._triton_version())
    (place / f"{key}.kernel").mkdir(parents=True)


@pytest.mark.parametrize("obstacle", [a_file, under_a_file, a_folder_for_the_entry])
def test_a_cache_that_cannot_be_written_costs_time_and_nothing_else(obstacle, compiler, tmp_path):
    place = tmp_path / "cache" / "kernels"
    place.parent.mkdir()
    obstacle(place)
    for _ in range(2):
        (made,) = compile_kernels([REQUEST], cache=place)
        assert made.cubin == MADE.cubin
    assert len(compiler.asked) == 2
    assert not list(tmp_path.rglob("*tmp*"))


def test_a_full_disk_leaves_nothing_of_an_entry(compiler, tmp_path, monkeypatch):
    def full(path: Path, content: bytes) -> None:
        path.write_text(content[:100].hex())
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    compile_kernels([REQUEST], cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_user_without_a_home_has_no_cache(compiler, monkeypatch):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    for _ in range(2):
        compile_kernels([REQUEST])
    assert len(compiler.asked) == 2


def test_a_compile_that_failed_is_not_kept(tmp_path, monkeypatch):
    failed = Entry({"error": "no such layout"}, b"")
    monkeypatch.setattr(aot, "_compile_one_architecture", lambda requests: [failed])
    (report,) = compile_report([REQUEST], cache=tmp_path)
    assert report.problems() == ("does not compile: no such layout",)
    assert not list(tmp_path.iterdir())


def write_often(folder: str) -> bool:
    whole = True
    for _ in range(200):
        compile_cache.write(Path(folder), "key", MADE)
        whole &= compile_cache.read(Path(folder), "key") == MADE
    return whole


def test_two_processes_share_a_cache_and_read_whole_entries(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(write_often, [str(tmp_path)] * 4) == [True] * 4
    assert [path.name for path in tmp_path.iterdir()] == ["key.kernel"]


def test_nothing_of_the_cache_is_run_to_read_it(compiler, tmp_path, monkeypatch):
    compile_kernels([REQUEST], cache=tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: pytest.fail("started a process"))
    (report,) = compile_report([REQUEST], cache=tmp_path)
    assert re.fullmatch("[0-9a-f]{64}", report.cubin_sha256)
    assert report.occupancy == 1
