"""`fedkin dashboard`: a live page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def dashboard(
    folder: Annotated[Path, typer.Argument(help="Folder with runs in it, at any depth.")] = Path("runs"),
    host: Annotated[str, typer.Option(help="Address to listen on. Others than this machine's own let others read.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8050,
) -> None:
    """Show all runs under a folder on a page that follows them as they go on. Ctrl-C ends it.

    [dim]fedkin dashboard runs --port 8060[/dim]
    """
    from fedkin.dashboard.server import serve

    serve(folder, host, port, lambda text: print(text, flush=True))
