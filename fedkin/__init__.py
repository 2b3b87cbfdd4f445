"""fedkin: personalised federated learning among kin.

Every client gets its own model and learns most from the clients whose data are like its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedkin.api import compare, load, resume, run
    from fedkin.client import Client
    from fedkin.data.federation import Federation
    from fedkin.errors import FedkinError
    from fedkin.method import Exchange, Judged, Message, Method, Overview, Replies, State
    from fedkin.result import Result

__version__ = "0.1.0"

_HOME = {
    "compare": "api", "load": "api", "resume": "api", "run": "api",
    "Client": "client",
    "Federation": "data.federation",
    "FedkinError": "errors",
    "Exchange": "method", "Judged": "method", "Message": "method", "Method": "method",
    "Overview": "method", "Replies": "method", "State": "method",
    "Result": "result",
}  # fmt: skip
__all__ = [
    "Client",
    "Exchange",
    "Federation",
    "FedkinError",
    "Judged",
    "Message",
    "Method",
    "Overview",
    "Replies",
    "Result",
    "State",
    "compare",
    "load",
    "resume",
    "run",
]


def __getattr__(name: str) -> Any:
    """Import on first use: `fedkin --help` should not have to wait for PyTorch."""
    if name not in _HOME:
        raise AttributeError(f"module 'fedkin' has no attribute {name!r}")
    return getattr(import_module(f"fedkin.{_HOME[name]}"), name)
