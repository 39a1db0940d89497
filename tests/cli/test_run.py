"""`foreshock run`: what it prints, how it exits, and what it leaves alone."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import foreshock
from foreshock.cli.main import app
from tests.cli.programs import write

ROOT = Path(__file__).parents[2]

Output = tuple[int, str, str]
Foreshock = Callable[..., Output]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Foreshock:
    """The command line in this process and in an empty folder: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(*arguments: str) -> Output:
        monkeypatch.delitem(sys.modules, "train", raising=False)
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            app(list(arguments))
        said = capsys.readouterr()
        return int(left.value.code or 0), said.out, said.err

    return call


def train(
    *more: str, program: str = "train.py:program", run_dir: str = "run", steps: int = 3
) -> list[str]:
    return ["run", program, "--run-dir", run_dir, "--max-steps", str(steps), *more]


def refused(output: Output, *words: str) -> None:
    """Exit code 2, and one sentence on stderr that holds the words."""
    code, out, err = output
    assert code == 2
    assert out == ""
    assert err.startswith("foreshock: ")
    assert err.count("\n") == 1 and err.endswith("\n")
    assert "Traceback" not in err
    for word in words:
        assert word in err, err


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): path.read_bytes() for path in files}


def test_version_help_and_no_command(run_it: Foreshock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run_it("--version") == (0, f"{foreshock.__version__}\n", "")
    code, out, err = run_it("--help")
    assert (code, err) == (0, "")
    assert all(name in out for name in ("run", "demo", "report"))
    assert max(map(len, out.splitlines())) <= 80
    code, out, err = run_it("run", "--help")
    assert code == 0
    assert all(name in out for name in ("--run-dir", "--max-steps", "--resume", "--set", "--json"))
    assert max(map(len, out.splitlines())) <= 80
    assert run_it()[0] == 2


def test_a_run_says_what_came_of_it(run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path)
    code, out, err = run_it(*train())
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "Finished at step 3: 0 incident(s), 0 samples set aside.",
        "Next: foreshock report run",
    ]


def test_a_long_path_and_brackets_are_printed_as_they_are(
    run_it: Foreshock, tmp_path: Path
) -> None:
    write(tmp_path)
    name = f"[/red][bold]{'long' * 30}"
    code, out, _ = run_it(*train(run_dir=name))
    assert code == 0
    assert out.splitlines()[-1] == f"Next: foreshock report {name}"


def test_json_is_json_and_the_same_seed_ends_the_same(run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path)
    found = []
    for place, seed in enumerate(("5", "5", "6")):
        options = ["--seed", seed, "--json"]
        code, out, err = run_it(*train(*options, run_dir=f"run{place}", steps=12))
        assert (code, err) == (0, "")
        found.append(json.loads(out))
    assert found[0].keys() == {
        "run_dir", "step", "attempt", "halted", "stopped", "num_incidents", "num_advices",
        "num_quarantined", "digest",
    }  # fmt: skip
    assert found[0]["step"] == 12
    assert found[0]["digest"] == found[1]["digest"] != found[2]["digest"]


def test_overrides_reach_the_program(run_it: Foreshock, tmp_path: Path) -> None:
    write(
        tmp_path,
        more="""
        kept = program
        def program(settings):
            print(dict(settings.overrides))
            return kept(settings)
        """,
    )
    code, out, _ = run_it(*train("--set", "lr=0.5", "--set", "tag=a=b", "--set", "deep=[1]"))
    assert code == 0
    assert out.splitlines()[0] == "{'lr': 0.5, 'tag': 'a=b', 'deep': [1]}"


def test_a_recipe_without_the_loss_still_runs(run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path)
    Path("recipe.toml").write_text("rules = false\n[signals]\nloss = false\n")
    code, out, _ = run_it(*train("--config", "recipe.toml"))
    assert code == 0
    assert out.startswith("Finished at step 3")


PROGRAMS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "raises": (
        {"more": "def program(s):\n    raise ValueError('no data\\nhere')\n"},
        ("program raised ValueError: no data here", "train.py, line "),
    ),
    "exits": ({"more": "import sys\nsys.exit(0)\n"}, ("train.py raised SystemExit: 0",)),
    "returns none": (
        {"more": "def program(s):\n    pass\n"},
        ("program returned a NoneType; it must return a foreshock.Program",),
    ),
    "no module": ({"model": "len"}, ("Program.model is a builtin_function_or_method",)),
    "no optimizer": ({"optimizer": "None"}, ("Program.optimizer is a NoneType",)),
    "no stream": ({"stream": "[1, 2]"}, ("Program.stream is a list", "foreshock.Stream")),
    "no loss": ({"loss": "3"}, ("Program.loss is a int",)),
    "no data": ({"size": 0}, ("data",)),
    "bad clip": ({"clip": "0.0"}, ("clip is 0.0",)),
    "bad accumulate": ({"accumulate": "0"}, ("accumulate is 0",)),
    "syntax error": ({"more": "def (\n"}, ("train.py raised SyntaxError",)),
    "import error": ({"more": "import no_such_thing\n"}, ("No module named 'no_such_thing'",)),
    "no function": ({"more": "del program\n"}, ("has no function 'program'", "it has loss")),
    "not callable": ({"more": "program = 3\n"}, ("has no function 'program'",)),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_that_is_none_is_refused_before_anything_is_written(
    name: str, run_it: Foreshock, tmp_path: Path
) -> None:
    how, words = PROGRAMS[name]
    write(tmp_path, **how)
    refused(run_it(*train()), *words)
    assert not Path("run/decisions.jsonl").exists()


LOSSES: dict[str, tuple[str, str]] = {
    "raises": ("lambda m, b: {}['x']", "step 1: the program's loss raised KeyError: 'x'"),
    "multi-line": (
        "lambda m, b: m(b[:, :2])",
        "step 1: the program's loss raised RuntimeError: mat1 and mat2",
    ),
    "not a scalar": ("lambda m, b: m(b)", "step 1: the loss must be a scalar tensor"),
    "a number": ("lambda m, b: 1.0", "step 1: the loss must be a scalar tensor"),
    "no gradient": ("lambda m, b: loss(m, b).detach()", "requires_grad=False"),
    "unknown terms": (
        "lambda m, b: foreshock.core.program.Loss(total=loss(m, b), terms={'z': 1})",
        "loss terms ['z'] were given",
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_that_is_none_stops_the_run_with_a_sentence(
    name: str, run_it: Foreshock, tmp_path: Path
) -> None:
    code, words = LOSSES[name]
    write(tmp_path, more="import foreshock.core.program\n", loss=code)
    refused(run_it(*train()), words)


def test_data_that_raises(run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path, more="Data.__getitem__ = lambda self, index: [][index]\n", held_out="()")
    refused(run_it(*train()), "the dataset raised IndexError")


ARGUMENTS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "no colon": (train(program="train.py"), ("'train.py' is not of the form PATH.py:function",)),
    "no name": (train(program="train.py:"), ("is not of the form",)),
    "no file": (train(program="nope.py:program"), ("there is no file nope.py",)),
    "a folder": (train(program=".:program"), ("there is no file .",)),
    "no python": (train(program="notes.txt:program"), ("notes.txt is not a Python file",)),
    "no function": (train(program="train.py:other"), ("no function 'other'", "loss, program")),
    "bad set": (train("--set", "lr"), ("--set 'lr' is not of the form NAME=VALUE",)),
    "nameless set": (train("--set", "=3"), ("--set '=3'",)),
    "no config": (train("--config", "no.toml"), ("no.toml cannot be read",)),
    "config folder": (train("--config", "."), (". cannot be read",)),
    "config no toml": (train("--config", "notes.txt"), ("notes.txt is not TOML",)),
    "config unknown": (train("--config", "odd.toml"), ("unknown setting 'polcy'",)),
    "bad seed": (train("--seed", "-1"), ("seed is -1",)),
    "huge seed": (train("--seed", str(2**70)), ("seed is",)),
    "resume nothing": (train("--resume"), ("run is not a Foreshock run directory",)),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_bad_arguments_are_refused(name: str, run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path)
    Path("notes.txt").write_text("not = [toml")
    Path("odd.toml").write_text("[polcy]\n")
    before = contents(tmp_path)
    arguments, words = ARGUMENTS[name]
    refused(run_it(*arguments), *words)
    after = contents(tmp_path)
    assert {path: after[path] for path in after if "__pycache__" not in path} == before


def test_a_directory_that_is_not_empty_is_left_alone(run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path)
    Path("run").mkdir()
    Path("run/thesis.txt").write_text("mine")
    refused(run_it(*train()), "run ", "choose another run directory")
    refused(run_it(*train("--resume")), "no run.json")
    assert contents(Path("run")).keys() <= {"run/thesis.txt", "run/lock"}
    assert Path("run/thesis.txt").read_text() == "mine"


def test_a_finished_run_is_not_overwritten_and_not_taken_for_another(
    run_it: Foreshock, tmp_path: Path
) -> None:
    write(tmp_path, more="other = program\n")
    assert run_it(*train())[0] == 0
    before = contents(Path("run"))
    refused(run_it(*train()), "run holds a run already", "--resume")
    write(tmp_path, more="program.__name__ = 'x'\nother = program\n", clip="None")
    refused(run_it(*train("--resume", program="train.py:other")), "run")
    assert contents(Path("run")) == before


@pytest.mark.parametrize("place", ["train.py", "train.py/run", "/proc/run"])
def test_a_directory_that_cannot_be_made(place: str, run_it: Foreshock, tmp_path: Path) -> None:
    source = write(tmp_path).read_text()
    refused(run_it(*train(run_dir=place)), place)
    assert Path("train.py").read_text() == source


def test_a_run_goes_on_where_it_ended(run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path)
    assert run_it(*train(steps=4))[0] == 0
    resumed = json.loads(run_it(*train("--resume", "--json", steps=9))[1])
    whole = json.loads(run_it(*train("--json", steps=9, run_dir="whole"))[1])
    assert resumed["step"] == whole["step"] == 9
    assert resumed["digest"] == whole["digest"]
    assert resumed["attempt"] == 2


SIGNALLED = """
        import os, signal
        steps, plain = 0, loss
        def loss(model, batch):
            global steps
            steps += model.training
            if steps == 7 and "SEND" in os.environ:
                os.kill(os.getpid(), signal.Signals[os.environ["SEND"]])
            return plain(model, batch)
        """


def test_an_interrupted_run_exits_130_and_can_be_resumed(run_it: Foreshock, tmp_path: Path) -> None:
    write(tmp_path, more=SIGNALLED)
    command = [sys.executable, "-c", "from foreshock.cli.main import app; app()", *train(steps=12)]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"SEND": "SIGINT"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    resumed = json.loads(run_it(*train("--resume", "--json", steps=12))[1])
    whole = json.loads(run_it(*train("--json", steps=12, run_dir="whole"))[1])
    assert resumed["step"] == 12
    assert resumed["digest"] == whole["digest"]


def test_a_run_that_the_system_stops_exits_75_and_goes_on(
    run_it: Foreshock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, more=SIGNALLED)
    monkeypatch.setenv("SEND", "SIGTERM")
    code, out, _ = run_it(*train(steps=12))
    assert code == 75
    assert "The run was stopped by SIGTERM after step 7" in out and "resume" in out
    code, out, _ = run_it(*train("--json", steps=12, run_dir="json"))
    told = json.loads(out)
    assert (code, told["step"], told["digest"]) == (75, 7, None)
    assert told["stopped"].startswith("stopped by SIGTERM") and told["halted"] is None
    monkeypatch.delenv("SEND")
    resumed = json.loads(run_it(*train("--resume", "--json", steps=12))[1])
    whole = json.loads(run_it(*train("--json", steps=12, run_dir="whole"))[1])
    assert resumed["digest"] == whole["digest"] and resumed["stopped"] is None


def test_the_quickstart_runs_twice_in_one_process(run_it: Foreshock) -> None:
    found = []
    for place in ("first", "second"):
        program = f"{ROOT}/docs/quickstart.py:program"
        code, out, err = run_it(*train("--json", program=program, run_dir=place))
        assert (code, err) == (0, "")
        found.append(json.loads(out)["digest"])
    assert found[0] == found[1]
