"""JSON over HTTP to one server: patient with failures that pass, clear about those that do not."""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from melior.errors import RunError, UserError

T = TypeVar("T")
R = TypeVar("R")

RETRIES = 5
BACKOFF = 0.5  # the waits before the second and later retries are 2, 4, 8, ... times this, in seconds
BUSY = (429, 500, 502, 503, 504)
CONNECT_SECONDS = 10.0
IN_FLIGHT = 512
KEY = "OPENAI_API_KEY"


class NotThere(RunError):
    """The server has no such address."""


class Connection:
    """One server.

    A request that fails in a way that may pass (no connection, a timeout, busy, an internal error) is made again, up to
    `retries` times with growing waits. The environment's OPENAI_API_KEY is sent along where it is set, to this server
    only: redirections are not followed.

    Attributes:
        url: without a slash or /v1 at its end.
        timeout: seconds that the server may take for one answer.
        retries: how often a request is made again.
    """

    def __init__(self, url: str, timeout: float, retries: int = RETRIES) -> None:
        try:
            import urllib3
        except ImportError:
            raise UserError("sampling on a server needs urllib3; install it with: pip install 'melior[lm]'") from None
        self.url, self.timeout, self.retries = url.rstrip("/").removesuffix("/v1"), timeout, retries
        limits = urllib3.Timeout(connect=CONNECT_SECONDS, read=timeout)
        self._pool = urllib3.PoolManager(maxsize=IN_FLIGHT, timeout=limits)
        self._headers = {"Content-Type": "application/json"}
        if key := os.environ.get(KEY):
            self._headers["Authorization"] = f"Bearer {key}"

    def get(self, path: str) -> Any:
        """The JSON at an address. See `post` for what it raises."""
        return self._ask("GET", path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The JSON that the server answers; None for an answer without a body, text where it is no JSON.

        Raises:
            NotThere: the server has no such address.
            RunError: no answer in spite of all retries, or one that says no, in the server's words.
        """
        return self._ask("POST", path, body)

    def close(self) -> None:
        """Drop all connections; later requests make new ones."""
        self._pool.clear()

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        import urllib3

        retry = urllib3.Retry(
            total=self.retries,
            redirect=0,
            backoff_factor=BACKOFF,
            status_forcelist=BUSY,
            allowed_methods=None,
            raise_on_status=False,
            raise_on_redirect=False,
        )
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self._pool.request(method, self.url + path, body=content, headers=self._headers, retries=retry)
        except urllib3.exceptions.HTTPError as error:
            raise RunError(
                f"the sampler at {self.url} does not answer {path}{self._tried()}: {_reason(error)}"
            ) from None
        if answer.status in (404, 405):
            raise NotThere(f"the sampler at {self.url} has no {path}: {_words(answer.data)}")
        if answer.status != 200:
            what = f"answered {path} with status {answer.status}{self._tried() if answer.status in BUSY else ''}"
            raise RunError(f"the sampler at {self.url} {what}: {_words(answer.data)}")
        return _parsed(answer.data)

    def _tried(self) -> str:
        return f", asked {self.retries + 1} times" if self.retries else ""


def all_at_once(work: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """work(item) of every item, up to 512 at a time, in the order of the items.

    The first failure is raised at once, and so is Ctrl-C: what is still under way ends by itself, unheard.
    """
    done: queue.SimpleQueue[tuple[int, R | None, BaseException | None]] = queue.SimpleQueue()
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for index in range(len(items)):
        waiting.put(index)
    left = threading.Event()

    def serve() -> None:
        while not left.is_set():
            try:
                index = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                done.put((index, work(items[index]), None))
            except BaseException as error:  # handed over to the thread that waits
                done.put((index, None, error))

    for _ in range(min(len(items), IN_FLIGHT)):
        # Daemons: threads that wait for a server must not keep the process alive.
        threading.Thread(target=serve, daemon=True).start()
    results: dict[int, Any] = {}
    try:
        while len(results) < len(items):
            index, result, error = done.get()
            if error is not None:
                raise error
            results[index] = result
    finally:
        left.set()
    return [results[index] for index in range(len(items))]


def _reason(error: Exception) -> str:
    """What went wrong below, without the addresses that urllib3 repeats."""
    below = getattr(error, "reason", None) or error
    return str(below).rpartition("): ")[2].strip() or type(below).__name__


def _parsed(data: bytes) -> Any:
    if not data:
        return None
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except ValueError:
        return text


def _words(data: bytes, most: int = 300) -> str:
    """What a server says in a refusal: its message where it has the usual form, else the beginning of its text."""
    said = _parsed(data)
    for key in ("error", "message", "detail"):
        if isinstance(said, dict) and key in said:
            said = said[key]
    text = " ".join(str(said or "no reason given").split())
    return text if len(text) <= most else text[:most] + " …"
