"""The gate: the only thing that the world can reach of a federation's server.

Flower serves its whole interface on one port: what nodes need, but also the registering of keys, the submitting of
apps (which is code that runs on every node) and the handing out of tasks. So Flower listens on loopback, and this
small TLS proxy in front of it lets pass what a known node needs to do its work, and nothing else.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from flwr.proto.fleet_pb2 import PullMessagesResponse, PushMessagesRequest
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER
from google.protobuf.message import DecodeError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from fedkin.runs.files import append_line

PASSED = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
"""What a node does. Not among them: registering a key."""
STAYS = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer"}
"""Headers that belong to one connection."""
TIMEOUT = 120.0
HOLD, LOOK = 15.0, 0.1
"""Seconds that a call is held at most, and between two looks; longer where many wait."""


def _no_message(answer: bytes) -> bool:
    return not PullMessagesResponse.FromString(answer).messages_list


def _not_there_yet(answer: bytes) -> bool:
    response = PullObjectResponse.FromString(answer)
    return response.object_found and not response.object_available


HELD: dict[str, Callable[[bytes], bool]] = {"pull-messages": _no_message, "pull-object": _not_there_yet}
"""Calls that are held while this is true of the answer."""


class Gate:
    """Passes calls of known nodes on to Flower."""

    def __init__(self, inner: str, authority: Path, keys: Collection[bytes], most: int, refusals: Path) -> None:
        self.inner, self.keys, self.most, self.refusals = inner, frozenset(keys), most, refusals
        self.trusted = ssl.create_default_context(cafile=str(authority))
        self.pushed: dict[bytes, int] = {}
        """Bytes that a node has sent since it last announced a message."""
        self.refused: set[bytes] = set()
        """Nodes whose last message was refused: what else comes of it is, too, without being told again."""
        self.held = 0
        """Calls that are held at the moment."""

    def app(self) -> Starlette:
        """The proxy as an ASGI app."""
        routes = [Route(f"/v1/fleet/{name}", self.passed, methods=["POST"]) for name in PASSED]
        return Starlette(routes=routes, lifespan=self._client)

    @asynccontextmanager
    async def _client(self, _: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=self.inner, verify=self.trusted, timeout=TIMEOUT) as self.client:
            yield

    async def passed(self, request: Request) -> Response:
        """One call, if there is nothing wrong with it."""
        try:
            key = base64.b64decode(request.headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)
        except (binascii.Error, ValueError):
            key = b""
        if key not in self.keys:
            return PlainTextResponse("this key is not known here", 401)
        name = request.url.path.rpartition("/")[2]
        if name == "push-messages":
            self.refused.discard(key)
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > self.most:
                return self._too_long(key)
        refusal = self._refusal(name, key, bytes(body))
        if refusal:
            return refusal
        headers = {name: value for name, value in request.headers.items() if name not in STAYS}
        try:
            answer = await self.client.post(request.url.path, content=bytes(body), headers=headers)
            if name in HELD:
                answer = await self._held(request, name, bytes(body), headers, answer)
        except httpx.HTTPError:
            return PlainTextResponse("the server is not ready", 503)
        kept = {name: value for name, value in answer.headers.items() if name not in STAYS | {"content-encoding"}}
        return Response(answer.content, answer.status_code, kept)

    async def _held(
        self, request: Request, name: str, body: bytes, headers: dict[str, str], answer: httpx.Response
    ) -> httpx.Response:
        """Hold a call until there is something to answer: a node that is told of nothing rests for 1 to 3 s."""
        end = time.monotonic() + HOLD
        self.held += 1
        try:
            while answer.status_code == 200 and HELD[name](answer.content):
                await asyncio.sleep(max(LOOK, self.held * LOOK / 10))
                if time.monotonic() > end or await request.is_disconnected():
                    break
                answer = await self.client.post(request.url.path, content=body, headers=headers)
        finally:
            self.held -= 1
        return answer

    def _refusal(self, name: str, key: bytes, body: bytes) -> Response | None:
        if name == "push-messages":
            # Flower checks who calls, but not in whose name the messages are.
            try:
                pushed = PushMessagesRequest.FromString(body)
            except DecodeError:
                return PlainTextResponse("not a message", 400)
            if any(m.metadata.src_node_id != pushed.node.node_id for m in pushed.messages_list):
                return PlainTextResponse("a message in another node's name", 403)
            self.pushed[key] = 0
        elif name == "push-object":
            self.pushed[key] = self.pushed.get(key, 0) + len(body)
            if self.pushed[key] > self.most:
                return self._too_long(key)
        return None

    def _too_long(self, key: bytes) -> Response:
        why = f"more than {self.most:,} bytes"
        if key not in self.refused:
            self.refused.add(key)
            append_line(self.refusals, json.dumps({"key": base64.b64encode(key).decode(), "why": why}))
        return PlainTextResponse(why, 413)


def serve(gate: Gate, host: str, port: int, certificate: Path, key: Path) -> uvicorn.Server:
    """A server that is ready to `run`."""
    config = uvicorn.Config(
        gate.app(),
        host=host,
        port=port,
        ssl_certfile=str(certificate),
        ssl_keyfile=str(key),
        log_level="warning",
        server_header=False,
        access_log=False,
    )
    return uvicorn.Server(config)
