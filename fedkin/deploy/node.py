"""A client of a federation: Flower's SuperNode with this client's key, and the process that works for it."""

from __future__ import annotations

import json
import os
import secrets
import sys
import time
from collections.abc import Callable
from pathlib import Path

from fedkin.deploy.control import FLOWER
from fedkin.deploy.folder import CA, KEY, LOOPBACK, ClientFolder, secret
from fedkin.deploy.programs import Programs, environment, free_port, last_words
from fedkin.deploy.terms import PUBLIC
from fedkin.errors import FedkinError

AGAIN = 5.0
"""Seconds after which a node that the server did not take is started again."""


def run(client: ClientFolder, data: Path, device: str, threads: int, tell: Callable[[str], object]) -> None:
    """Take part until we are told to stop."""
    if not data.exists():
        raise FedkinError(f"there is no folder {data}")
    log, state = client.file("client.log"), client.file("state")
    state.mkdir(exist_ok=True)
    state.chmod(0o700)
    secret(client.file("secret"), secrets.token_bytes(48))
    about: dict[str, object] = {"data": str(data.resolve()), "home": str(state), "device": device, "threads": threads}
    if client.file(PUBLIC).exists():
        about["public"] = str(client.file(PUBLIC))
    port = free_port()
    env = environment(client.file(FLOWER))
    node = [
        *("flower-supernode", "--superlink", client.server, "--root-certificates", str(client.file(CA))),
        *("--auth-supernode-private-key", str(client.file(KEY)), "--isolation", "process"),
        *("--host", LOOPBACK, "--port", str(port), "--superexec-auth-secret-file", str(client.file("secret"))),
        "--node-config",
        " ".join(f"{name}={json.dumps(value)}" for name, value in about.items()),
    ]
    worker = [
        *(sys.executable, "-m", "fedkin.deploy.warm", "--runtime-api-address", f"{LOOPBACK}:{port}"),
        *("--superexec-auth-secret-file", str(client.file("secret")), "--parent-pid", str(os.getpid())),
    ]
    with Programs() as programs:
        programs.start(node, env, log)
        programs.wait_for(port, log)
        programs.start(worker, env, log, "the worker")
        tell(f"{client.name}: taking part in the federation of {client.server}; what happens is in {log}")
        while True:
            time.sleep(0.5)
            name = programs.ended()
            if name == "flower-supernode":
                # The server takes a node that was killed for alive, and does not let it in twice, for about a minute.
                tell(f"{client.name}: not connected, trying again: {last_words(log)}")
                programs.stop(name)
                time.sleep(AGAIN)
                programs.start(node, env, log)
            elif name:
                raise FedkinError(f"{name} has ended: {last_words(log)}")
