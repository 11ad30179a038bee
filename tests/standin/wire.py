"""The fake client over HTTP, for the behaviour that only the real SDK shows.

`mock_client` is the real SDK over an in-process transport; `serve` is a server for a
program in another process. Both answer from a `StubClient`, with its queue, its memory
and its conscience. The queue may also hold answers that exist only over HTTP:

    (status, headers, body)          any response; the body is JSON or bytes
    bytes                            served with status 200 as an event stream
    [bytes, ...]                     the same, piece by piece
    Cut(reply, events=3)             a stream that ends after three events
    Cut(reply, events=3, error=e)    a stream that breaks with `e` after three events
"""

import sys
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anthropic
import httpx2
from door import as_request, sse
from stub import EmptyQueue, Refused, StubClient, api_error


@dataclass
class Cut:
    """A stream of `reply` that ends, or fails with `error`, after so many events."""

    reply: dict
    events: int
    error: BaseException | None = None


# --- Answers ---


def respond(stub, method, path, body, headers):
    """Answer an HTTP request; raise a queued exception that has no response."""
    try:
        if method == "GET" and path.startswith("/v1/models/"):
            return model_answer(stub, path.rpartition("/")[2])
        if path == "/api/ps":
            return loaded_answer(stub)
        request = as_request(body, headers)
        if path.endswith("/count_tokens"):
            return answer(200, {}, vars(stub.count_tokens(**request)))
        return message_answer(stub, request)
    except Refused as error:
        return answer(error.status_code, {}, error.body)
    except anthropic.APIStatusError as error:
        return error.response


def model_answer(stub, model):
    if isinstance(stub.info, tuple):
        return answer(*stub.info)
    return answer(200, {}, stub.info or stub.model_info(model))


def loaded_answer(stub):
    loaded = stub.loaded
    if isinstance(loaded, dict):
        return answer(200, {}, stub.loaded_models())
    return answer(*loaded or (404, {}, b"404 page not found"))


def message_answer(stub, request):
    streamed = request.pop("stream", False)
    if streamed:
        stub.check_streamed(request)
    given = stub.take(request)
    if isinstance(given, tuple):
        return answer(*given)
    if not streamed:
        return answer(200, {}, stub.finish(request, given))
    if isinstance(given, bytes | list):
        return stream([given] if isinstance(given, bytes) else given)
    if isinstance(given, Cut):
        events = sse(stub.finish(request, given.reply))
        return stream(events[: given.events], given.error)
    return stream(sse(stub.finish(request, given)))


def answer(status, headers, body):
    if isinstance(body, bytes):
        return httpx2.Response(status, headers=headers, content=body)
    return httpx2.Response(status, headers=headers, json=body)


def stream(events, error=None):
    def chunks():
        yield from events
        if error:
            raise error

    headers = {"content-type": "text/event-stream"}
    return httpx2.Response(200, headers=headers, content=chunks())


# --- The real SDK, in process ---


class MockClient(anthropic.Anthropic):
    """The real SDK client; `stub` answers it, `requests` are the bodies it sent."""

    stub: StubClient
    requests: list


def mock_client(*answers, window=1_000_000, max_output=128_000):
    """Make a `MockClient` with `answers` queued; its transport raises exceptions.

    `client.stub.info` is the answer of the models endpoint: JSON, or `(status, headers,
    body)`. If it is unset, the model has these limits and adaptive thinking.
    """
    stub = StubClient(*answers, window=window, max_output=max_output)

    def handler(request):
        path, content = request.url.path, request.content
        return respond(stub, request.method, path, content, request.headers)

    http = httpx2.Client(transport=httpx2.MockTransport(handler))
    client = MockClient(api_key="test-key-0123456789", max_retries=0, http_client=http)
    client.stub, client.requests = stub, stub.requests
    return client


# --- A server, for another process ---


@contextmanager
def serve(stub, delay=0.0):
    """Serve `stub` on this machine and yield the URL for `ANTHROPIC_BASE_URL`.

    `delay` is the pause between events, in seconds. Errors that would fail a test, such
    as an empty queue, become status 400 and are recorded in `stub.refused`. A transport
    error closes the connection before or during the answer.
    """
    handler = type("Handler", (Handler,), {"stub": stub, "delay": delay})
    server = Server(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


class Server(ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], ConnectionError):  # a client may hang up
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    stub: StubClient
    delay: float
    pause = threading.Event()
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        path = self.path.partition("?")[0]
        self.close_connection = True
        try:
            self.send(respond(self.stub, self.command, path, body, self.headers))
        except (EmptyQueue, AssertionError) as error:
            self.stub.refused.append(repr(error))
            self.send(api_error(400, repr(error)).response)
        except (httpx2.TransportError, anthropic.APIConnectionError):
            pass  # the client notices that the answer, or its end, is missing

    do_GET = do_POST

    def send(self, response):
        chunked = "transfer-encoding" in response.headers
        self.send_response(response.status_code)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        for chunk in filter(None, response.stream):
            self.wfile.write(
                b"%x\r\n%b\r\n" % (len(chunk), chunk) if chunked else chunk
            )
            self.pause.wait(self.delay)  # not sleep(), which a test may have replaced
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def log_message(self, format, *args):
        pass
