"""The commands as people and programs call them: one JSON object, or one sentence that says what is wrong."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli import COMMANDS, EXAMPLES, main, parse
from headway.errors import HeadwayError
from headway.flags import parse_seeds
from headway.output import Output
from small import flags, small_model

HEADWAY = [sys.executable, "-m", "headway.cli"]
SMALL = [*flags(**small_model(batch=4, steps=3)), "--quiet"]


def test_help_names_the_commands() -> None:
    shown = subprocess.run([*HEADWAY, "--help"], capture_output=True, text=True, check=True).stdout
    for command in ("train", "evaluate", "data", "list", "compare", "lab", "bench"):
        assert command in shown


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_has_help_about_itself_and_its_flags(command: str, capsys) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.startswith(f"example: {EXAMPLES[command]} usage: headway {command} [-h] ")
    assert COMMANDS[command] in shown
    assert "print exactly one JSON object on standard output" in shown


def test_train_and_evaluate_print_one_json_object_with_the_promised_keys(tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "runs")
    trained = subprocess.run(
        [*HEADWAY, "train", "addition", "--seeds", "2", "--out", out, "--json", *SMALL[:-1]],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    runs = json.loads(trained.stdout)["runs"]
    assert [run["seed"] for run in runs] == [0, 1]
    assert set(runs[0]) >= {"run", "seed", "steps", "seconds", "parameters", "final_loss"}
    assert main(["evaluate", out, "--examples", "50", "--check-greedy", "20", "--json"]) == 0
    members = json.loads(capsys.readouterr().out)["members"]
    assert len(members) == 2
    for member in members:
        assert set(member) >= {"examples", "errors", "exact_match", "interval", "greedy", "held_out", "strata"}
        assert member["exact_match"] == 1 - member["errors"] / member["examples"]
        assert set(member["strata"][0]) == {"stratum", "examples", "errors"}
    kept = json.loads((tmp_path / "runs" / "seed-1" / "evaluation-sample.json").read_text())
    assert kept == members[1]


def test_all_problems_are_enumerated_on_request(tmp_path: Path, capsys) -> None:
    assert main(["train", "addition", "--digits", "1", "--out", str(tmp_path / "r"), *SMALL]) == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "r"), "--all", "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["examples"] == 100
    assert found["interval"] is None


def test_untrained_positions_are_named(tmp_path: Path, capsys) -> None:
    words = ["train", "sortedness", "--positions", "learned", "--out", str(tmp_path / "r"), *SMALL]
    assert main(words) == 0
    capsys.readouterr()
    evaluate = ["evaluate", str(tmp_path / "r"), "--json", "--quiet", "--examples", "20"]
    assert main([*evaluate, "--length", "18"]) == 0
    assert json.loads(capsys.readouterr().out)["untrained_positions"] == [16, 17]
    assert main([*evaluate, "--length", "600"]) == 2
    assert "learned positions have 512 rows" in capsys.readouterr().err


def test_a_folder_of_one_run_is_a_folder_of_runs(tmp_path: Path, capsys) -> None:
    out = str(tmp_path / "runs")
    assert main(["train", "addition", "--seeds", "7,", "--out", out, *SMALL]) == 0
    capsys.readouterr()
    assert main(["evaluate", out, "--examples", "10", "--json", "--quiet"]) == 0
    assert [Path(m["run"]).name for m in json.loads(capsys.readouterr().out)["members"]] == ["seed-7"]


def test_a_sample_never_takes_the_place_of_an_enumeration(tmp_path: Path, capsys) -> None:
    run = tmp_path / "r"
    assert main(["train", "addition", "--digits", "1", "--out", str(run), *SMALL]) == 0
    for asked in (["--all"], ["--examples", "10"], ["--length", "2", "--examples", "11"], ["--probe", "carry-heavy"]):
        assert main(["evaluate", str(run), "--quiet", *asked]) == 0
    capsys.readouterr()
    kept = {path.name: json.loads(path.read_text())["examples"] for path in run.glob("evaluation*.json")}
    others = {"evaluation-sample.json": 10, "evaluation-length-2.json": 11, "evaluation-carry-heavy.json": 10_000}
    assert kept == {"evaluation.json": 100, **others}


def test_a_data_folder_can_be_written_trained_on_and_tested_on(tmp_path: Path, capsys) -> None:
    data, run = str(tmp_path / "data"), str(tmp_path / "run")
    sizes = ["--train", "50", "--val", "5", "--test", "20"]
    assert main(["data", "sortedness", "--out", data, *sizes, "--json"]) == 0
    assert [Path(file).name for file in json.loads(capsys.readouterr().out)["files"]] == [
        "train.json",
        "val.json",
        "test.json",
    ]
    assert main(["train", "sortedness", "--data", data, "--out", run, *SMALL]) == 0
    capsys.readouterr()
    assert main(["evaluate", run, "--data", data, "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["examples"], found["held_out"]["examples"]) == (20, 20)


@pytest.mark.parametrize("what", ["tasks", "positions", "pretrained"])
def test_lists_are_json_too(what: str, capsys) -> None:
    assert main(["list", what, "--json"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    names = {"tasks": {"addition", "sortedness"}, "positions": {"sinusoidal", "learned", "none"}}
    names["pretrained"] = {"adder", "certified-adder", "certified-sorter", "smallest-adder"}
    assert names[what] <= {item["name"] for item in items}
    if what == "pretrained":
        shipped = {item["name"]: (item["parameters"], item["certified"]) for item in items}
        assert shipped["smallest-adder"] == (6, True)
        assert shipped["adder"][1] is False


WRONG = {
    "trin": "unknown command 'trin'; did you mean 'train'?",
    "train": "TASK",
    "train adition": "unknown task 'adition'; did you mean 'addition'?",
    "train addition --positions sinusodal": "unknown positions 'sinusodal'; did you mean 'sinusoidal'?",
    "train addition --index sequentiel": "unknown index 'sequentiel'; did you mean 'sequential'?",
    "train addition --sed 3": "did you mean '--seed'?",
    "train addition --device gpu": "unknown device 'gpu'; there are: auto, cpu, cuda",
    "train addition --heads 3": "3 heads do not divide d_model 128; heads can be 1, 2, 4, 8",
    "train addition --steps 0": "steps is 0; it must be at least 1",
    "train addition --steps many": "steps",
    "train addition --batch -1": "batch is -1",
    "train addition --hard 2": "hard is 2.0; it is a share between 0 and 1",
    "train addition --digits 0": "digits is 0",
    "train addition --first last": "first is 'last'; it must be 'most' or 'least'",
    "train addition --longest 5": "task 'addition' has no option 'longest'",
    "train addition --seeds 0": "--seeds 0: ask for 1 to 100,000 seeds",
    "train addition --seed 1 --seeds 2": "--seed and --seeds are both given",
    "train addition --seed -1": "seed is -1; it must be a whole number from 0",
    "train addition --seed 99999999999999999999": "seed is 99999999999999999999",
    "train addition --weight-decay -1": "weight_decay is -1.0; it must be at least 0",
    "train addition --momentum 1": "momentum is 1.0; it must be at least 0 and below 1",
    "train addition --digits 300": "learned positions have 512 rows, too few to train on 601 tokens",
    "train addition --pooling max": "--pooling has no effect here: only a classifier pools",
    "train addition --optimizer adamw --momentum 0.5": "--momentum has no effect here: only Muon uses it",
    "train sortedness --decoder-layers 3": "--decoder-layers has no effect here",
    "train addition --option digits=x": "option 'digits' of task 'addition' is 'x'; it must be like 3",
    "train addition --option digits": "--option 'digits' is not NAME=VALUE",
    "train addition --checkpoint-every 0": "checkpoint_every is 0",
    "train :X": "':X' is not module:Class",
    "train .m:X": "is not module:Class",
    "train json:Nothing": "unknown class in json 'Nothing'",
    "train addition --data nowhere": "there is no nowhere/train.json",
    "train addition --seeds 1,x": "write a number of seeds such as 5, or a list such as 0,3,7",
    "train addition --seeds 1,1": "names a seed twice",
    "train addition --model classifier": "addition answers with a sequence; a classifier cannot",
    "train addition --tracker wandb": "unknown tracker 'wandb'",
    "train addition --population 0": "--population 0: ask for 1 to 100,000 members",
    "train addition --population 3 --seeds 2": "--population counts its seeds from --seed on; leave out --seeds",
    "train addition --population 2 --precision half": "unknown precision 'half'; there are: auto, float32, bfloat16",
    "train addition --population 2 --precision bfloat16 --device cpu": "--precision bfloat16 is for a GPU",
    "train addition --precision float32": "--precision float32 is for a population",
    "train addition --population 2 --digits 300 --device cpu": "learned positions have 512 rows",
    "evaluate pretrained:adder --precision bfloat16": "is for a folder of runs of one shape on a GPU",
    "train addition --learning-rate 0": "learning_rate is 0.0; it must be above 0",
    "train sortedness --shortest 20": "lengths are 20 to 16",
    "train sortedness --until perfect": "sortedness has too many problems, more than --until perfect can enumerate",
    "train addition --digits 40 --until perfect": "addition has about 10^80 problems",
    "evaluate pretrained:adder --length 0": "length is 0; it must be at least 1",
    "evaluate nowhere": "there is no folder nowhere",
    "evaluate pretrained:addr": "did you mean 'adder'?",
    "evaluate pretrained:adder --all --probe carry-heavy": "--all takes every problem",
    "evaluate pretrained:adder --data nowhere --length 4": "--data takes the problems of a file",
    "evaluate pretrained:adder --split val": "name the folder with --data",
    "evaluate pretrained:adder --check-greedy -1": "check_greedy is -1",
    "data addition --out d --train -5": "train is -5; it must be at least 0",
    "data addition --out d --digits 1": "addition has hardly more than",
    "evaluate pretrained:adder --all --examples 5": "--all takes every problem",
    "evaluate pretrained:adder --examples 0": "examples is 0",
    "evaluate pretrained:adder --probe ties": "unknown probe 'ties'",
    "bench speed": "unknown bench 'speed'",
    "data addition": "out",
    "list runs --root nowhere": "there is no folder nowhere",
    "list runs --where positions=": "expected a value: 'positions=⟨here⟩'",
    "list tasks --where positions=rope": "--where applies only to runs; leave it out, or use 'headway list runs'",
    "list checks --rebuild": "--rebuild applies only to runs",
    "compare nowhere --by positions": "there is no folder nowhere",
    "compare . --by positions": "holds no run; 'headway train' makes one",
    "compare . --by positions,": "--by 'positions,'; write names separated by commas",
    "compare .": "by",
    "lab --open --no-open": "--open and --no-open contradict each other",
    "completion tcsh": "tcsh",
}


def test_a_population_of_two_is_two_runs(tmp_path: Path, capsys) -> None:
    words = ["train", "addition", "--population", "2", "--seed", "5", "--out", str(tmp_path / "two"), "--json", *SMALL]
    assert main(words) == 0
    rows = json.loads(capsys.readouterr().out)["runs"]
    assert [Path(row["run"]).name for row in rows] == ["seed-5", "seed-6"]
    assert main(["evaluate", str(tmp_path / "two"), "--examples", "50", "--json", "--device", "cpu"]) == 0
    assert [each["examples"] for each in json.loads(capsys.readouterr().out)["members"]] == [50, 50]


@pytest.mark.parametrize("words", WRONG, ids=str)
def test_a_wrong_request_gets_one_line_and_leaves_nothing(words: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    assert WRONG[words] in shown.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="this machine has a CUDA device")
def test_cuda_without_a_cuda_device_is_refused(capsys) -> None:
    assert main(["train", "addition", "--device", "cuda"]) == 2
    assert "no CUDA device; use --device cpu or --device auto" in capsys.readouterr().err


def test_an_output_folder_without_write_permission_is_refused(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").write_text("here first")
    assert main(["train", "addition", "--out", str(tmp_path / "file" / "run"), *SMALL]) == 2
    assert "a file is where a folder should be" in capsys.readouterr().err
    if os.geteuid() != 0:  # nobody can forbid root
        (tmp_path / "locked").mkdir(mode=0o500)
        assert main(["train", "addition", "--out", str(tmp_path / "locked" / "run"), *SMALL]) == 2
        assert "no permission" in capsys.readouterr().err


def test_seeds_are_a_number_or_a_list() -> None:
    assert parse_seeds("3") == (0, 1, 2)
    assert parse_seeds("0,3,7") == (0, 3, 7)
    with pytest.raises(HeadwayError):
        parse_seeds("-1")


def test_headway_alone_says_what_to_try_first(capsys) -> None:
    assert main([]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert 7 <= shown.out.count("\n") <= 12
    named = {line.split()[1] for line in shown.out.splitlines() if line.startswith("  headway ")}
    assert named - {"COMMAND", "--help"} <= set(COMMANDS)


@pytest.mark.parametrize("command", EXAMPLES)
def test_the_example_of_a_command_is_a_valid_command_line(command: str) -> None:
    line = EXAMPLES[command].removeprefix("source <(").removesuffix(")")
    program, *words = shlex.split(line)
    assert (program, words[0]) == ("headway", command)
    assert type(parse(words)).__name__.lower() == command


def test_help_needs_no_torch() -> None:
    for words in ([], ["--help"], ["heads", "--help"], ["lab", "--help"]):
        code = f"import sys; from headway.cli import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
        code += "assert 'torch' not in sys.modules"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_every_command_and_its_flags(shell: str, capsys) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(command in script for command in COMMANDS)
    assert "--max-drop" in script
    registered = {"bash": "complete -F _tyro_headway headway", "zsh": "compdef _tyro_headway headway"}
    assert registered.get(shell, "complete --no-files --command 'headway'") in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_a_command_and_a_flag(tmp_path: Path, capsys) -> None:
    assert main(["completion", "bash"]) == 0
    (tmp_path / "completion.bash").write_text(capsys.readouterr().out)
    ask = "source completion.bash; COMP_WORDS=({}); COMP_CWORD={}; _tyro_headway; echo ${{COMPREPLY[@]}}"
    for typed, place, expected in (("headway cer", 1, "certify"), ("headway heads --max-d", 2, "--max-drop")):
        done = subprocess.run(
            ["bash", "-c", ask.format(typed, place)], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        assert done.stdout.split() == [expected]


def test_the_lab_opens_its_page_where_there_is_a_display(tmp_path: Path, monkeypatch, capsys) -> None:
    opened, page = [], tmp_path / "report.html"
    monkeypatch.setattr("headway.lab.run_lab", lambda *_: Output({"report": str(page)}, "", []))
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["lab", "--open"]) == 0  # no display: nothing happens
    assert opened == []
    monkeypatch.setenv("DISPLAY", ":0")
    assert main(["lab"]) == 0  # standard output is no terminal here
    assert opened == []
    assert main(["lab", "--open", "--json"]) == 0
    assert opened == [page.as_uri()]
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"report": str(page)}


def test_help_answers_whatever_else_was_typed(capsys) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["heads", "--nope", "--help"])
    assert stop.value.code in (0, None)
    shown = capsys.readouterr()
    assert shown.out.startswith(f"example: {EXAMPLES['heads']}")
    assert shown.err == ""


def test_an_unedited_adapter_says_what_to_edit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "subject"]) == 0
    lines = (tmp_path / "subject.py").read_text().splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.startswith("from model import"))
    assert main(["doctor", "subject.py:build"]) == 2
    said = capsys.readouterr().err
    assert f"in line {line} of subject.py write the name of your own module instead of 'model'" in said
    assert "or put model.py beside it" in said


def test_a_repeated_option_adds_to_the_others(tmp_path: Path) -> None:
    for words in (
        "--option values=10 --option ranges=0.5",
        "--option values=10 ranges=0.5",
        "--option=values=10 --option=ranges=0.5",
    ):
        command = parse(shlex.split(f"train sortedness {words} --seed 3"))
        assert (command.collect_options(), command.seed) == ({"values": 10, "ranges": 0.5}, 3)
