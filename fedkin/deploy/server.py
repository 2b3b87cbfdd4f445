"""The server of a federation: Flower's SuperLink on loopback, the gate in front of it, and the run's own processes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import uvicorn

from fedkin.deploy import gate
from fedkin.deploy.apps import FOLDER, REFUSALS
from fedkin.deploy.checks import most_bytes
from fedkin.deploy.control import FLOWER, Control, write_connection
from fedkin.deploy.folder import CA, LOOPBACK, public_keys
from fedkin.deploy.programs import Programs, environment, free_port, last_words, listening
from fedkin.deploy.terms import Terms
from fedkin.errors import FedkinError


def run(folder: Path, listen: str, tell: Callable[[str], object]) -> None:
    """Serve until we are told to stop; `listen` is the address that the gate listens on."""
    folder = folder.resolve()
    terms, keys = Terms.read(folder), public_keys(folder)
    server, port = folder / "server", free_port()
    if listening(terms.server.port, listen if listen != "0.0.0.0" else LOOPBACK):
        raise FedkinError(f"somebody listens on port {terms.server.port} already: is the server running?")
    log = server / "server.log"
    env = environment(server / FLOWER, {FOLDER: str(folder)})
    paths = {name: str(server / name) for name in ("server.crt", "server.key", CA, "secret")}
    write_connection(folder, port)
    with Programs() as programs:
        programs.start(
            [
                *("flower-superlink", "--host", LOOPBACK, "--port", str(port), "--isolation", "process"),
                *("--ssl-certfile", paths["server.crt"], "--ssl-keyfile", paths["server.key"]),
                *("--ssl-ca-certfile", paths[CA], "--enable-supernode-auth"),
                *("--superexec-auth-secret-file", paths["secret"], "--disable-runtime-dependency-installation"),
                *("--database", str(server / "superlink.sqlite")),
            ],
            env,
            log,
        )
        programs.wait_for(port, log)
        Control(folder, port).register(keys)
        programs.start(
            [
                *("flower-superexec", "--runtime-api-address", f"{LOOPBACK}:{port}", "--root-certificates", paths[CA]),
                *("--superexec-auth-secret-file", paths["secret"], "--parent-pid", str(os.getpid())),
            ],
            env,
            log,
        )
        limit = most_bytes(terms.setup(folder))
        front = gate.serve(
            gate.Gate(f"https://{LOOPBACK}:{port}", server / CA, keys, limit, server / REFUSALS),
            listen,
            terms.server.port,
            server / "server.crt",
            server / "server.key",
        )
        ready = f"serving {len(keys)} clients on {listen}:{terms.server.port}; start a run with: fedkin start {folder}"
        threading.Thread(target=_watch, args=(programs, front, lambda: tell(ready)), daemon=True).start()
        front.run()
        if name := programs.ended():
            raise FedkinError(f"{name} has ended: {last_words(log)}")


def _watch(programs: Programs, front: uvicorn.Server, ready: Callable[[], object]) -> None:
    """Say when the gate is open, and close it when a program has ended."""
    told = False
    while not front.should_exit:
        if front.started and not told:
            ready()
            told = True
        if programs.ended():
            front.should_exit = True
        time.sleep(0.1)
