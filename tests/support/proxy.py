"""A TCP proxy before PostgreSQL that loses what is sent through it.

Either with a word, as a server that dies: a statement was sent and executed, and its
answer never came, so nobody on this side can know whether it counted. Or without one, as
a network does: packets vanish, and both ends wait for each other.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from sqlalchemy import URL

MEMORY = 1 << 16
"""Bytes of each connection in which :meth:`Proxy.mute` looks for a word."""


class _Line:
    """One connection through the proxy."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.said = b""
        """What the client has sent, its first part."""
        self.mute = False
        """Nothing gets through any more."""


class Proxy:
    """Forwards bytes; :meth:`cut_after` ends a connection at a chosen statement."""

    def __init__(self, url: URL) -> None:
        self._upstream = _address(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self._lines: list[_Line] = []
        self._word = b""
        self._swallowed: dict[bytes, int] = {}
        self.lost = 0
        """How many connections have gone silent so far."""
        self.cuts = 0
        """How many connections were cut so far."""
        self.url = URL.create(
            url.drivername,
            username=url.username,
            password=url.password,
            host="127.0.0.1",
            port=self._port,
            database=url.database,
            query={"sslmode": "disable", "gssencmode": "disable"},
        )
        threading.Thread(target=self._accept, daemon=True).start()

    def cut_after(self, word: bytes) -> None:
        """Cut the connection whose client next sends *word*, once the server answers.

        So the server has executed the statement: its answer is what gets lost.
        """
        self._word = word

    def swallow(self, word: bytes, times: int = 1_000_000) -> None:
        """Let connections go silent, for good, at the next *times* sendings of *word*."""
        self._swallowed[word] = times

    def forward(self) -> None:
        """Swallow nothing more; what has gone silent stays so."""
        self._swallowed.clear()

    def mute(self, word: bytes) -> int:
        """Let connections whose client has sent *word* go silent now; count them."""
        found = [line for line in self._lines if word in line.said and not line.mute]
        for line in found:
            self._silence(line)
        return len(found)

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        for line in self._lines:
            _close(line.client)
            _close(line.server)

    def _silence(self, line: _Line) -> None:
        line.mute = True
        self.lost += 1

    def _hears(self, line: _Line, data: bytes) -> None:
        if len(line.said) < MEMORY:
            line.said += data
        for word, times in list(self._swallowed.items()):
            if word in data and times > 0 and not line.mute:
                self._swallowed[word] = times - 1
                self._silence(line)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # The listener was closed.
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                line = _Line(client, server)
                self._lines.append(line)
                threading.Thread(target=self._serve, args=(line,), daemon=True).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._upstream, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._upstream)
            return server
        return socket.create_connection(self._upstream)

    def _serve(self, line: _Line) -> None:
        client, server = line.client, line.server
        doomed = threading.Event()

        def answers() -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(65_536):
                    if doomed.is_set():
                        self.cuts += 1
                        break
                    if not line.mute:
                        client.sendall(data)
            _close(client)
            _close(server)

        threading.Thread(target=answers, daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if self._word and self._word in data:
                    self._word = b""
                    doomed.set()
                self._hears(line, data)
                if not line.mute:
                    server.sendall(data)
        if not doomed.is_set():
            _close(server)


def _address(url: URL) -> str | tuple[str, int]:
    folder = url.query.get("host")
    port = url.port or 5432
    if isinstance(folder, str) and folder.startswith("/"):
        return f"{folder}/.s.PGSQL.{port}"
    return (url.host or "127.0.0.1", port)


def _close(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


@contextlib.contextmanager
def proxied(url: URL) -> Iterator[Proxy]:
    """Run a proxy before the server of *url*."""
    proxy = Proxy(url)
    try:
        yield proxy
    finally:
        proxy.close()
