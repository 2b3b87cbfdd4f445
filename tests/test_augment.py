"""Images to learn from, moved and mirrored at random."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from stopping import Stop, same, stop_after
from torch import Tensor

import fedkin
from fedkin import Federation, FedkinError
from fedkin.api import prepare
from fedkin.augment import varied
from fedkin.client import Samples

SETTINGS: dict[str, Any] = {"data": "digits", "clients": 4, "rounds": 3, "epochs": 1, "model": "small-cnn", "seed": 1}


def moved(image: Tensor, down: int, right: int, mirrored: bool) -> Tensor:
    """An image [C, H, W], pixel by pixel: what comes in from outside is 0."""
    _, height, width = image.shape
    result = torch.zeros_like(image)
    for i in range(height):
        for j in range(width):
            a, b = i + down, (width - 1 - j if mirrored else j) + right
            if 0 <= a < height and 0 <= b < width:
                result[:, i, j] = image[:, a, b]
    return result


@pytest.mark.parametrize("augment", ["flip", "crop-flip"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_images_are_moved_by_up_to_an_eighth_and_mirrored_every_second_time(augment: str, dtype: torch.dtype) -> None:
    image = torch.arange(1, 2 * 8 * 17 + 1).reshape(2, 8, 17).remainder(251).to(dtype)
    far = (1, 2) if augment == "crop-flip" else (0, 0)
    ways = {
        (down, right, mirrored): moved(image, down, right, mirrored)
        for down in range(-far[0], far[0] + 1)
        for right in range(-far[1], far[1] + 1)
        for mirrored in (False, True)
    }
    seen = varied(image.expand(600, -1, -1, -1), augment, torch.Generator().manual_seed(0))
    assert seen.shape == (600, 2, 8, 17)
    assert seen.dtype == dtype
    found = Counter(next(way for way, it in ways.items() if torch.equal(it, each)) for each in seen)
    assert found.keys() == ways.keys()
    expected = 600 / len(ways)
    assert all(abs(count - expected) < 5 * expected**0.5 for count in found.values())


def test_only_batches_to_learn_from_are_varied(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[bool] = []
    inputs = Samples.inputs

    def noted(self: Samples, rows: Tensor, change: Any = None) -> Tensor:
        changed.append(change is not None)
        return inputs(self, rows, change)

    monkeypatch.setattr(Samples, "inputs", noted)
    result = fedkin.run("fedavg", **SETTINGS, augment="crop-flip", engine="inline", evaluate_every=3)
    assert changed.count(True) == sum(r.steps for r in result.history)
    assert changed.count(False) == 4, "the test samples of four clients"


@pytest.mark.parametrize("method", ["fedavg", "fedsimsup"])
def test_varied_images_are_the_same_bits_on_every_engine_and_after_a_resume(method: str, tmp_path: Path) -> None:
    given = {**SETTINGS, "augment": "crop-flip", "checkpoint_every": 1}
    if method == "fedsimsup":
        given["supervisor"] = "small-cnn"
    here = fedkin.run(method, **given, engine="inline")
    there = fedkin.run(method, **given, engine="processes", workers=2)
    with pytest.raises(Stop):
        fedkin.run(method, **given, engine="inline", out=tmp_path / "run", watch=stop_after(2))
    resumed = fedkin.resume(tmp_path / "run")
    plain = fedkin.run(method, **given | {"augment": "none"}, engine="inline")
    assert same(here, there)
    assert same(here, resumed)
    assert not torch.equal(here.models.rows, plain.models.rows)


def test_a_dense_model_is_trained_one_by_one_where_images_are_varied() -> None:
    given = {**SETTINGS, "model": "mlp", "clients": 8, "augment": "flip"}
    assert not prepare("fedavg", **given).vectorized
    assert prepare("fedavg", **given | {"augment": "none"}).vectorized
    with pytest.raises(FedkinError, match="augment be none"):
        prepare("fedavg", **given, vectorize="on")


def test_samples_that_are_no_images_are_refused(blobs: Federation) -> None:
    with pytest.raises(FedkinError, match=r"augment=flip needs images .* shape \(6,\)"):
        prepare("fedavg", data=blobs, augment="flip")
