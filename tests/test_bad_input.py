"""Every mistake is told in one sentence with exit code 2, and nothing is written or overwritten."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from commands import TINY, command, done, refused
from PIL import Image
from safetensors import safe_open


def text(path: Path | str, content: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(content)


NET = """
import torch
class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Flatten(), torch.nn.Linear(64, 3))
class Failing(torch.nn.Module):
    def __init__(self):
        raise ValueError("not [today]\\nnor tomorrow")
"""
HEADER = "p,q,label\n"
GOOD = HEADER + "1,2,x\n2,3,y\n4,4,x\n5,5,y\n"


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that mistakes are made with."""
    place = tmp_path_factory.mktemp("workshop")
    before = Path.cwd()
    os.chdir(place)
    try:
        text("net.py", NET)
        text("raising.py", "1 / 0\n")
        text("syntax.py", "def (\n")
        for name, first in {
            "one": HEADER + "1,2,x\n",
            "none": HEADER,
            "nan": HEADER + "1,2,x\n1,nan,y\n",
            "words": HEADER + "1,two,x\n",
            "short": HEADER + "1,x\n",
        }.items():
            text(f"{name}/anna.csv", first)
            text(f"{name}/bert.csv", GOOD)
        (place / "empty").mkdir()
        (place / "bare" / "anna").mkdir(parents=True)
        text("bare/bert.csv", GOOD)
        text("full/notes.txt", "keep me")
        text("invalid.toml", "rounds = \n")
        text("unknown.toml", "roundz = 3\n")
        text("type.toml", 'rounds = "many"\n')
        text("hyper.toml", 'method = "fedprox"\n[set]\nmu = "much"\n')
        Path("binary.toml").write_bytes(b"\xff\xfe")
        Path("folder.toml").mkdir()
        done("run", "local-only", *TINY, "--out", "run")
        about = json.loads(Path("run/config.json").read_text())
        for name, content in {
            "cut": json.dumps(about)[:-50],
            "list": "[]",
            "lacking": json.dumps({"config": about["config"]}),
            "odd": json.dumps({**about, "config": 3}),
            "wrong": json.dumps({**about, "config": {**about["config"], "lr": "x"}}),
            "data": json.dumps({**about, "data_fingerprint": "0"}),
            "unfinished": json.dumps(about),
        }.items():
            text(f"damaged/{name}/config.json", content)
        shutil.copytree("run", "altered")
        text("altered/metrics.jsonl", Path("run/metrics.jsonl").read_text().splitlines()[0] + "\n{}\n")
        done("export", "run", "--client", 0, "--to", "model.safetensors")
        damage(Path("model.safetensors"))
        Image.new("L", (8, 8), 9).save("digit.png")
        Path("cut.png").write_bytes(Path("digit.png").read_bytes()[:50])
        Image.new("I;16", (8, 8)).save("deep.png")
        text("text.png", "not an image")
        np.save("small.npy", np.zeros((1, 4, 4)))
        np.save("nan.npy", np.full((1, 8, 8), np.nan))
        np.save("words.npy", np.full((1, 8, 8), "x"))
        text("good/anna.csv", GOOD)
        done("run", "fedavg", *TINY, "--data", "good", "--clients", "0", "--out", "table")
    finally:
        os.chdir(before)
    return place


def damage(model: Path) -> None:
    """Variants of an exported model that must not be taken for one."""
    content = model.read_bytes()
    tensors = safetensors.numpy.load(content)
    with safe_open(model, "np") as file:
        about = file.metadata()
    model.with_name("cut.safetensors").write_bytes(content[:-100])
    model.with_name("short.safetensors").write_bytes(content[:20])
    model.with_name("bare.safetensors").write_bytes(safetensors.numpy.save(tensors))
    first = next(iter(tensors))
    less = {name: array for name, array in tensors.items() if name != first}
    model.with_name("less.safetensors").write_bytes(safetensors.numpy.save(less, about))
    other = {**tensors, first: tensors[first][:-1]}
    model.with_name("other.safetensors").write_bytes(safetensors.numpy.save(other, about))


def contents(folder: Path) -> dict[str, bytes | None]:
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts
    }


RUN = "run fedavg " + " ".join(TINY) + " --out {out}"
MISTAKES = {
    # names that do not exist
    RUN.replace("fedavg", "fedavgg"): "unknown method 'fedavgg': did you mean 'fedavg'?",
    f"{RUN} --data digit": "unknown dataset 'digit': did you mean 'digits'?",
    f"{RUN} --data ./digits": "there is no folder ./digits",
    f"{RUN} --data ''": "unknown dataset ''",
    f"{RUN} --model mpl": "unknown model 'mpl': did you mean 'mlp'?",
    f"{RUN} --partition dirichle:1": "unknown partition 'dirichle': did you mean 'dirichlet'?",
    f"{RUN} --engine inlin": "engine should be 'auto', 'inline', 'processes' or 'ray', but 'inlin' was given",
    f"{RUN} --device cup": "unknown device 'cup': did you mean 'cpu'?",
    f"{RUN} --dtype float16": "dtype should be 'float32' or 'float64', but 'float16' was given",
    f"{RUN} --pool test": "pool should be 'all' or 'train', but 'test' was given",
    f"{RUN} --vectorize yes": "vectorize should be 'auto', 'on' or 'off', but 'yes' was given",
    "data show digitz": "unknown dataset 'digitz': did you mean 'digits'?",
    "data prepare digitz": "unknown dataset 'digitz': did you mean 'digits'?",
    "compare fedavg fedpro --out {out}": "unknown method 'fedpro': did you mean 'fedprox'?",
    # values that make no sense
    f"{RUN} --lr 0": "lr should be greater than 0, but 0.0 was given",
    f"{RUN} --lr nan": "lr should be a finite number, but nan was given",
    f"{RUN} --lr inf": "lr should be a finite number, but inf was given",
    f"{RUN} --join 0": "join should be greater than 0",
    f"{RUN} --join 2": "join should be less than or equal to 1",
    f"{RUN} --rounds 0": "rounds should be greater than or equal to 1",
    f"{RUN} --epochs 0": "epochs should be greater than or equal to 1",
    f"{RUN} --clients -1": "clients should be greater than or equal to 0",
    f"{RUN} --clients 0": "the number of clients is at least 1, not 0",
    f"{RUN} --batch 0": "batch should be greater than or equal to 1",
    f"{RUN} --test-ratio 1": "test_ratio should be less than 1",
    f"{RUN} --test-ratio 0": "test_ratio should be greater than 0",
    f"{RUN} --momentum 1": "momentum should be less than 1",
    f"{RUN} --weight-decay -1": "weight_decay should be greater than or equal to 0",
    f"{RUN} --finetune-steps -1": "finetune_steps should be greater than or equal to 0",
    f"{RUN} --finetune-lr 0": "finetune_lr should be greater than 0",
    f"{RUN} --seed -1": "seed should be greater than or equal to 0",
    f"{RUN} --workers 0": "workers should be greater than or equal to 1",
    f"{RUN} --evaluate-every 0": "evaluate_every should be greater than or equal to 1",
    f"{RUN} --checkpoint-every 0": "checkpoint_every should be greater than or equal to 1",
    # hyper-parameters
    f"{RUN} --set mu": "--set takes key=value, but 'mu' was given",
    f"{RUN} --set =1": "--set takes key=value, but '=1' was given",
    f"{RUN} --set mu=1": "method 'fedavg' has no hyper-parameters, but 'mu' was given",
    RUN.replace("fedavg", "fedprox") + " --set mx=1": "unknown hyper-parameter of fedprox 'mx': did you mean",
    RUN.replace("fedavg", "fedprox") + " --set mu=abc": "fedprox's mu should be a valid number",
    RUN.replace("fedavg", "fedprox") + " --set mu=-1": "fedprox's mu should be greater than or equal to 0",
    RUN.replace("fedavg", "fedprox") + " --set mu=nan": "fedprox's mu should be a finite number",
    "compare fedavg --set mu=1 --out {out}": "--set mu=1: none of fedavg has such a hyper-parameter",
    "compare fedavg --set fedprox.mu=1 --out {out}": "none of fedavg has such a hyper-parameter",
    "compare fedavg fedprox --set fedavg.mu=1 --out {out}": "'fedavg' has no hyper-parameters, but 'mu'",
    "compare fedavg --seed -1 --out {out}": "seed should be greater than or equal to 0",
    # partitions that cannot be made
    f"{RUN} --partition dirichlet:0.05 --clients 1000": "1000 clients are too many, at most 898",
    f"{RUN} --partition classes:11": "needs a k from 1 to 10",
    f"{RUN} --partition natural": "digits has no natural clients",
    f"{RUN} --partition dirichlet": "partition 'dirichlet' needs a value",
    f"{RUN} --partition dirichlet:x": "alpha of partition 'dirichlet' is a number, not 'x'",
    f"{RUN} --partition dirichlet:0": "dirichlet needs an alpha from",
    f"{RUN} --partition iid:3": "partition 'iid' takes no value",
    # data of one's own
    f"{RUN} --data one": "anna has one sample in one: a client needs at least two",
    f"{RUN} --data none": "client anna has no samples",
    f"{RUN} --data bare": "client anna has no samples",
    f"{RUN} --data nan": "anna.csv of client anna has NaN or infinite values in 1 samples",
    f"{RUN} --data words": "anna.csv has 'two' in line 2, column q: no number",
    f"{RUN} --data short": "anna.csv has 2 cells in line 2, 3 expected",
    f"{RUN} --data empty": "empty has no clients",
    "data show one": "anna has one sample",
    "data show digits --to chart.bmp": "the chart is drawn to .png, .svg or .pdf, but chart.bmp was given",
    "data show digits --to nowhere/chart.png": "cannot write nowhere/chart.png: No such file or directory",
    # models and methods of one's own
    f"{RUN} --model net.py:Net": "model 'Net' gives 3 outputs a sample, but the data have 10 classes",
    f"{RUN} --model net.py:Failing": "ValueError: not [today]",
    f"{RUN} --model net.py:Nett": "net.py has no 'Nett': of the right kind it has Net, Failing",
    f"{RUN} --model net.py": "write net.py:ClassName",
    f"{RUN} --model missing.py:Net": "there is no file missing.py",
    f"{RUN} --model raising.py:Net": "raising.py cannot be imported: ZeroDivisionError: division by zero",
    f"{RUN} --model syntax.py:Net": "syntax.py cannot be imported: SyntaxError",
    f"{RUN} --model lenet5": "model 'lenet5' cannot take samples of shape (1, 8, 8)",
    RUN.replace("fedavg", "net.py:Net"): "net.py:Net is not a method: expected a subclass of fedkin.Method",
    # folders
    f"run fedavg {' '.join(TINY)} --out full": "full is not empty: choose another folder",
    f"run fedavg {' '.join(TINY)} --out run": "or go on with the run in it by --resume run",
    f"run fedavg {' '.join(TINY)} --out net.py": "net.py is not empty",
    f"run fedavg {' '.join(TINY)} --out net.py/run": "cannot write net.py/run",
    "compare fedavg --out full": "full is not empty: choose another folder",
    "run": "which method?",
    "run --resume full": "full is not a run folder: it has no config.json",
    "run --resume nowhere": "nowhere is not a run folder",
    "run --resume net.py": "net.py is not a run folder",
    "run --resume run --lr 0.1": "--resume takes everything from the run folder, so --lr cannot be given",
    "run --resume run --set mu=1": "so --set cannot be given with it",
    "run --resume run --out {out}": "so --out cannot be given with it",
    "run fedavg --resume run": "so a method cannot be given with it",
    "run --resume run --engine inlin": "engine should be 'auto', 'inline', 'processes' or 'ray'",
    "run --resume run --workers 0": "workers should be greater than or equal to 1",
    "run --resume damaged/cut": "config.json is damaged: it is not valid JSON",
    "run --resume damaged/list": "config.json is damaged: it needs",
    "run --resume damaged/lacking": "config.json is damaged: it needs",
    "run --resume damaged/odd": "config.json is damaged: 'int' object is not iterable",
    "run --resume damaged/wrong": "config.json is damaged: lr should be a valid number",
    "run --resume damaged/data": "the data are not those that the run in damaged/data was started with",
    "run --resume altered": "metrics.jsonl lacks rounds that its checkpoint counts: it was altered",
    # TOML files
    "run missing.toml": "missing.toml cannot be read: No such file or directory",
    "run folder.toml": "folder.toml cannot be read: Is a directory",
    "run invalid.toml": "invalid.toml is not valid TOML",
    "run binary.toml": "binary.toml is not valid TOML",
    "run unknown.toml": "unknown setting 'roundz': did you mean 'rounds'?",
    "run type.toml": "rounds should be a valid integer",
    "run hyper.toml": "fedprox's mu should be a valid number",
    # export and predict
    "predict run digit.png": "whose model? A run has one per client: give --client",
    "predict run digit.png --client 4": "there is no client 4: the run has clients 0 to 3",
    "predict run digit.png --client -1": "there is no client -1",
    "predict run text.png --client 0": "text.png cannot be read as a sample of shape (1, 8, 8)",
    "predict run cut.png --client 0": "cut.png cannot be read as a sample",
    "predict run deep.png --client 0": "more than 8 bits a pixel",
    "predict run missing.png --client 0": "there is no file missing.png",
    "predict run full --client 0": "there is no file full",
    "predict run small.npy --client 0": "the model takes samples of shape (1, 8, 8), but (1, 4, 4) was given",
    "predict run nan.npy --client 0": "finite numbers expected",
    "predict run words.npy --client 0": "finite numbers expected",
    "predict table digit.png --client 0": "a .npy array is expected",
    "predict full digit.png --client 0": "full is not a run folder",
    "predict missing digit.png": "there is no file or run folder missing",
    "predict damaged/unfinished digit.png --client 0": "has no final models yet",
    "predict model.safetensors digit.png --client 0": "--client chooses from a run folder",
    "predict digit.png digit.png": "digit.png is not a model that fedkin exported",
    "predict cut.safetensors digit.png": "cut.safetensors is not a model that fedkin exported",
    "predict short.safetensors digit.png": "short.safetensors is not a model that fedkin exported",
    "predict bare.safetensors digit.png": "it does not say what it is",
    "predict less.safetensors digit.png": "its tensors are not those of a model mlp",
    "predict other.safetensors digit.png": "its tensors are not those of a model mlp",
    "export run --client 4 --to {out}": "there is no client 4",
    "export run --client 0 --to model.safetensors": "model.safetensors is there already",
    "export run --client 0 --to full": "full is there already",
    "export run --client 0 --to net.py/model.safetensors": "cannot write net.py",
    "export full --client 0 --to {out}": "full is not a run folder",
}


@pytest.mark.parametrize("words", MISTAKES, ids=lambda words: words.replace(RUN, "run ...").replace(" ", "_"))
def test_a_mistake_is_told_in_one_sentence_and_nothing_is_written(
    words: str, workshop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workshop)
    before = contents(workshop)
    refused(command(*shlex.split(words.format(out=tmp_path / "out"))), MISTAKES[words])
    assert contents(workshop) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (f"{RUN} --lr abc", "--lr"),
        (f"{RUN} --rounds 1.5", "--rounds"),
        (f"{RUN} --clinets 3", "--clients"),
        (f"{RUN} --rounds", "--rounds"),
        ("compare --out {out}", "METHODS"),
        ("compare fedavg --seeds 0 --out {out}", "--seeds"),
        ("export run --to {out}", "--client"),
        ("data show digits --clinets 3", "--clients"),
        ("runn", "'run'"),
    ],
)
def test_a_mistyped_command_is_explained_by_the_parser(words: str, hint: str, tmp_path: Path) -> None:
    said = command(*shlex.split(words.format(out=tmp_path / "out")))
    assert said.code == 2
    assert hint in said.err
    assert "Traceback" not in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("vectorize", ["on", "off"])
def test_training_that_diverges_is_told_with_its_learning_rate(vectorize: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    said = command("run", "fedavg", *TINY, "--lr", 1e9, "--vectorize", vectorize, "--out", out)
    refused(said, "is not a finite number in round 1: with a learning rate of 1e+09 training diverges")
    assert not (out / "models.safetensors").exists()


@pytest.mark.parametrize("last", ["kept", "dropped"])
def test_training_that_diverges_names_a_short_last_batch(last: str, tmp_path: Path) -> None:
    said = command("run", "fedavg", *TINY, "--lr", 1e9, "--last-batch", last, "--batch", 10, "--out", tmp_path / "run")
    refused(said, "training diverges, try a smaller one")
    assert ("or last_batch=dropped: its epochs end on a batch of " in said.err) == (last == "kept")


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--classifier=fcc", "unknown layer 'fcc': did you mean 'fc2'?"),
        ("--model=small-transformer", ""),
    ],
)
def test_what_only_the_network_can_tell_is_told_in_one_sentence(option: str, sentence: str, tmp_path: Path) -> None:
    said = command("run", "local-only", *TINY, option, "--vectorize", "on", "--out", tmp_path / "run")
    refused(said, sentence or "vectorize=on: local-only on this model cannot train all clients at once")


def test_missing_files_are_named_with_their_place_and_publisher_when_there_is_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def unreachable(request: urllib.request.Request, **_: object) -> None:
        asked.append(request.full_url)
        raise urllib.error.URLError("Network is unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    root, out = tmp_path / "data", tmp_path / "run"
    for words in (
        ("run", "fedavg", *TINY, "--data", "mnist", "--out", out),
        ("data", "prepare", "mnist"),
        ("data", "show", "mnist"),
    ):
        said = command(*words, FEDKIN_DATA=str(root))
        refused(said, "dataset 'mnist' lacks train-images-idx3-ubyte")
        assert str(root / "mnist") in said.err
        assert "Network is unreachable" in said.err
    assert asked, "the publisher was asked"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_name_of_a_dataset_means_the_dataset_even_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text("digits/anna.csv", GOOD)
    assert "1797" in done("data", "show", "digits").out
    assert "1 clients, 4 of 4 samples" in done("data", "show", "./digits").out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one")
def test_a_device_that_is_not_there_is_told(tmp_path: Path) -> None:
    said = command("run", "fedavg", *TINY, "--device", "cuda", "--out", tmp_path / "run")
    refused(said, "device cuda was asked for, but PyTorch finds none here: use --device cpu")
    assert not (tmp_path / "run").exists()


def test_an_error_cannot_break_the_line_or_the_terminal(tmp_path: Path) -> None:
    said = command("run", "--resume", "a\nb\x1b[31m[red]c[/]\udcff")
    refused(said, "a b [31m[red]c[/] is not a run folder")
    assert "\x1b" not in said.err
