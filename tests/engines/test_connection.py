"""Requests to a server: made again when that may help, all at once, and left at once on Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from melior.engines import connection
from melior.engines.connection import Connection, NotThere, all_at_once
from melior.errors import RunError


@contextmanager
def answering(*answers):
    """A server that gives these (status, text) in turn, the last one for ever; yields its URL and what it was sent."""
    seen, left = [], list(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append((self.path, dict(self.headers), self.rfile.read(int(self.headers.get("Content-Length", 0)))))
            status, text = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            if status == 307:
                self.send_header("Location", "http://127.0.0.1:9/elsewhere")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text.encode())

        do_GET = do_POST

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(connection, "BACKOFF", 0.001)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def test_what_may_pass_is_asked_again_and_what_is_refused_is_not():
    with answering((503, "busy"), (500, "busy"), (200, '{"a": 1}')) as (url, seen):
        assert Connection(url + "/v1/", 5.0).post("/x", {"b": [1]}) == {"a": 1}
        assert [path for path, _, _ in seen] == ["/x"] * 3 and seen[0][2] == b'{"b": [1]}'
    with answering((400, '{"error": {"message": "prompt too long"}}')) as (url, seen):
        with pytest.raises(RunError, match=rf"^the sampler at {url} answered /x with status 400: prompt too long$"):
            Connection(url, 5.0).post("/x")
        assert len(seen) == 1
    with answering((404, '{"detail": "Not Found"}')) as (url, _), pytest.raises(NotThere, match="has no /x: Not Found"):
        Connection(url, 5.0).get("/x")


def test_failures_that_stay_are_counted():
    with answering((500, "engine dead")) as (url, seen):
        with pytest.raises(RunError, match="answered /x with status 500, asked 3 times: engine dead"):
            Connection(url, 5.0, retries=2).post("/x")
        assert len(seen) == 3
    with pytest.raises(RunError, match=r"does not answer /x, asked 2 times: .*[Rr]efused"):
        Connection(url, 5.0, retries=1).post("/x")


def test_a_server_that_does_not_answer_in_time_is_given_up():
    def slow(url):
        with pytest.raises(RunError, match=r"does not answer /x: .*timed out"):
            Connection(url, 0.1, retries=0).get("/x")

    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow(f"http://127.0.0.1:{silent.getsockname()[1]}")


def test_the_key_goes_to_this_server_only(monkeypatch):
    with answering((200, "{}")) as (url, seen):
        Connection(url, 5.0).get("/x")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        Connection(url, 5.0).get("/x")
        assert [headers.get("Authorization") for _, headers, _ in seen] == [None, "Bearer secret"]
    with answering((307, "moved")) as (url, _), pytest.raises(RunError, match="status 307"):
        Connection(url, 5.0).get("/x")


def test_all_are_under_way_together_and_come_back_in_order():
    together = threading.Barrier(20)

    def work(item):
        together.wait(timeout=10)
        time.sleep(0.001 * (20 - item))
        return 2 * item

    assert all_at_once(work, range(20)) == [2 * item for item in range(20)]
    assert all_at_once(work, []) == []


def test_the_first_failure_and_an_interrupt_leave_at_once():
    never = threading.Event()

    def work(item):
        if item == 1:
            raise RunError("one failed")
        never.wait(60)

    began = time.monotonic()
    with pytest.raises(RunError, match="one failed"):
        all_at_once(work, [0, 1, 2])
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        all_at_once(lambda item: never.wait(60), [0, 2])
    assert time.monotonic() - began < 10
    never.set()
