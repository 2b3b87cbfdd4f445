"""One client's model as a file of its own, and predictions with it.

The file is safetensors with the network's own tensor names; its metadata say which network it is,
how inputs are normalised and what the classes are called, so it can be used without the run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedkin import models
from fedkin.api import OBJECT
from fedkin.errors import FedkinError
from fedkin.layout import Layout
from fedkin.runs.files import make_folder, write_whole
from fedkin.runs.folder import RunFolder

KEY = "fedkin"
BESIDE = "beside."
"""Prefix of a second network's tensors."""
ABOUT = {"model", "shape", "pixels", "mean", "std", "classes", "client"}


@dataclass(frozen=True)
class Personal:
    """A client's model, ready to classify."""

    networks: Mapping[str, nn.Module]
    """The model, and where a method has one a second network whose scores are added; by prefix of their tensors."""
    about: Mapping[str, Any]
    """What `ABOUT` lists, and the name of the second network as `beside`."""

    @staticmethod
    def from_run(folder: RunFolder, client: int) -> Personal:
        """The final model of client number `client` of a run."""
        about, config = folder.about, folder.config
        if config.model is None or config.model.startswith(OBJECT):
            raise FedkinError(
                f"the run in {folder.path} was given its network as a Python object, which cannot be built "
                "from here: give --model as a name or as file.py:Class"
            )
        trained = folder.models()
        return Personal.of(about, config.model, client, trained[client], trained.beside.get(client))

    @staticmethod
    def of(
        described: Mapping[str, Any],
        model: str | None,
        client: int,
        vector: Tensor,
        second: tuple[str, Tensor] | None = None,
    ) -> Personal:
        """From its numbers [D], and those of a second network by its name; `described` is as of `api.describe`."""
        kept = {name: described[name] for name in ("shape", "pixels", "mean", "std", "classes")}
        about = {"model": model, **kept, "client": described["clients"][client]}
        about |= {"beside": second[0]} if second else {}
        networks = _networks(about)
        for network, numbers in zip(networks.values(), (vector, *([second[1]] if second else [])), strict=True):
            network.load_state_dict(Layout(network).tensors(numbers.float()), strict=False)
        return Personal(networks, about)

    @staticmethod
    def from_file(path: Path) -> Personal:
        """A model that was exported."""
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {}).get(KEY, "null"))
            tensors = {k: torch.from_numpy(v) for k, v in safetensors.numpy.load(path.read_bytes()).items()}
        except FileNotFoundError:
            raise FedkinError(f"there is no file or run folder {path}") from None
        except (SafetensorError, ValueError, OSError) as error:
            raise FedkinError(f"{path} is not a model that fedkin exported: {error}") from None
        if not isinstance(about, dict) or not about.keys() >= ABOUT:
            raise FedkinError(f"{path} is not a model that fedkin exported: it does not say what it is")
        networks = _networks(about)
        expected = {name: tensor.shape for name, tensor in _named(networks).items()}
        if {name: tensor.shape for name, tensor in tensors.items()} != expected:
            raise FedkinError(f"{path} is damaged: its tensors are not those of a model {about['model']}")
        for prefix, network in networks.items():
            own = {k.removeprefix(prefix): v for k, v in tensors.items() if _home(k, networks) == prefix}
            network.load_state_dict(own, strict=False)
        return Personal(networks, about)

    def save(self, path: Path) -> None:
        """Write the model and what it takes to use it."""
        tensors = {name: tensor.numpy() for name, tensor in _named(self.networks).items()}
        make_folder(path.parent)
        write_whole(path, safetensors.numpy.save(tensors, metadata={KEY: json.dumps(dict(self.about))}))

    def inputs(self, sample: np.ndarray[Any, Any]) -> Tensor:
        """A raw sample [*shape] as a normalised batch of one."""
        shape = tuple(self.about["shape"])
        if sample.shape != shape:
            raise FedkinError(f"the model takes samples of shape {shape}, but {sample.shape} was given")
        per_channel = (-1, *[1] * (len(shape) - 1))
        mean, std = (np.reshape(self.about[k], per_channel) for k in ("mean", "std"))
        unit = 255.0 if self.about["pixels"] else 1.0
        return torch.from_numpy(((sample / unit - mean) / std).astype(np.float32))[None]

    @torch.inference_mode()
    def predict(self, sample: np.ndarray[Any, Any]) -> dict[str, float]:
        """Class names to probabilities, the most likely first."""
        x, classes = self.inputs(sample), len(self.about["classes"])
        scores = torch.stack([network(x)[0, :classes] for network in self.networks.values()]).sum(0)
        chances = zip(self.about["classes"], scores.softmax(0).tolist(), strict=True)
        return dict(sorted(chances, key=lambda pair: -pair[1]))

    def read(self, path: Path) -> np.ndarray[Any, Any]:
        """A sample from a file: an image for image models, otherwise a .npy array."""
        if not path.is_file():
            raise FedkinError(f"there is no file {path}")
        shape = tuple(self.about["shape"])
        try:
            return _array(path) if path.suffix == ".npy" else self._pixels(path)
        except (OSError, ValueError, EOFError, SyntaxError, Image.DecompressionBombError) as error:
            raise FedkinError(f"{path} cannot be read as a sample of shape {shape}: {error}") from None

    def _pixels(self, path: Path) -> np.ndarray[Any, Any]:
        """An image as [channels, height, width], resized if it has another size."""
        if not self.about["pixels"]:
            raise ValueError("the model did not learn from 8-bit images, so a .npy array is expected")
        channels, height, width = self.about["shape"]
        with Image.open(path) as image:
            if image.mode[0] in "IF":
                raise ValueError(f"it has more than 8 bits a pixel (mode {image.mode})")
            grey = image.convert("L" if channels == 1 else "RGB")
            pixels = np.asarray(grey.resize((width, height), Image.Resampling.BILINEAR))
        return pixels.reshape(height, width, channels).transpose(2, 0, 1)


def _array(path: Path) -> np.ndarray[Any, Any]:
    array = np.asarray(np.load(path, allow_pickle=False))
    if array.dtype.kind not in "fiub" or not np.isfinite(array).all():
        raise ValueError("finite numbers expected")
    return array


def _networks(about: Mapping[str, Any]) -> dict[str, nn.Module]:
    shape, classes = tuple(about["shape"]), len(about["classes"])
    networks = {"": models.build(about["model"], shape, classes).eval()}
    if "beside" in about:
        networks[BESIDE] = models.build(about["beside"], shape, classes).eval()
    return networks


def _named(networks: Mapping[str, nn.Module]) -> dict[str, Tensor]:
    """All numbers of the networks by name, those of the second one with its prefix."""
    named: dict[str, Tensor] = {}
    for prefix, network in networks.items():
        layout = Layout(network)
        named |= {prefix + name: tensor for name, tensor in layout.tensors(layout.flatten(network)).items()}
    return named


def _home(name: str, networks: Mapping[str, nn.Module]) -> str:
    """The prefix of the network that a tensor belongs to."""
    return BESIDE if BESIDE in networks and name.startswith(BESIDE) else ""
