"""fedkin: personalised federated learning among kin.

Every client gets its own model and learns most from the clients whose data are like its own.
"""

from fedkin.api import compare, resume, run
from fedkin.client import Client
from fedkin.data.federation import Federation
from fedkin.errors import FedkinError
from fedkin.method import Judged, Message, Method, Overview, Replies, State
from fedkin.result import Result

__version__ = "0.1.0"
__all__ = [
    "Client",
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
    "resume",
    "run",
]
