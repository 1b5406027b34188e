"""A TCP proxy before PostgreSQL that loses what the server answers.

A statement that was sent and executed, and whose answer never came: nobody on this side
can know whether it counted.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from sqlalchemy import URL


class Proxy:
    """Forwards bytes; :meth:`cut_after` ends a connection at a chosen statement."""

    def __init__(self, url: URL) -> None:
        self._upstream = _address(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port: int = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._word = b""
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

    def close(self) -> None:
        """Close everything."""
        self._listener.close()
        for end in self._open:
            _close(end)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # The listener was closed.
            while True:
                client, _ = self._listener.accept()
                server = self._connect()
                self._open += [client, server]
                threading.Thread(
                    target=self._serve, args=(client, server), daemon=True
                ).start()

    def _connect(self) -> socket.socket:
        if isinstance(self._upstream, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._upstream)
            return server
        return socket.create_connection(self._upstream)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        doomed = threading.Event()

        def answers() -> None:
            with contextlib.suppress(OSError):
                while data := server.recv(65_536):
                    if doomed.is_set():
                        self.cuts += 1
                        break
                    client.sendall(data)
            _close(client)
            _close(server)

        threading.Thread(target=answers, daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                if self._word and self._word in data:
                    self._word = b""
                    doomed.set()
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
