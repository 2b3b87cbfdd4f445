"""The two Flower apps: Flower starts them, and they hand letters to `at_client` and `at_server`."""

from __future__ import annotations

import os
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

FOLDER = "FEDKIN_FEDERATION"
"""Environment variable with a federation's folder, for the server's app."""


REFUSALS = "refusals.jsonl"
"""Where the gate notes whom it has sent away."""


def client_app(file: str) -> ClientApp:
    """The app of a client; `file` is that of the app in the federation's folder, beside which a method may lie."""
    app = ClientApp()

    def work(message: Message, context: Context) -> Message:
        # Only now: a process that has nothing to do need not load PyTorch.
        from fedkin.deploy.mail import answered

        return answered(message, context, Path(file).parent)

    app.train()(work)
    app.evaluate()(work)
    return app


def server_app(file: str) -> ServerApp:
    """The app of the server."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        from fedkin.deploy.at_server import serve
        from fedkin.deploy.folder import public_keys
        from fedkin.deploy.mail import ByFlower, hurry

        hurry()
        folder = Path(os.environ.get(FOLDER) or str(context.run_config["folder"]))
        out = folder / "runs" / str(context.run_config["run"])
        serve(ByFlower(grid, folder / "server" / REFUSALS), public_keys(folder), folder, out, Path(file).parent)

    return app
