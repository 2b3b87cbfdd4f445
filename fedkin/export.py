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
from PIL import Image, UnidentifiedImageError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedkin import models
from fedkin.api import OBJECT
from fedkin.errors import FedkinError
from fedkin.layout import Layout
from fedkin.runs.files import write_whole
from fedkin.runs.folder import RunFolder

KEY = "fedkin"


@dataclass(frozen=True)
class Personal:
    """A client's model, ready to classify."""

    module: nn.Module
    about: Mapping[str, Any]
    """model, shape, pixels, mean, std, classes, client."""

    @staticmethod
    def from_run(folder: RunFolder, client: int) -> Personal:
        """The final model of client number `client` of a run."""
        about, config = folder.about, folder.config
        if config.model is None or config.model.startswith(OBJECT):
            raise FedkinError(
                f"the run in {folder.path} was given its network as a Python object, which cannot be built "
                "from here: give --model as a name or as file.py:Class"
            )
        vector = folder.models()[client]
        kept = {name: about[name] for name in ("shape", "pixels", "mean", "std", "classes")}
        about = {"model": config.model, **kept, "client": about["clients"][client]}
        module = _module(about)
        layout = Layout(module, config.classifier)
        module.load_state_dict(layout.tensors(vector.float()), strict=False)
        return Personal(module.eval(), about)

    @staticmethod
    def from_file(path: Path) -> Personal:
        """A model that was exported."""
        try:
            with safe_open(path, "pt") as file:
                about = json.loads((file.metadata() or {})[KEY])
            tensors = {k: torch.from_numpy(v) for k, v in safetensors.numpy.load(path.read_bytes()).items()}
        except FileNotFoundError:
            raise FedkinError(f"there is no file or run folder {path}") from None
        except (SafetensorError, KeyError, ValueError, OSError) as error:
            raise FedkinError(f"{path} is not a model that fedkin exported: {error}") from None
        module = _module(about)
        module.load_state_dict(tensors, strict=False)
        return Personal(module.eval(), about)

    def save(self, path: Path) -> None:
        """Write the model and what it takes to use it."""
        layout = Layout(self.module)
        tensors = {k: v.numpy() for k, v in layout.tensors(layout.flatten(self.module)).items()}
        path.parent.mkdir(parents=True, exist_ok=True)
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
        scores = self.module(self.inputs(sample))[0, : len(self.about["classes"])]
        chances = zip(self.about["classes"], scores.softmax(0).tolist(), strict=True)
        return dict(sorted(chances, key=lambda pair: -pair[1]))

    def read(self, path: Path) -> np.ndarray[Any, Any]:
        """A sample from a file: an image for image models, otherwise a .npy array."""
        if not path.is_file():
            raise FedkinError(f"there is no file {path}")
        shape = tuple(self.about["shape"])
        try:
            if path.suffix == ".npy":
                return np.asarray(np.load(path, allow_pickle=False))
            with Image.open(path) as image:
                channels, height, width = shape
                picture = image.convert("L" if channels == 1 else "RGB").resize((width, height))
                pixels = np.asarray(picture, dtype=np.uint8)
        except (UnidentifiedImageError, OSError, ValueError) as error:
            raise FedkinError(f"{path} cannot be read as a sample of shape {shape}: {error}") from None
        return pixels[None] if channels == 1 else pixels.transpose(2, 0, 1)


def _module(about: Mapping[str, Any]) -> nn.Module:
    return models.build(about["model"], tuple(about["shape"]), len(about["classes"]))
