"""Sweep files: what they describe, and the errors for invalid ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.errors import HeadwayError
from headway.sweeps.file import read_sweep
from headway.trials.trial import Resources, Study

GOOD = """
name = "a sweep"
choose = "rate"
[base]
task = "addition"
steps = 10
options = {digits = 2}
seeds = [0, 3]
[[axis]]
positions = ["learned", "sinusoidal"]
rate = [1, 2.0]
[studies.evaluate]
examples = 100
[resources]
threads = 2
memory = "2GB"
timeout = "15m"
gpus = 0.5
[compare]
by = "positions"
metrics = ["exact_match"]
"""


def write_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "some.toml"
    path.write_text(text)
    return str(path)


def test_a_file_describes_the_whole_sweep(tmp_path: Path) -> None:
    sweep = read_sweep(write_file(tmp_path, GOOD))
    assert (sweep.name, sweep.out, sweep.choose) == ("a sweep", Path("runs/a-sweep"), "rate")
    assert sweep.studies == (Study("evaluate", {"examples": 100}),)
    assert sweep.resources == Resources(threads=2, memory=2 * 2**30, timeout=900.0, gpus=0.5)
    assert (sweep.compare.by, sweep.compare.metrics) == (("positions",), ("exact_match",))
    assert len(sweep.trials()) == 2 * 2 * 2


def test_a_sweep_without_a_name_is_named_after_its_file(tmp_path: Path) -> None:
    assert read_sweep(write_file(tmp_path, '[base]\ntask = "addition"')).out == Path("runs/some")
    assert read_sweep(write_file(tmp_path, '[base]\ntask = "addition"'), "elsewhere").out == Path("elsewhere")


WRONG = {
    'nam = "x"': "unknown entry 'nam'; did you mean 'name'?",
    'name = "../../etc"': "name is '../../etc'",
    'name = ".hidden"': "name is '.hidden'",
    "name = 3": "name is 3; it must be a string",
    "[base]\ntask = 3": "task is 3",
    "[base]\nseeds = 0": "seeds is 0",
    "[base]\nseeds = true": "seeds is True",
    '[base]\ntask = "addition"\nstepz = 3': "unknown setting 'stepz'; did you mean 'steps'?",
    '[base]\ntask = "addition"\nsteps = "many"': "steps is 'many'; it must be a whole number",
    '[base]\ntask = "addition"\nsteps = 1.5': "steps is 1.5; it must be a whole number",
    '[base]\ntask = "addition"\noptimizer = "sgd"': "optimizer is 'sgd'; there are: muon, adamw",
    '[base]\ntask = "addition"\nlearning_rate = nan': "learning_rate is nan",
    '[base]\ntask = "addition"\nrate = 0': "rate is 0",
    '[base]\ntask = "addition"\nseed = "x"': "seed is 'x'",
    '[base]\ntask = "addition"\noptions = {digitz = 2}': "has no option 'digitz'",
    '[base]\ntask = "addition"\ntrack = "fast"': "unknown track 'fast'",
    "axis = 3": "axis is 3; write tables",
    "[[axis]]": "an axis has no setting",
    '[[axis]]\npositions = "rope"': "positions of an axis is 'rope'; write a list",
    '[[axis]]\nhow = "all"\npositions = ["rope"]': "unknown kind of axis 'all'",
    '[[axis]]\nhow = "zip"\nheads = [1, 2]\nlayers = [1]': "heads has 2, layers has 1",
    '[[axis]]\nhow = "random"\nlayers = [1]': "draws is 0",
    "[[axis]]\ndraws = 3\nlayers = [1]": "this one is a grid",
    '[[axis]]\nhow = "random"\ndraws = 2\nlearning_rate = {low = 1, high = 0.1}': "learning_rate is drawn from",
    '[[axis]]\nhow = "random"\ndraws = 2\nhard = {low = 0, high = 1, log = true}': "hard is drawn from",
    '[[axis]]\nhow = "list"\nlayers = [1]': "a list axis has one entry, trials",
    '[[axis]]\nhow = "list"\ntrials = [3]': "trials of an axis has 3",
    "studies = 3": "studies is 3",
    "[studies]\nevaluate = 3": "studies.evaluate is 3",
    'choose = "rate"': "unknown axis to choose 'rate'",
    "[resources]\nthreads = 0": "threads is 0",
    '[resources]\nmemory = "lots"': "'lots'; write it like 4GB",
    '[resources]\ntimeout = "soon"': "timeout is 'soon'",
    "[resources]\ntimeout = -1": "timeout is -1",
    "[resources]\ngpus = -1": "gpus is -1",
    '[resources]\nprecision = "half"': "precision is 'half'; there are: auto, float32, bfloat16",
    "[compare]\nby = 3": "by is 3",
    "a = [": "is not valid TOML",
    '[base]\ntask = "addition"\nsteps = 1' + "0" * 400: "steps is a number of",
    "[base]\nseeds = 1" + "0" * 5000: "",  # no TOML, or too many, by how many digits Python was told to read
    '[[axis]]\nhow = "random"\ndraws = 1\nhard = {low = 1, high = 1'
    + "0" * 400
    + ", log = true}": "hard is drawn from",
    '[resources]\npip = ["x @ https://evil"]': "pip has",
    '[resources]\npip = ["git+evil"]': "pip has",
    '[resources]\npip = ["./evil"]': "pip has",
    "a = " + "[" * 10_000: "",
}


@pytest.mark.parametrize("text", WRONG)
def test_an_invalid_file_gives_a_one_line_error(tmp_path: Path, text: str) -> None:
    with pytest.raises(HeadwayError) as caught:
        read_sweep(write_file(tmp_path, text)).trials()
    assert WRONG[text] in str(caught.value)
    assert "\n" not in str(caught.value)


AXES = {
    'how = "zip"\nd_model = [32, 64]\nheads = [2, 4]': [(32, 2), (64, 4)],
    "d_model = [32, 64]\nheads = [2, 4]": [(32, 2), (32, 4), (64, 2), (64, 4)],
    'how = "list"\ntrials = [{heads = 2}, {d_model = 64, heads = [1, 2]}]': [(128, 2), (64, 1), (64, 2)],
    'how = "random"\ndraws = 1\ndraw_seed = 3\nheads = [1]\nd_model = {low = 63, high = 64}': [(63, 1)],
}


@pytest.mark.parametrize("text", AXES)
def test_axes_make_trials(tmp_path: Path, text: str) -> None:
    sweep = read_sweep(write_file(tmp_path, f'[base]\ntask = "addition"\n[[axis]]\n{text}'))
    assert [(trial.config.model.d_model, trial.config.model.heads) for trial in sweep.trials()] == AXES[text]


def test_a_missing_file_or_function_gives_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(HeadwayError, match="there is no sweep file"):
        read_sweep(str(tmp_path / "none.toml"))
    with pytest.raises(HeadwayError, match="there is no file"):
        read_sweep(str(tmp_path / "none.py:build"))
    (tmp_path / "mine.py").write_text("def build(): return 3")
    with pytest.raises(HeadwayError, match="returned int; it must return a dict"):
        read_sweep(f"{tmp_path / 'mine.py'}:build")


@pytest.mark.parametrize(
    "text",
    [
        '[base]\ntask = "evil:Task"',
        '[base]\ntask = "addition"\npositions = "evil.py:Positions"',
        '[[axis]]\npositions = ["rope", "evil:Positions"]',
        '[[axis]]\nhow = "list"\ntrials = [{positions = ["evil:Positions"]}]',
    ],
)
def test_a_toml_file_runs_no_code(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("evil.py", "evil"):
        (tmp_path / f"{name.removesuffix('.py')}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(HeadwayError, match="a TOML file runs none"):
        read_sweep(write_file(tmp_path, text)).trials()
    assert not (tmp_path / "ran").exists()


def test_packages_may_be_named(tmp_path: Path) -> None:
    sweep = read_sweep(write_file(tmp_path, '[resources]\npip = ["einops", "numpy==2.1.0", "some[extra]>=1.2"]'))
    assert sweep.resources.pip == ("einops", "numpy==2.1.0", "some[extra]>=1.2")


def test_a_python_function_may_name_its_own_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from headway.tasks import Addition\n"
        "class Mine(Addition): pass\n"
        'def build(): return {"base": {"task": "mine:Mine"}, "axis": [{"seed": [1, 2]}]}\n'
    )
    sweep = read_sweep(f"{tmp_path / 'mine.py'}:build")
    assert (sweep.name, sweep.home) == ("mine", tmp_path)
    assert sweep.base == {"task": "mine:Mine"}
