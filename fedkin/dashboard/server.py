"""The page and what it asks for, over HTTP: read-only, for this machine unless somebody says otherwise.

A page on another site must not read runs through the reader's browser. So a request must name this server (a name that
was rebound to it does not), only GET is answered, and the page may load nothing but what comes from here.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly
from plotly.offline import get_plotlyjs
from plotly.utils import PlotlyJSONEncoder

from fedkin.dashboard.runs import NotThere, Runs, Whole
from fedkin.errors import FedkinError
from fedkin.report import charts, html
from fedkin.result import Result

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Lifespan, Message, Receive, Scope, Send

LOCAL = ("localhost", "127.0.0.1", "::1")
MOST = 24
"""Runs in one comparison."""
EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"
"""Plotly adds an empty style element, and then fills it with its rules; so this one text, the empty one, is allowed."""
HEADERS = {
    "content-security-policy": f"default-src 'none'; script-src 'self'; style-src 'self' {EMPTY}; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}


def serve(root: Path, host: str, port: int, say: Callable[[str], None]) -> None:
    """Serve the page about the runs under a folder, until Ctrl-C."""
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise FedkinError("the dashboard needs a web server: pip install 'fedkin[dashboard]'") from None
    with _listen(host, port) as listening:
        address = f"[{host}]" if ":" in host else host

        # Said once the server minds Ctrl-C, and not before.
        @asynccontextmanager
        async def announced(_: Starlette) -> AsyncIterator[None]:
            if not _is_loopback(host):
                say(f"warning: anyone who reaches {address} over the network can read all runs under {root}")
            say(f"dashboard of {root}: http://{address}:{listening.getsockname()[1]} (Ctrl-C ends it)")
            yield

        page = application(root, host, announced)
        config = uvicorn.Config(page, log_level="warning", server_header=False, timeout_graceful_shutdown=1)
        with suppress(KeyboardInterrupt):  # which is not raised where Ctrl-C was ignored before, as in the background
            uvicorn.Server(config).run(sockets=[listening])
    say("ended")


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        # A second server on the same port is refused here rather than when it is asked for something.
        listening.listen()
    except OSError as error:
        why = error.strerror or error
        raise FedkinError(f"cannot listen on {host} port {port}: {why}; choose another with --port or --host") from None
    return listening


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def application(root: Path, host: str = "127.0.0.1", lifespan: Lifespan[Starlette] | None = None) -> Starlette:
    """The server as an ASGI application; `lifespan` is entered when it begins to serve."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    runs = Runs(root)

    def listing(request: Request) -> Response:
        now = time.time()
        lines = [{**asdict(line), "state": line.state(now)} for line in runs.summaries()]
        return _answer(request, _json({"folder": str(runs.root), "runs": lines}), "application/json")

    def compare(request: Request) -> Response:
        params = request.query_params
        return _answer(request, _json(_compare(runs, params.getlist("run"), "together" in params)), "application/json")

    def details(request: Request) -> Response:
        return _answer(request, _json(_details(runs, request.query_params.get("run", ""))), "application/json")

    def refused(_: Request, error: Exception) -> Response:
        return JSONResponse({"error": str(error)}, 404 if isinstance(error, NotThere) else 400)

    routes = [
        Route("/", _file("page.html")),
        Route("/page.js", _file("page.js")),
        Route("/page.css", _file("page.css")),
        Route("/plotly.js", _plotly),
        Route("/api/runs", listing),
        Route("/api/compare", compare),
        Route("/api/run", details),
    ]
    guards = [Middleware(Guard, host=host)]
    return Starlette(routes=routes, middleware=guards, exception_handlers={FedkinError: refused}, lifespan=lifespan)


class Guard:
    """Answers only who calls this server by its own name, and sends the headers that keep a page to itself."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self.app = app
        self.names = {*LOCAL, host.lower()}
        # Who listens on all addresses can be called by any of them: an address cannot be rebound, a name can.
        self.any_address = host in ("0.0.0.0", "::")
        if self.any_address:
            self.names |= {socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        from starlette.responses import PlainTextResponse

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *extra]}
            await send(message)

        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) == 1 and self.allows(hosts[0]):
            await self.app(scope, receive, send_with_headers)
        else:
            await PlainTextResponse("this server has another name", 400)(scope, receive, send_with_headers)

    def allows(self, host: str) -> bool:
        """Whether a Host header names this server."""
        name, _, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "0")
        name = name.removeprefix("[").removesuffix("]").lower()
        if not port.isdecimal():
            return False
        if name in self.names:
            return True
        try:
            return self.any_address and bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _compare(runs: Runs, ids: Sequence[str], together: bool) -> dict[str, Any]:
    """Charts of several runs: each by itself, or seeds together."""
    if len(ids) > MOST:
        raise FedkinError(f"{len(ids)} runs were asked for, but at most {MOST} are compared")
    found: dict[str, Result] = {}
    wrong = {}
    for id in dict.fromkeys(ids):
        try:
            found[id] = runs.whole(id).result
        except (FedkinError, OSError) as error:
            wrong[id] = str(error)
    if not found:
        return {"wrong": wrong}
    if together:
        results = html.gathered(found.values())
    else:
        results = {label: [found[id]] for label, id in zip(_labels(list(found)), found, strict=True)}
    judged = [run.evaluated[0] for run in found.values() if run.evaluated]
    timed = len(judged) == len(found) and all(round.time is not None for round in judged)
    return {
        "wrong": wrong,
        "curves": charts.as_json(charts.curves(results)),
        "time": charts.as_json(charts.curves(results, "time")) if timed else None,
        "clients": charts.as_json(charts.clients(results)) if judged else None,
        "costs": charts.as_json(charts.costs(results)),
    }


def _labels(ids: Sequence[str]) -> list[str]:
    """Runs' paths without the folders that all of them share."""
    parts = [id.split("/") for id in ids]
    shared = 0
    while parts and all(len(p) > shared + 1 and p[shared] == parts[0][shared] for p in parts):
        shared += 1
    return ["/".join(p[shared:]) for p in parts]


def _details(runs: Runs, id: str) -> dict[str, Any]:
    """All about one run."""
    line = runs.summary(id)
    found: dict[str, Any] = {"id": id, "version": line.version, "wrong": [], "resume": runs.how_to_go_on(id)}
    try:
        whole = runs.whole(id)
        found |= {"wrong": [whole.wrong] if whole.wrong else [], "events": runs.events(id), **_about(whole)}
    except (FedkinError, OSError) as error:
        return found | {"wrong": [str(error)]}
    parts: dict[str, Callable[[Result], Any]] = {
        "kin": lambda run: charts.as_json(charts.kin(run)),
        "layers": lambda run: charts.as_json(charts.layers(run)),
        "timeline": lambda run: charts.as_json(charts.timeline(run)),
        "groups": charts.groups,
    }
    for name, part in parts.items():
        try:
            found[name] = part(whole.result)
        except Exception as error:  # Damaged matrices must not take the rest of the page with them.
            found["wrong"].append(f"{name} cannot be shown: {type(error).__name__}: {error}")
    return found


def _about(whole: Whole) -> dict[str, Any]:
    """A run's numbers, and its clients [N] with what is known of each."""
    result, about = whole.result, whole.about
    count = len(result.client_names)
    accuracy = [None if a != a else a for a in result.score.clients] if result.evaluated else [None] * count
    rows = [
        {
            "client": str(name),
            "accuracy": accuracy[i] if i < len(accuracy) else None,
            "train": _at(about.get("train_samples"), i),
            "test": _at(about.get("test_samples"), i),
            "rounds": sum(i in r.participants for r in result.history),
        }
        for i, name in enumerate(result.client_names)
    ]
    return {
        "clients": rows,
        "round": len(result.history),
        "accuracy": None if not result.evaluated or result.accuracy != result.accuracy else result.accuracy,
        "judged": result.score.describe() if result.evaluated else None,
        "best": result.best if result.evaluated else None,
        "seconds": result.seconds,
        "up": sum(r.bytes_up for r in result.history),
        "down": sum(r.bytes_down for r in result.history),
        "config": {"settings": result.config.model_dump(), "versions": about.get("versions")},
    }


def _at(samples: object, i: int) -> int | None:
    """Samples of a client, where somebody but the client knows them."""
    known = isinstance(samples, list) and any(samples) and i < len(samples)
    return samples[i] if known and isinstance(samples, list) else None


def _json(value: object) -> bytes:
    return json.dumps(value, cls=PlotlyJSONEncoder).encode()


def _answer(request: Request, body: bytes, kind: str, caching: str = "no-cache", tag: str | None = None) -> Response:
    """An answer, or 304 to a browser that has it already."""
    from starlette.responses import Response

    tag = f'"{tag or hashlib.sha256(body).hexdigest()[:24]}"'
    headers = {"etag": tag, "cache-control": caching}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=kind)


def _file(name: str) -> Callable[[Request], Response]:
    body = (resources.files("fedkin.dashboard") / name).read_bytes()
    return lambda request: _answer(request, body, KINDS[name.rpartition(".")[2]])


@cache
def _plotly_body() -> bytes:
    body: bytes = get_plotlyjs().encode()
    return body


def _plotly(request: Request) -> Response:
    return _answer(request, _plotly_body(), KINDS["js"], "max-age=86400", plotly.__version__)
