"""gptoss-check as people and programs call it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from checkers.registry import RULES
from gptoss_builder.cli.check import main
from tests.checkers.samples import SAMPLE, edited

ROOT = Path(__file__).parents[2]
BAD = edited(SAMPLE, ("top_k: 2", "top_k: 6"))
ADVISED = edited(SAMPLE, ("top_k: 2", "top_k: 4"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(SAMPLE)
    Path("bad.yml").write_text(BAD)
    Path("advised.yaml").write_text(ADVISED)
    Path("code.py").write_text("import os\n")
    Path(".hidden.yaml").write_text("no spec\n")
    Path(".git").mkdir()
    Path(".git/x.yaml").write_text("no spec\n")
    Path("notes.txt").write_text("no spec\n")
    return tmp_path


def stdin(monkeypatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["good.yaml"], 0),
        (["advised.yaml"], 0),
        (["bad.yml"], 1),
        (["."], 1),
        (["code.py"], 0),
        (["notes.txt"], 1),
        ([], 2),
        (["none.yaml"], 2),
        ([".git"], 0 + 1),
        (["good.yaml", "--target", "h20"], 2),
        (["good.yaml", "--select", "XX001"], 2),
        (["good.yaml", "--select", "MO999"], 2),
        (["good.yaml", "--ignore", ""], 2),
        (["good.yaml", "--ignore", "VR001"], 2),
        (["good.yaml", "--ignore", "VR"], 2),
        (["good.yaml", "--explain", "ZZ001"], 2),
        (["--explain", "MO001"], 0),
        (["--list"], 0),
        (["--schema"], 0),
        (["good.yaml", "--exclude", "*.yaml"], 2),
        ([".", "--exclude", "bad.yml"], 0),
        (["good.yaml", "--output-file", "none/report.json"], 2),
    ],
)
def test_exit_codes(folder, arguments, code):
    assert main(arguments) == code


def test_schema_is_the_published_one(capsys):
    main(["--schema"])
    assert capsys.readouterr().out == (ROOT / "docs/spec.schema.json").read_text("utf-8")


def test_list_has_every_rule_and_a_wrong_code_points_at_it(capsys):
    main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(RULES)
    assert lines[list(RULES).index("MO001")].startswith("MO001 error  ")
    for arguments in (["--explain", "ZZ001"], ["x.yaml", "--select", "ZZ001"]):
        assert main(arguments) == 2
        assert "gptoss-check --list" in capsys.readouterr().err


def test_unknown_option_is_wrong_usage(folder):
    with pytest.raises(SystemExit) as caught:
        main(["--no-such-option"])
    assert caught.value.code == 2


def test_folder_without_files_is_wrong_usage(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "no .yaml, .yml, .py file" in capsys.readouterr().err


def test_folder_gives_every_spec_that_is_not_hidden(folder, capsys):
    main([".", "--format", "json"])
    content = json.loads(capsys.readouterr().out)
    assert content["summary"]["files"] == 4
    assert {finding["file"] for finding in content["findings"]} == {"advised.yaml", "bad.yml"}


def test_a_file_named_twice_is_checked_once(folder, capsys):
    main(["bad.yml", "bad.yml", "--format", "json"])
    assert json.loads(capsys.readouterr().out)["summary"] == {
        "files": 1,
        "errors": 1,
        "advice": 0,
        "suppressed": 0,
        "without_plan": ["bad.yml"],
    }


def test_select_and_ignore_choose_rules_and_families(folder, capsys):
    assert main(["advised.yaml", "--ignore", "MO002"]) == 0
    assert "clean" in capsys.readouterr().out
    main(["advised.yaml", "--select", "MO"])
    assert "MO002" in capsys.readouterr().out
    assert main(["bad.yml", "--select", "ck, TN001"]) == 0


def test_select_keeps_hard_rules(folder, capsys):
    Path("wide.yaml").write_text(edited(SAMPLE, ("d_model: 64", "d_model: 9000")))
    assert main(["wide.yaml", "--select", "CK001"]) == 1
    assert "HC001" in capsys.readouterr().out


def test_standard_input_is_a_spec(folder, monkeypatch, capsys):
    stdin(monkeypatch, BAD.encode())
    assert main(["-"]) == 1
    assert capsys.readouterr().out.startswith("<stdin>:15:12: error MO001")


def test_undecodable_standard_input_is_a_finding(folder, monkeypatch, capsys):
    stdin(monkeypatch, b"name: \xff\n")
    assert main(["-"]) == 1
    assert "SP001" in capsys.readouterr().out


def test_output_file_is_written_instead_of_printing(folder, capsys):
    assert main(["bad.yml", "--format", "sarif", "--output-file", "out.sarif"]) == 1
    assert capsys.readouterr().out == ""
    assert json.loads(Path("out.sarif").read_text())["version"] == "2.1.0"


def test_no_colour_without_a_terminal_or_with_no_color(folder, capsys, monkeypatch):
    main(["bad.yml"])
    assert "\x1b" not in capsys.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    main(["bad.yml"])
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["bad.yml"])
    assert "\x1b" not in capsys.readouterr().out


MISSPELT = "\ufeff# a comment — kept\r\n" + edited(
    SAMPLE, ("micro_batch: 2", "micro_bach:   2   # kept too"), ("gpu: cpu", "gpu: H-200")
).replace("\n", "\r\n")


def test_fix_repairs_what_leaves_no_choice_and_keeps_everything_else(folder, capsys):
    path = Path("misspelt.yaml")
    path.write_bytes(MISSPELT.replace("gpu: H-200", "gpu: a100-80").encode())
    path.chmod(0o640)
    assert main(["misspelt.yaml", "--fix"]) == 0
    fixed = path.read_bytes().decode()
    assert fixed == MISSPELT.replace("micro_bach", "micro_batch").replace("H-200", "a100-80gb")
    assert path.stat().st_mode & 0o777 == 0o640
    assert "2 repaired" in capsys.readouterr().err


def test_fix_repairs_a_choice_with_one_slip(folder):
    path = Path("slip.yaml")
    path.write_text(edited(SAMPLE, ("precision: fp32", "precision: fp23")))
    assert main(["slip.yaml", "--fix"]) == 1  # two letters swapped may mean anything
    path.write_text(edited(SAMPLE, ("d_ff: 64", "d_ff: 64\n    dispatch: stackd")))
    assert main(["slip.yaml", "--fix"]) == 0
    assert "dispatch: stacked" in path.read_text()


def test_diff_shows_the_repairs_and_writes_nothing(folder, capsys):
    path = Path("misspelt.yaml")
    path.write_text(edited(SAMPLE, ("micro_batch: 2", "micro_bach: 2")))
    before = path.read_bytes()
    assert main(["misspelt.yaml", "--fix", "--diff"]) == 0
    assert path.read_bytes() == before
    lines = capsys.readouterr().out.splitlines()
    assert "-  micro_bach: 2" in lines
    assert "+  micro_batch: 2" in lines


def test_fix_leaves_alone_what_has_two_meanings(folder):
    path = Path("two.yaml")
    path.write_text(edited(SAMPLE, ("gpu: cpu", "gpu: a100"), ("top_k: 2", "top_k: 6")))
    before = path.read_bytes()
    assert main(["two.yaml", "--fix"]) == 1
    assert path.read_bytes() == before


def test_fix_follows_a_link_instead_of_replacing_it(folder):
    Path("real.yaml").write_text(edited(SAMPLE, ("micro_batch: 2", "micro_bach: 2")))
    Path("link.yaml").symlink_to("real.yaml")
    assert main(["link.yaml", "--fix"]) == 0
    assert Path("link.yaml").is_symlink()
    assert "micro_batch" in Path("real.yaml").read_text()


def test_fix_of_standard_input_is_wrong_usage(folder, monkeypatch):
    stdin(monkeypatch, BAD.encode())
    assert main(["-", "--fix"]) == 2


def run(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "gptoss_builder.cli.check", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        check=False,
    )


def test_any_locale_gives_the_same_json(folder):
    Path("odd.yaml").write_text(edited(SAMPLE, ("name: sample", "name: é—”")), encoding="utf-8")
    plain = run("odd.yaml", "--format", "json", cwd=folder)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    other = run("odd.yaml", "--format", "json", cwd=folder, **ascii_only)
    assert plain.returncode == other.returncode == 1
    assert plain.stdout == other.stdout
    text = run("odd.yaml", cwd=folder, PYTHONIOENCODING="ascii")
    assert (text.returncode, text.stderr) == (1, b"")


def test_reader_that_goes_away_is_no_traceback(folder):
    script = f"{sys.executable} -m gptoss_builder.cli.check . | true"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
    )
    assert done.stderr == b""


def test_many_files_are_reported_as_few_are(tmp_path, monkeypatch, capsys):
    for index in range(70):
        (tmp_path / f"{index:02}.yaml").write_text((SAMPLE, BAD, ADVISED)[index % 3])
    shared_out = run(str(tmp_path), "--format", "json", cwd=tmp_path)
    monkeypatch.setattr("gptoss_builder.cli.check.MANY", 1000)
    assert main([str(tmp_path), "--format", "json"]) == shared_out.returncode == 1
    assert shared_out.stdout.decode() == capsys.readouterr().out
    assert json.loads(shared_out.stdout)["summary"]["files"] == 70


@pytest.mark.parametrize("count", [3, 70])
def test_unreadable_file_is_wrong_usage_and_hides_no_other_finding(tmp_path, count):
    for index in range(count):
        (tmp_path / f"{index:02}.yaml").write_text(BAD)
    (tmp_path / "01.yaml").unlink()
    (tmp_path / "01.yaml").symlink_to("nowhere")
    (tmp_path / "loop.py").symlink_to("loop.py")
    done = run(str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    first, second = done.stderr.decode().splitlines()
    assert "01.yaml: there is no such file" in first
    assert "loop.py: cannot be read" in second
    assert done.stdout.count(b"MO001") == count - 1
    assert f"{count - 1} errors in {count - 1} files" in done.stdout.decode()


def test_pipe_in_a_folder_is_not_waited_for(folder):
    os.mkfifo("pipe.yaml")
    assert main([".", "--exclude", "bad.yml"]) == 0


def test_fix_leaves_a_read_only_file_alone(folder, monkeypatch, capsys):
    path = Path("locked.yaml")
    path.write_text(edited(SAMPLE, ("micro_batch: 2", "micro_bach: 2")))
    before = path.read_bytes()
    # Whoever may write everything, as tests in a container may, has no read-only files.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert main(["locked.yaml", "--fix"]) == 2
    assert path.read_bytes() == before
    assert "read-only" in capsys.readouterr().err


CHILD = """
import resource, sys
from gptoss_builder.cli.check import main
assert main([sys.argv[1]]) == 0
heavy = {"torch", "triton", "numpy", "jsonschema", "rich"} & set(sys.modules)
assert not heavy, heavy
usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(sum(usage.ru_utime + usage.ru_stime for usage in usages))
"""


def test_two_hundred_specs_are_quick_and_load_nothing_heavy(tmp_path):
    shipped = sorted((ROOT / "specs").glob("*.yaml"))
    for index in range(200):
        source = shipped[index % len(shipped)].read_text(encoding="utf-8")
        (tmp_path / f"{index}.yaml").write_text(source, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    # Processor seconds; other work on the same cores makes them up to twice as many.
    assert float(done.stdout.splitlines()[-1]) < 2.0


def test_ctrl_c_ends_a_check_of_many_files_without_a_traceback(tmp_path: Path) -> None:
    text = (ROOT / "specs" / "tiny.yaml").read_text(encoding="utf-8")
    for number in range(20_000):  # several seconds of work
        (tmp_path / f"{number}.yaml").write_text(text, encoding="utf-8")
    child = subprocess.Popen(
        [sys.executable, "-m", "gptoss_builder.cli.check", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(2)
    os.killpg(child.pid, signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in out + errors


def test_a_terminal_that_knows_ascii_only_is_enough(tmp_path: Path) -> None:
    spec = tmp_path / "s.yaml"
    spec.write_text("spec: 1\nname: é漢\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "gptoss_builder.cli.check", str(spec)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "name: ??" in done.stdout


def test_a_report_goes_through_a_link_and_into_a_device_and_replaces_neither(folder):
    Path("old").write_text("")
    for name, to in (("report", folder / "old"), ("device", Path(os.devnull))):
        Path(name).symlink_to(to)
        assert main(["good.yaml", "--output-file", name]) == 0
        assert Path(name).is_symlink()
    assert Path("old").read_text() == "clean: 1 file checked\n"


def test_a_closed_standard_input_is_said(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    for arguments in (["-"], ["-", "--diff"]):
        assert main(arguments) == 2
        assert "standard input is closed" in capsys.readouterr().err
