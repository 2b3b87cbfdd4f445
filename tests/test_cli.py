"""Every command does what its help says, in this process where that is possible."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
import typer
from commands import TINY, Said, command, done
from PIL import Image
from safetensors.torch import save_file

import fedkin
from fedkin import Federation, models
from fedkin.cli import app, main
from fedkin.config import Config
from fedkin.data import catalogue
from fedkin.data.partition import rules
from fedkin.methods import registry
from fedkin.runs.folder import RunFolder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# run


def test_run_takes_every_setting_as_an_option(tmp_path: Path) -> None:
    weights = tmp_path / "start.safetensors"
    save_file(models.build("mlp", (1, 8, 8), 10).state_dict(), weights)
    given = {
        "data": "digits",
        "partition": "dirichlet:0.5,form=client",
        "clients": 5,
        "test_ratio": 0.3,
        "pool": "train",
        "pixels": "centred",
        "join": 0.6,
        "rounds": 3,
        "schedule": "stragglers:0",
        "late": "drop",
        "epochs": 2,
        "minibatches": 3,
        "batch": 16,
        "order": "fixed",
        "last_batch": "dropped",
        "augment": "flip",
        "lr": 0.05,
        "momentum": 0.5,
        "weight_decay": 0.001,
        "statistics": "local",
        "model": "mlp",
        "weights": str(weights),
        "classifier": "fc2",
        "seed": 3,
        "dtype": "float64",
        "public": 0.1,
        "finetune_steps": 3,
        "finetune_lr": 0.02,
        "finetune_batch": 4,
        "judge_local": True,
        "judge_union": True,
        "evaluate_every": 2,
        "checkpoint_every": 2,
        "tensorboard": True,
        "engine": "inline",
        "ray_address": "nowhere:1",
        "workers": 1,
        "device": "cpu",
        "vectorize": "off",
    }
    assert given.keys() == Config.model_fields.keys() - {"method", "set"}
    options = [
        word
        for name, value in given.items()
        for word in (f"--{name.replace('_', '-')}", *(() if value is True else (value,)))
    ]
    said = done("run", "fedprox", *options, "--set", "mu=0.5", "--out", "here", "--json")
    folder = RunFolder.open(Path("here"))
    assert folder.config.model_dump() == {**given, "method": "fedprox", "set": {"mu": 0.5}}
    history = folder.history()
    assert [r.round for r in history] == [1, 2, 3]
    assert [bool(r.scores) for r in history] == [False, True, True], "every second round, and the last"
    assert {len(r.participants) for r in history} == {3}
    assert [p.stem for p in sorted(Path("here/checkpoints").glob("*.json"))] == [
        "round-000002",
        "round-000003",
    ]
    assert folder.models().rows.dtype == torch.float64
    assert said.json["folder"] == "here"


def test_the_result_is_told_and_its_last_line_is_json_if_asked_for() -> None:
    said = done("run", "local-only", *TINY, "--out", "run", "--json")
    summary = said.json
    assert summary["method"] == "local-only"
    assert summary["config"]["clients"] == 4
    assert summary["config"]["model"] == "mlp", "what was chosen is written down"
    accuracies = summary["per_client_accuracy"]
    assert list(accuracies) == [f"client-0{i}" for i in range(4)]
    assert summary["accuracy"] == pytest.approx(sum(accuracies.values()) / 4)
    assert summary["seconds"] > 0
    assert summary["bytes_up"] == summary["bytes_down"] == 0, "nobody sends anything"
    assert json.loads(Path("run/result.json").read_text()) == summary
    assert f"local-only on digits: {100 * summary['accuracy']:.2f} %" in said.out
    assert "personalised model after local training, on each client's own test set" in said.out
    assert "run folder: run" in said.out


def test_bytes_are_those_of_the_model_there_and_back() -> None:
    summary = done("run", "fedavg", *TINY, "--out", "run", "--json").json
    size = RunFolder.open(Path("run")).models().rows[0].numel() * 4
    assert summary["bytes_down"] == 2 * 4 * size
    assert summary["bytes_up"] == 2 * 4 * (size + 8), "the model and how many samples it saw"


def test_json_is_printed_only_if_asked_for() -> None:
    assert "{" not in done("run", "fedavg", *TINY, "--out", "run").out


def test_without_a_folder_a_new_one_under_runs_is_taken() -> None:
    done("run", "fedavg", *TINY)
    done("run", "fedavg", *TINY)
    assert sorted(p.name for p in Path("runs").iterdir()) == ["fedavg-digits-s0", "fedavg-digits-s0-2"]


def test_a_toml_file_gives_settings_and_options_override_it() -> None:
    Path("mine.toml").write_text(
        'method = "fedprox"\nclients = 4\nrounds = 3\nepochs = 1\nlr = 0.05\nengine = "inline"\n[set]\nmu = 0.25\n'
    )
    done("run", "mine.toml", "--rounds", 2, "--out", "a")
    config = RunFolder.open(Path("a")).config
    assert (config.method, config.set, config.lr, config.rounds) == ("fedprox", {"mu": 0.25}, 0.05, 2)
    done("run", "mine.toml", "--set", "mu=0.5", "--rounds", 1, "--out", "b")
    assert RunFolder.open(Path("b")).config.set == {"mu": 0.5}


def test_a_hyper_parameter_given_as_an_option_leaves_those_of_the_file() -> None:
    Path("mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedkin.methods.fedprox import FedProx\n"
        "@dataclass(frozen=True)\n"
        "class Two(FedProx):\n"
        "    nu: int = 1\n"
    )
    Path("mine.toml").write_text('method = "mine.py:Two"\n[set]\nmu = 0.25\nnu = 2\n')
    done("run", "mine.toml", *TINY, "--set", "nu=3", "--out", "run")
    assert RunFolder.open(Path("run")).config.set == {"mu": 0.25, "nu": 3}


def test_the_same_settings_by_options_file_and_python_give_the_same_bits() -> None:
    Path("mine.toml").write_text('method = "fedavg"\nclients = 4\nrounds = 2\nepochs = 1\nlr = 0.1\n')
    done("run", "mine.toml", "--engine", "inline", "--out", "file")
    done("run", "fedavg", *TINY, "--out", "options")
    fedkin.run("fedavg", clients=4, rounds=2, epochs=1, lr=0.1, engine="inline", out="python")
    contents = {Path(name, "models.safetensors").read_bytes() for name in ("file", "options", "python")}
    assert len(contents) == 1


STOPPING = """
from dataclasses import dataclass
from pathlib import Path
from fedkin.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Stopping(FedAvg):
    def aggregate(self, state, replies):
        if state.round == 4 and Path("stop").exists():
            raise KeyboardInterrupt
        super().aggregate(state, replies)
"""


def test_a_run_that_was_stopped_by_hand_says_how_to_go_on_and_does() -> None:
    Path("mine.py").write_text(STOPPING)
    words = ("run", "mine.py:Stopping", *TINY, "--rounds", 5, "--checkpoint-every", 2, "--out")
    done(*words, "whole")
    Path("stop").touch()
    said = command(*words, "a run")
    assert said.code == 130
    assert said.err.splitlines()[-1] == "stopped; go on with: fedkin run --resume 'a run'"
    assert "Traceback" not in said.err
    Path("stop").unlink()
    resumed = done("run", "--resume", "a run", "--engine", "inline", "--json")
    assert resumed.json["rounds"] == 5
    assert "round 3/5" in resumed.err, "it goes on after the checkpoint of round 2"
    for name in ("metrics.jsonl", "models.safetensors"):
        assert Path("a run", name).read_bytes() == Path("whole", name).read_bytes()


def test_resuming_a_finished_run_tells_its_result_again() -> None:
    first = done("run", "fedavg", *TINY, "--out", "run", "--json").json
    assert done("run", "--resume", "run", "--json").json == first


# compare


def compared(*words: object, **environment: str) -> Said:
    return done("compare", *words, *TINY, "--lr", 0.01, "--out", "all", **environment)


def test_compare_writes_a_run_for_each_method_and_seed_and_a_report() -> None:
    words = ("--seeds", 2, "--seed", 5, "--set", "fedprox.mu=0.25", "--json")
    said = compared("local-only", "fedprox", *words)
    names = ["fedprox-s5", "fedprox-s6", "local-only-s5", "local-only-s6", "report.html"]
    assert sorted(p.name for p in Path("all").iterdir()) == names
    configs = {name: RunFolder.open(Path("all", name)).config for name in names[:-1]}
    assert {name: config.seed for name, config in configs.items()} == {name: int(name[-1]) for name in names[:-1]}
    assert configs["fedprox-s5"].set == {"mu": 0.25}
    assert configs["local-only-s5"].set == {}
    assert "report: all/report.html" in said.out
    assert list(said.json) == ["local-only", "fedprox"]
    for method, runs in said.json.items():
        accuracies = [100 * run["accuracy"] for run in runs]
        line = f"{np.mean(accuracies):.2f} ± {np.std(accuracies, ddof=1):.2f}"
        row = next(row for row in said.out.splitlines() if f" {method} " in row)
        assert line in row
        assert line in Path("all/report.html").read_text()


def test_a_hyper_parameter_goes_to_all_methods_that_have_it() -> None:
    compared("fedavg", "fedprox", "--set", "mu=0.5")
    assert RunFolder.open(Path("all/fedprox-s0")).config.set == {"mu": 0.5}
    assert RunFolder.open(Path("all/fedavg-s0")).config.set == {}


def test_the_best_method_is_bold() -> None:
    said = compared("local-only", "fedavg", "--json", FORCE_COLOR="1", TERM="xterm")
    accuracy = {name: f"{100 * runs[0]['accuracy']:.2f}" for name, runs in said.json.items()}
    assert float(accuracy["local-only"]) > float(accuracy["fedavg"])
    assert f"\x1b[1m{accuracy['local-only']}\x1b[0m" in said.out
    assert f"\x1b[1m{accuracy['fedavg']}" not in said.out


def test_a_method_named_twice_runs_once() -> None:
    assert list(compared("fedavg", "fedavg", "--json").json) == ["fedavg"]


# methods, datasets, models, data


def test_methods_lists_the_registry() -> None:
    rows = json.loads(done("methods", "--json").out)
    assert [row["name"] for row in rows] == list(registry())
    assert next(row for row in rows if row["name"] == "fedprox")["settings"] == {
        "mu": registry()["fedprox"]().mu  # type: ignore[attr-defined]
    }
    table = done("methods").out
    assert all(name in table for name in registry())


def test_datasets_tells_what_is_here(tmp_path: Path) -> None:
    words = {"FEDKIN_DATA": str(tmp_path)}
    rows = json.loads(done("datasets", "--json", **words).out)
    assert [row["name"] for row in rows] == catalogue.names()
    assert {row["name"] for row in rows if row["here"]} == {"digits"}, "it comes with scikit-learn"
    table = done("datasets", **words).out
    assert all(name in table for name in catalogue.names())
    assert re.search(r" digits .* yes ", table)
    assert re.search(r" mnist .* no ", table)


def test_models_lists_the_networks() -> None:
    rows = json.loads(done("models", "--json").out)
    assert [row["name"] for row in rows] == models.names()
    table = done("models").out
    assert all(name in table for name in models.names())


def test_partitions_lists_every_rule_as_it_is_written() -> None:
    rows = json.loads(done("partitions", "--json").out)
    assert [row["rule"] for row in rows] == [rule.syntax for rule in rules()]
    text = done("partitions").out
    assert all(rule.syntax in text for rule in rules())
    assert "the split is pFedSim's own" in text


def test_data_show_tells_sizes_and_draws_the_chart() -> None:
    words = ("--partition", "iid", "--clients", 7, "--test-ratio", 0.25, "--seed", 3, "--pool", "all")
    said = done("data", "show", "digits", *words, "--to", "chart.PNG")
    assert "digits: 7 clients, 1797 of 1797 samples" in said.out
    assert "samples a client: 256 to 257, mean 256.7, deviation 0.5" in said.out
    assert "samples in their client's largest class: 10.2 %" in said.out
    with Image.open("chart.PNG") as chart:
        assert chart.format == "PNG"
        assert np.asarray(chart.convert("L")).std() > 0, "something is drawn"


def test_data_show_reads_a_folder_of_ones_own() -> None:
    tables("own")
    said = done("data", "show", "own")
    assert "own: 2 clients, 20 of 20 samples" in said.out


def test_data_prepare_says_that_the_data_are_ready(tmp_path: Path) -> None:
    said = done("data", "prepare", "digits", FEDKIN_DATA=str(tmp_path))
    assert said.out == f"digits is ready in {tmp_path}\n"


# export, predict


def by_hand(name: str, shape: tuple[int, ...], classes: int, w: torch.Tensor) -> torch.nn.Module:
    """A model from its vector without fedkin's help: parameters, then floating-point buffers."""
    module = fedkin.models.build(name, shape, classes).eval()
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    assert sum(t.numel() for t in tensors) == len(w)
    with torch.no_grad():
        for tensor, part in zip(tensors, w.split([t.numel() for t in tensors]), strict=True):
            tensor.copy_(part.view_as(tensor))
    return module


def test_predictions_are_those_of_the_clients_model() -> None:
    done("run", "local-only", *TINY, "--epochs", 5, "--out", "run")
    data = catalogue.load("digits")
    models = RunFolder.open(Path("run")).models()
    said = done("export", "run", "--client", 2, "--to", "new/model.safetensors")
    assert said.out == "new/model.safetensors: model mlp of client-02\n"
    module = by_hand("mlp", (1, 8, 8), 10, models[2])
    tops = set()
    for row in range(0, 60, 5):
        Image.fromarray(data.x[row, 0]).save("digit.png")
        x = (torch.tensor(data.x[row]).float() / 255 - data.mean[0]) / data.std[0]
        chances = module(x[None])[0].softmax(0).tolist()
        expected = {str(k): pytest.approx(p, abs=1e-6) for k, p in enumerate(chances)}
        from_file = done("predict", "new/model.safetensors", "digit.png", "--json").json
        from_run = done("predict", "run", "digit.png", "--client", 2, "--json").json
        assert from_file == from_run == expected
        assert list(from_file.values()) == sorted(from_file.values(), reverse=True)
        tops.add(max(range(10), key=chances.__getitem__))
        assert next(iter(from_file)) == str(max(range(10), key=chances.__getitem__))
    assert len(tops) > 1, "the model does not always say the same"
    table = done("predict", "run", "digit.png", "--client", 2).out
    assert "digit.png by the model of client-02" in " ".join(table.split())
    assert f"{100 * max(chances):.1f} %" in table


def test_another_clients_model_says_something_else() -> None:
    done("run", "local-only", *TINY, "--out", "run")
    Image.fromarray(catalogue.load("digits").x[0, 0]).save("digit.png")
    answers = [done("predict", "run", "digit.png", "--client", i, "--json").json for i in (0, 1)]
    assert answers[0] != answers[1]


def test_running_statistics_are_exported_too(pictures: Federation) -> None:
    settings: dict[str, Any] = {"rounds": 2, "epochs": 1, "batch": 8, "engine": "inline"}
    result = fedkin.run("local-only", data=pictures, model="lenet5-bn", out="run", **settings)
    done("export", "run", "--client", 1, "--to", "model.safetensors")
    module = by_hand("lenet5-bn", pictures.shape, pictures.classes, result.models[1])
    exported = safetensors.numpy.load_file("model.safetensors")
    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert any("running_mean" in name for name in exported)
    for name, array in exported.items():
        assert np.array_equal(array, named[name].detach().numpy())
    sample = pictures.data.x[0]
    Image.fromarray(sample[0]).save("picture.png")
    x = (torch.tensor(sample) / 255 - pictures.data.mean[0]) / pictures.data.std[0]
    chances = module(x[None])[0].softmax(0).tolist()
    said = done("predict", "model.safetensors", "picture.png", "--json").json
    assert said == {str(k): pytest.approx(p, abs=1e-5) for k, p in enumerate(chances)}


def test_images_of_any_size_and_colour_are_made_to_fit() -> None:
    done("run", "fedavg", *TINY, "--out", "run")
    for mode, size in (("RGB", (40, 30)), ("RGBA", (8, 8)), ("P", (5, 9))):
        Image.new(mode, size).save("picture.png")
        said = done("predict", "run", "picture.png", "--client", 0, "--json").json
        assert sum(said.values()) == pytest.approx(1)


def test_data_that_are_no_images_are_predicted_from_an_array() -> None:
    tables("own")
    done("run", "fedavg", *TINY, "--data", "own", "--clients", "0", "--out", "run")
    np.save("sample.npy", np.array([1.0, 2.0]))
    said = done("predict", "run", "sample.npy", "--client", 0, "--json").json
    assert said.keys() == {"no", "yes"}


# what is shown meanwhile


def test_progress_is_plain_lines_on_stderr_where_there_is_no_terminal() -> None:
    said = done("run", "fedavg", *TINY, "--rounds", 3, "--out", "run")
    lines = said.err.splitlines()
    assert re.fullmatch(r"fedavg  round 1/3  accuracy \d+\.\d\d %  [\d.]+ rounds/s  \d+s left", lines[0])
    assert lines[-1].startswith("fedavg  round 3/3")
    assert "\x1b" not in said.err
    assert "round 1/3" not in said.out


def test_progress_is_one_live_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "argv", ["fedkin", "run", "fedavg", *TINY, "--rounds", "3", "--out", "run"])
    monkeypatch.setenv("COLUMNS", "50")
    terminal = os.fdopen(theirs, "w")
    with terminal, redirect_stderr(terminal), redirect_stdout(io.StringIO()), pytest.raises(SystemExit):
        main()
    seen = b""
    try:
        while more := os.read(ours, 65536):
            seen += more
    except OSError:  # the other end is closed and everything is read
        pass
    os.close(ours)
    text = seen.decode()
    for round in (1, 2, 3):
        assert f"fedavg  round {round}/3" in text
    assert text.count("\x1b[2K") >= 3, "each line replaces the one before"
    assert "\n" not in text.rstrip("\r\n").split("round 1/3")[1].split("round 3/3")[0], "even a narrow one"


def test_a_long_time_is_told_in_hours_and_minutes() -> None:
    from fedkin.cli.progress import clock

    assert [clock(s) for s in (0.4, 59.4, 60, 185, 3600, 7805)] == [
        "0s",
        "59s",
        "1m00s",
        "3m05s",
        "1h00m",
        "2h10m",
    ]


# help


HELP = """
import contextlib, io, sys
import typer
from fedkin.cli import app, main

def names(group, path=()):
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from names(command, (*path, name))

for path in names(typer.main.get_command(app)):
    sys.argv = ["fedkin", *path, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        try:
            main()
        except SystemExit as end:
            assert not end.code, path
    assert "Usage: fedkin" in out.getvalue(), path
    print(" ".join(path))
print("torch" in sys.modules, "numpy" in sys.modules)
"""


def test_help_of_every_command_works_without_waiting_for_torch() -> None:
    run = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    *commands, imported = run.stdout.splitlines()
    assert set(commands) >= {
        *("", "run", "compare", "methods", "datasets", "partitions", "models", "export", "predict"),
        *("data", "data show", "data prepare"),
    }
    assert imported == "False False"


def test_the_help_of_run_explains_every_setting() -> None:
    text = done("run", "--help").out
    for name, field in Config.model_fields.items():
        if name != "method":
            assert f"--{name.replace('_', '-')} " in text, name
        assert field.description, name


def test_help_says_what_every_argument_and_option_means() -> None:
    def unsaid(command: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
        for name, inner in getattr(command, "commands", {}).items():
            yield from unsaid(inner, (*path, name))
        yield from (" ".join((*path, p.name)) for p in command.params if not p.help)

    assert not [*unsaid(typer.main.get_command(app))]


# names that look like markup


def tables(name: str, label: str = "yes", client: str = "anna") -> None:
    Path(name).mkdir(parents=True)
    for who in (client, "bert"):
        rows = "".join(f"{k},{k % 3},{label if k % 2 else 'no'}\n" for k in range(10))
        Path(name, f"{who}.csv").write_text(f"p,q,label\n{rows}")


def test_names_that_look_like_markup_are_shown_as_they_are() -> None:
    tables("[bold]d[", label="[red]x[/blue]", client="[i]a")
    said = done("run", "fedavg", *TINY, "--data", "[bold]d[", "--clients", "0", "--out", "[b]run", "--json")
    assert "fedavg on [bold]d[: " in said.out
    assert "run folder: [b]run" in said.out
    assert "[i]a" in said.json["per_client_accuracy"]
    np.save("[b]s.npy", np.zeros(2))
    said = done("predict", "[b]run", "[b]s.npy", "--client", 0)
    assert "[b]s.npy by the model of [i]a" in " ".join(said.out.split())
    assert "[red]x[/blue]" in said.out
    assert "[red]x[/blue]" in done("data", "show", "[bold]d[").out


def test_plot_draws_runs_and_explains_what_it_cannot() -> None:
    done("run", "fedavg", "--clients", 6, "--rounds", 4, "--schedule", "stragglers:2", "--out", "late")
    done("run", "fedavg", "--clients", 6, "--rounds", 4, "--out", "sync")
    for what in ("curves", "clients", "time", "timeline"):
        done("plot", "late", "--what", what, "-o", f"pictures/{what}.png")
        assert Path(f"pictures/{what}.png").read_bytes().startswith(b"\x89PNG")
    done("plot", "late", "sync", "-o", "both.svg")
    done("plot", "late", "--what", "timeline", "--until", 2, "-o", "timeline.pdf")
    assert "has no virtual time" in command("plot", "sync", "--what", "time", "-o", "x.png").err
    assert "of one run" in command("plot", "late", "sync", "--what", "timeline", "-o", "x.png").err
    assert ".png, .svg or .pdf" in command("plot", "late", "-o", "x.txt").err


def test_compare_takes_a_policy_for_late_replies_with_each_method() -> None:
    said = done(
        "compare", "fedavg@drop", "fedavg@stale", "lga", "--clients", 6, "--rounds", 4, "--schedule", "stragglers:3",
        "--out", "here", "--json",
    )  # fmt: skip
    assert list(said.json) == ["fedavg@drop", "fedavg@stale", "lga"]
    assert [runs[0]["config"]["late"] for runs in said.json.values()] == ["drop", "stale", "stale"]
    assert Path("here/fedavg-drop-s0").is_dir()
    assert "should be 'stale'" in command("compare", "fedavg@never", "--rounds", 1, "--out", "there").err
