"""Models: those of the papers by name, and a user's own as they are.

    build("lenet5-bn", (3, 32, 32), 10)
    build("my_models.py:Net", (9, 128), 6)
    build(Net, (9, 128), 6)

Every model of the catalogue is an `nn.Sequential` of named layers whose last one is `classifier`.
"""

from fedkin.models.building import ModelLike, best_format, build
from fedkin.models.catalogue import ModelCard, default_for, describe, names, supervisor_for
from fedkin.models.layers import Shape
from fedkin.models.weights import start_from

__all__ = [
    "ModelCard",
    "ModelLike",
    "Shape",
    "best_format",
    "build",
    "default_for",
    "describe",
    "names",
    "start_from",
    "supervisor_for",
]
