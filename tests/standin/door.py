"""Serve a stand-in for the API on this machine, with Python's library alone.

    with served(client) as url:
        ...  # a program in any language, with ANTHROPIC_BASE_URL=url

`client.answer(request)` returns a message or raises `Refused`, as `StubClient` does;
`client.count_tokens(**request)` counts one, and `client.model_info(name)` describes the
model. Streamed or not is decided here.
"""

import gzip
import json
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stub import Refused, events


class Handler(BaseHTTPRequestHandler):
    """Answers the API's requests that an agent needs."""

    client: Any
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.close_connection = True
        path = self.path.partition("?")[0]
        try:
            request = as_request(self.body(), self.headers)
            if path == "/v1/messages":
                return self.send(200, *self.message(request))
            if path == "/v1/messages/count_tokens":
                return self.send(200, vars(self.client.count_tokens(**request)))
        except Refused as error:
            return self.send(400, error.body)
        except (ValueError, TypeError, AttributeError, LookupError) as error:
            return self.send(400, Refused(f"{type(error).__name__}: {error}").body)
        self.do_GET()

    def do_GET(self):
        path, _, model = self.path.partition("?")[0].rpartition("/")
        if path == "/v1/models":
            return self.send(200, self.client.model_info(model))
        self.send(404, Refused(f"Not found: {self.path}").body)

    def body(self):
        """The request's body, which Node sends in chunks unless told its length."""
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        chunks = []
        while length := int(self.rfile.readline().partition(b";")[0], 16):
            chunks.append(self.rfile.read(length))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def message(self, request):
        """The reply to a request for a message, whole or as the events of a stream."""
        streamed = request.pop("stream", False)
        message = self.client.answer(request)
        return [b"".join(sse(message))] if streamed else [message]

    def send(self, status, body):
        """Send JSON, or events as bytes."""
        kind = "text/event-stream" if isinstance(body, bytes) else "application/json"
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"content-type": kind, "content-length": len(data)}.items():
            self.send_header(name, str(value))
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass


def as_request(body, headers):
    """Read a body, which may be compressed, with its betas as the SDK's argument."""
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    request = json.loads(body)
    if beta := headers.get("anthropic-beta"):
        request["extra_headers"] = {"anthropic-beta": beta}
    return request


def event(type, **data):
    """One server-sent event of the Messages API, as bytes."""
    return f"event: {type}\ndata: {json.dumps({'type': type, **data})}\n\n".encode()


def sse(message):
    """Split `message`, a plain dict, into the events that stream it, each as bytes."""
    return [event(**one) for one in events(message)]


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may hang up
            super().handle_error(request, client_address)


@contextmanager
def served(client, handler=Handler):
    """Serve the stand-in and yield its address."""
    server = Server(("127.0.0.1", 0), type("Handler", (handler,), {"client": client}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
