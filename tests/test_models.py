from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

import fedkin
from fedkin.errors import FedkinError
from fedkin.models import ModelLike, Shape, best_format, build, default_for, describe, names, start_from

MNIST, CIFAR, TINY = (1, 28, 28), (3, 32, 32), (3, 64, 64)
SHAPES: list[Shape] = [MNIST, CIFAR, (3, 40, 33), (1, 8, 8), (9, 128), (1, 40), (13,)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These models are tiny: on a busy machine threads that wait for each other cost five times more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def conv(inputs: int, outputs: int, kernel: int) -> int:
    return inputs * outputs * kernel**2 + outputs


def fc(*sizes: int) -> int:
    return sum((a + 1) * b for a, b in pairwise(sizes))


def count(name: str, shape: Shape, classes: int) -> int:
    return sum(p.numel() for p in build(name, shape, classes).parameters() if p.requires_grad)


def suits(name: str, shape: Shape) -> bool:
    card = describe(name)
    if card.takes == "any":
        return True
    return len(shape) == {"image": 3, "window": 2}[card.takes] and min(shape[1:]) >= card.smallest


# --- The papers' models -------------------------------------------------------------------------


def test_lenet5_bn_has_the_papers_62050_parameters() -> None:
    batch_norms = 2 * 6 + 2 * 16
    plain = conv(3, 6, 5) + conv(6, 16, 5) + fc(16 * 5 * 5, 120, 84, 10)
    assert count("lenet5-bn", CIFAR, 10) == plain + batch_norms == 62_050
    assert count("lenet5", CIFAR, 10) == plain
    assert count("lenet5-short", CIFAR, 10) == conv(3, 6, 5) + conv(6, 16, 5) + fc(16 * 5 * 5, 120, 10)


@pytest.mark.parametrize(("shape", "side"), [(MNIST, 4), (CIFAR, 5)])
def test_spfl_cnn_is_table_4(shape: Shape, side: int) -> None:
    expected = conv(shape[0], 20, 5) + conv(20, 50, 5) + fc(50 * side * side, 512, 10)
    assert count("spfl-cnn", shape, 10) == expected
    assert sum(isinstance(layer, nn.ReLU) for layer in build("spfl-cnn", shape, 10)) == 3


def test_fedalp_models_have_their_layers() -> None:
    assert count("mnist-nn", MNIST, 10) == 784 * 50 + 50 + 50 * 10 + 10
    three = conv(32, 64, 3) + conv(64, 64, 3)
    assert count("mnist-cnn", MNIST, 10) == conv(1, 32, 3) + three + fc(64 * 3 * 3, 64, 10)
    assert count("cifar10-cnn", CIFAR, 10) == conv(3, 32, 3) + three + fc(64 * 4 * 4, 64, 10)
    for name, convs, linears in [("mnist-cnn", 3, 2), ("cifar10-cnn", 3, 2), ("alexnet", 5, 3)]:
        layers = list(build(name, CIFAR, 10).modules())
        assert sum(isinstance(layer, nn.Conv2d) for layer in layers) == convs
        assert sum(isinstance(layer, nn.Linear) for layer in layers) == linears


def test_only_alexnet_drops_out() -> None:
    dropping = {n for n in names() if suits(n, CIFAR) and "Dropout" in repr(build(n, CIFAR, 10))}
    assert dropping == {"alexnet"}


@pytest.mark.parametrize("model", ["lenet5", "lenet5-bn"])
@pytest.mark.parametrize(("shape", "classes"), [(CIFAR, 10), (CIFAR, 100), (MNIST, 62)])
def test_supervisors_are_sized_as_fedsimsup_says(shape: Shape, classes: int, model: str) -> None:
    personal, sixth = count(model, shape, classes), count(f"{model}-sixth", shape, classes)
    assert sixth == pytest.approx(personal / 6, rel=0.1)
    assert sixth < count("small-transformer", shape, classes)
    assert count("small-cnn", shape, classes) < sixth


@pytest.mark.parametrize("classes", [10, 200])
def test_mobilenetv2_has_the_standard_parameters_in_the_standard_order(classes: int) -> None:
    assert count("mobilenetv2", TINY, classes) == 2_223_872 + 1280 * classes + classes
    state = build("mobilenetv2", TINY, classes).state_dict()
    assert len(state) == 52 * (1 + 5) + 2  # convolutions without bias, batch norms, classifier
    weights = [tuple(w.shape) for w in state.values() if w.ndim == 4]
    expected = [(32, 3, 3, 3), (32, 1, 3, 3), (16, 32, 1, 1)]
    inputs = 16
    # Table 9 row by row, its misprints corrected: every block is in, in * 6, out.
    for outputs in [24] * 2 + [32] * 3 + [64] * 4 + [96] * 3 + [160] * 3 + [320]:
        hidden = 6 * inputs
        expected += [(hidden, inputs, 1, 1), (hidden, 1, 3, 3), (outputs, hidden, 1, 1)]
        inputs = outputs
    assert weights == [*expected, (1280, 320, 1, 1)]


def test_mobilenetv2_halves_a_64_pixel_image_four_times_and_has_ten_shortcuts() -> None:
    model = build("mobilenetv2", TINY, 5).eval()
    assert isinstance(model, nn.Sequential)
    names_in_order = [name for name, _ in model.named_children()]
    with torch.inference_mode():
        last = model[: names_in_order.index("mean")](torch.zeros(1, *TINY))
    assert last.shape == (1, 1280, 4, 4)
    assert sum(getattr(layer, "shortcut", False) for layer in model) == 10


def test_mobilenetv2_block_adds_a_linear_projection_to_its_input() -> None:
    block = build("mobilenetv2", CIFAR, 2).get_submodule("block3").eval()
    x = torch.randn(2, 24, 5, 5)
    y = x
    for name in ("expand", "expand_bn", "expand_relu", "depthwise", "depthwise_bn", "depthwise_relu"):
        y = block.get_submodule(name)(y)
    y = block.get_submodule("project_bn")(block.get_submodule("project")(y))
    assert torch.equal(block(x), x + y)


def test_transformer_attends_as_written_out() -> None:
    block = build("small-transformer", (1, 8, 8), 2).get_submodule("block1")
    x = torch.randn(3, 4, 64)
    z = F.layer_norm(x, (64,))
    query, key, value = block.get_submodule("attention_in")(z).split(64, -1)
    heads = []
    for h in range(4):
        q, k, v = (part[..., 16 * h : 16 * (h + 1)] for part in (query, key, value))
        heads.append((q @ k.mT / 16**0.5).softmax(-1) @ v)
    x1 = x + block.get_submodule("attention_out")(torch.cat(heads, -1))
    expected = x1 + block.get_submodule("fc2")(F.gelu(block.get_submodule("fc1")(F.layer_norm(x1, (64,)))))
    torch.testing.assert_close(block(x), expected)


# --- All models of the catalogue ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape"), [(name, shape) for name in names() for shape in SHAPES if suits(name, shape)]
)
def test_every_model_trains_on_every_suitable_shape(name: str, shape: Shape) -> None:
    torch.manual_seed(0)
    model = build(name, shape, 7)
    assert isinstance(model, nn.Sequential)
    assert isinstance(model.classifier, nn.Linear)
    assert model[-1] is model.classifier
    assert all(module.training for module in model.modules())
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimiser = torch.optim.SGD(model.parameters(), 0.1)
    out = model(torch.randn(3, *shape))
    assert out.shape == (3, 7)
    F.cross_entropy(out, torch.tensor([0, 3, 6])).backward()
    optimiser.step()
    assert all(p.isfinite().all() for p in model.parameters())
    unchanged = {key for key, p in model.named_parameters() if torch.equal(p, before[key])}
    # The bias of a convolution before a batch norm has no effect, and so may have no gradient.
    assert unchanged <= ({"conv1.bias", "conv2.bias"} if name.startswith("lenet5-bn") else set())


@pytest.mark.parametrize("name", names())
def test_smallest_input_works_and_one_less_is_refused(name: str) -> None:
    card = describe(name)
    least = {"image": (2, card.smallest, card.smallest), "window": (2, card.smallest), "any": (1,)}[card.takes]
    model = build(name, least, 3)
    assert model(torch.randn(1, *least)).shape == (1, 3)  # in training mode, on a batch of one sample
    if card.takes != "any":
        with pytest.raises(FedkinError, match=f"'{name}' cannot take samples of shape .*: it needs"):
            build(name, (*least[:-1], card.smallest - 1), 3)


@pytest.mark.parametrize("name", names())
def test_same_seed_gives_the_same_weights_and_building_leaves_no_trace(name: str) -> None:
    shape = (2, 32) if describe(name).takes == "window" else (2, 32, 32)
    states = []
    for _ in range(2):
        torch.manual_seed(5)
        states.append(build(name, shape, 4).state_dict())
    assert all(torch.equal(a, b) for a, b in zip(states[0].values(), states[1].values(), strict=True))
    # The blank samples that build tries out must not reach the running statistics.
    assert all(not v.any() for k, v in states[0].items() if k.endswith(("running_mean", "tracked")))


def test_cards_say_where_a_model_comes_from() -> None:
    assert len(names()) == len(set(names())) == 16
    card = describe("lenet5-bn")
    assert (card.name, card.source, card.takes, card.smallest) == (
        "lenet5-bn",
        "pFedSim, Table 5",
        "image",
        16,
    )
    assert all(describe(name).about and "\n" not in describe(name).about for name in names())


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (CIFAR, "lenet5"),
        (MNIST, "lenet5"),
        ((1, 8, 8), "mlp"),
        ((9, 128), "cnn1d"),
        ((3, 5), "mlp"),
        ((13,), "mlp"),
    ],
)
def test_default_model_fits_the_shape(shape: Shape, name: str) -> None:
    assert default_for(shape) == name
    build(name, shape, 10)


# --- A user's own models ------------------------------------------------------------------------


class Plain(nn.Module):
    """Takes nothing; 10 outputs for 4 features."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out


class Wordy(nn.Module):
    def __init__(self, in_channels: int, input_shape: Shape, width: int = 8, num_classes: int = 1000) -> None:
        super().__init__()
        self.given = (in_channels, input_shape, width, num_classes)
        self.conv = nn.Conv2d(in_channels, width, 3)
        self.classifier = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.conv(x).mean((2, 3)))
        return out


class Needy(nn.Module):
    def __init__(self, classes: int, depth: int, *, heads: int, width: int = 3, **rest: int) -> None:
        super().__init__()


class Tuples(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return (super().forward(x), x)  # type: ignore[return-value]


class Flat(Plain):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten()


class Broken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        raise ValueError("no luck\nsecond line")


def lazy(n_classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(n_classes))


def not_a_model(classes: int) -> int:
    return classes


def test_a_users_class_is_given_what_it_asks_for() -> None:
    assert isinstance(build(Plain, (4,), 10), Plain)
    model = build(Wordy, CIFAR, 10)
    assert isinstance(model, Wordy)
    assert model.given == (3, CIFAR, 8, 10)
    assert build(partial(Wordy, width=5), CIFAR, 10).get_submodule("conv").weight.shape == (5, 3, 3, 3)


def test_a_factory_and_its_lazy_layers_work() -> None:
    weight = build(lazy, (2, 5), 3).get_parameter("1.weight")
    assert weight.shape == (3, 10)


def test_more_outputs_than_classes_are_fine() -> None:
    assert build(Plain, (4,), 3)(torch.zeros(2, 4)).shape == (2, 10)


def test_an_instance_is_copied_and_keeps_its_modes() -> None:
    mine = nn.Sequential(nn.BatchNorm1d(4), Plain())
    mine[0].eval()
    built = build(mine, (4,), 10)
    assert built is not mine
    assert [m.training for m in built.modules()] == [m.training for m in mine.modules()] == [True, False, True, True]
    with torch.no_grad():
        built.get_parameter("1.layer.bias").zero_()
    assert mine.get_parameter("1.layer.bias").any()


NET = """
from __future__ import annotations
from dataclasses import dataclass
from torch import nn

@dataclass
class Config:
    width: int = 6

class Net(nn.Sequential):
    def __init__(self, classes: int, config: Config = Config()) -> None:
        super().__init__(nn.Linear(4, config.width), nn.Linear(config.width, classes))

ready = Net(9)
if __name__ == "__main__":
    raise SystemExit("not run")
"""


def test_a_class_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my net.py"
    file.write_text(NET)
    model = build(f"{file}:Net", (4,), 5)
    assert type(model).__name__ == "Net"
    assert model.get_parameter("1.weight").shape == (5, 6)
    assert build(f"{file}:ready", (4,), 5).get_parameter("1.weight").shape == (9, 6)
    assert list(tmp_path.iterdir()) == [file]  # no __pycache__ beside it


def test_a_class_in_a_file_travels_to_processes_that_cannot_import_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "net.py"
    file.write_text(NET)
    model = build(f"{file}:Net", (4,), 5)
    parcel = cloudpickle.dumps(model)
    monkeypatch.delitem(sys.modules, type(model).__module__)
    copy = cloudpickle.loads(parcel)
    x = torch.randn(2, 4)
    assert torch.equal(copy(x), model(x))


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        (NET, "net.py:Nett", "net.py has no 'Nett': of the right kind it has Net"),
        ("x = 1", "net.py:Net", "net.py has no 'Net': of the right kind it has nothing"),
        (NET, "net.py:Config", "'Config' is neither an nn.Module nor a function that returns one"),
        ("x = 1", "net.py:x", "'int' is neither an nn.Module nor a function that returns one"),
        (NET, "net.py", "net.py names a file but no class in it: write net.py:ClassName"),
        (None, "net.py:Net", "there is no file net.py"),
        (
            "1 / 0",
            "net.py:Net",
            "net.py cannot be imported: ZeroDivisionError: division by zero",
        ),
        ("exit(3)", "net.py:Net", "net.py cannot be imported: SystemExit: 3"),
    ],
)
def test_mistakes_with_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, name: str, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("net.py").write_text(content)
    with pytest.raises(FedkinError) as caught:
        build(name, (4,), 5)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("model", "shape", "message"),
    [
        ("lenet-5", CIFAR, "unknown model 'lenet-5': did you mean 'lenet5'? known are "),
        ("spfl-cnn", (1, 8, 8), "model 'spfl-cnn' cannot take samples of shape (1, 8, 8): it needs images "),
        (
            "cnn1d",
            CIFAR,
            "model 'cnn1d' cannot take samples of shape (3, 32, 32): it needs windows (channels, time)",
        ),
        (
            Needy,
            (4,),
            "model 'Needy' cannot be built without depth, heads: fedkin fills only shape, in_shape, ",
        ),
        (Broken, (4,), "model 'Broken' fails when called as Broken(): ValueError: no luck"),
        (Plain, (5,), "model 'Plain' cannot take samples of shape (5,): RuntimeError: mat1 and mat2 shapes "),
        (Plain, (4,), "model 'Plain' gives 10 outputs a sample, but the data have 11 classes"),
        (Plain(), (4,), "model 'Plain' gives 10 outputs a sample, but the data have 11 classes"),
        (
            Plain,
            (3, 4),
            "model 'Plain' gives an output of shape (2, 3, 10) for 2 samples of shape (3, 4), but (2, 11)",
        ),
        (Flat, (4,), "model 'Flat' gives an output of shape (20,) for 2 samples of shape (4,), but (2, 11)"),
        (Tuples, (4,), "model 'Tuples' gives tuple, but a tensor [samples, classes] is expected"),
        (not_a_model, (4,), "'not_a_model' returns int, but an nn.Module is expected"),
        (3, (4,), "'int' is neither an nn.Module nor a function that returns one"),
    ],
)
def test_mistakes_are_told_in_one_sentence(model: ModelLike, shape: Shape, message: str) -> None:
    with pytest.raises(FedkinError) as caught:
        build(model, shape, 11)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


class Viewing(nn.Module):
    """`view` wants what it views in one piece, which a convolution of images with their channels last does not give."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.classifier = nn.Conv2d(3, 16, 3), nn.Linear(16 * 6 * 6, 2)

    def forward(self, x: Tensor) -> Tensor:
        features = F.relu(self.conv(x))
        scores: Tensor = self.classifier(features.view(len(x), -1))
        return scores


@pytest.mark.parametrize(("model", "shape", "best"), [
    ("spfl-cnn", MNIST, torch.channels_last), ("lenet5-bn", CIFAR, torch.contiguous_format),
    (Viewing, (3, 8, 8), torch.contiguous_format), ("mlp", CIFAR, torch.contiguous_format),
    ("cnn1d", (9, 128), torch.contiguous_format),
])  # fmt: skip
def test_wide_convolutions_get_images_with_their_channels_last_unless_the_model_minds(
    model: ModelLike, shape: Shape, best: torch.memory_format
) -> None:
    assert best_format(build(model, shape, 2), shape) == best


def test_a_model_that_views_its_features_trains_and_is_judged() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.integers(0, 255, (12, 3, 8, 8), np.uint8), np.arange(12) % 2) for _ in range(2)]
    result = fedkin.run(
        "fedavg", data=fedkin.Federation.from_arrays(clients), model=Viewing, rounds=1, epochs=1, engine="inline"
    )
    assert 0 <= result.accuracy <= 1


# Weights to start from.


def kept(model: nn.Module, path: Path, **names: str) -> Path:
    """A model's weights in a file, with other names for its layers where they are given."""
    path.parent.mkdir(parents=True, exist_ok=True)
    layers = {name: name.rpartition(".")[0] for name in model.state_dict()}
    renamed = {name: f"{names.get(layer, layer)}{name[len(layer) :]}" for name, layer in layers.items()}
    save_file({renamed[name]: tensor for name, tensor in model.state_dict().items()}, path)
    return path


def test_weights_are_found_by_their_names(tmp_path: Path) -> None:
    theirs, ours = build("lenet5-bn", CIFAR, 10), build("lenet5-bn", CIFAR, 10)
    start_from(ours, kept(theirs, tmp_path / "w.safetensors"))
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in theirs.state_dict().items())


def test_layers_with_other_names_are_paired_in_order_and_a_classifier_of_other_classes_stays(tmp_path: Path) -> None:
    theirs, ours = build("mobilenetv2", CIFAR, 20), build("mobilenetv2", CIFAR, 10)
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name in theirs.state_dict()))
    # As in the alphabet of a file, the classifier comes first there, and layer 10 before layer 2.
    names = {layer: f"features.{k}" for k, layer in enumerate(layers)} | {"classifier": "classifier.1"}
    before = ours.state_dict()["classifier.weight"].clone()
    said = start_from(ours, kept(theirs, tmp_path / "w.safetensors", **names))
    assert "but for classifier" in said
    assert torch.equal(ours.state_dict()["classifier.weight"], before)
    body = {name: tensor for name, tensor in theirs.state_dict().items() if not name.startswith("classifier")}
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in body.items())


def test_weights_that_are_not_for_a_model_are_refused_and_leave_it_alone(tmp_path: Path) -> None:
    ours = build("lenet5-bn", CIFAR, 10)
    before = {name: tensor.clone() for name, tensor in ours.state_dict().items()}
    for name, shape in (("lenet5-bn", MNIST), ("spfl-cnn", CIFAR), ("mobilenetv2", CIFAR)):
        with pytest.raises(FedkinError, match="are not for this model: "):
            start_from(ours, kept(build(name, shape, 10), tmp_path / "w.safetensors"))
    (tmp_path / "w.safetensors").write_bytes(b"no tensors")
    with pytest.raises(FedkinError, match=r"cannot be read as a \.safetensors file"):
        start_from(ours, tmp_path / "w.safetensors")
    with pytest.raises(FedkinError, match="do not exist"):
        start_from(ours, tmp_path / "none.safetensors")
    assert all(torch.equal(ours.state_dict()[name], tensor) for name, tensor in before.items())


def test_a_run_starts_from_weights_beside_the_datasets_and_resumes_with_the_same_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blobs: fedkin.Federation
) -> None:
    monkeypatch.setenv("FEDKIN_DATA", str(tmp_path))
    theirs, file = build("mlp", blobs.shape, blobs.classes), tmp_path / "weights/mine.safetensors"
    kept(theirs, file)
    settings = {"data": blobs, "model": "mlp", "weights": "mine.safetensors", "rounds": 2, "join": 0.25, "lr": 1e-9}
    result = fedkin.run("local-only", out=tmp_path / "run", **settings)
    vector = torch.nn.utils.parameters_to_vector(theirs.parameters())
    torch.testing.assert_close(result.models[0], vector, rtol=0, atol=1e-6)
    kept(build("mlp", blobs.shape, blobs.classes), file)
    with pytest.raises(FedkinError, match="has changed since the run in"):
        fedkin.resume(tmp_path / "run", data=blobs)
