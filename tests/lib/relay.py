"""A TCP relay on this machine: what a slow client, or a slow link, looks like to the other end; and what somebody in
between sees."""
import socket, threading, time


class Relay:
    """Passes connections to host:target on, and keeps what passed, for each connection and direction, in `seen` where
    it is told to. Towards the client, at most `rate` bytes a second (None: as many as
    come), with small socket buffers, so that the server soon feels it. The rate may be changed at any time."""

    def __init__(self, target, rate=None, host="127.0.0.1", port=0, keep=False):
        self.target, self.rate, self.host = target, rate, host
        self.listener = socket.create_server(("127.0.0.1", port))
        self.seen = {} if keep else None  # (connection, towards the client): bytes
        self.port = self.listener.getsockname()[1]
        self.open, self.stop = [], False
        self.connections, self.frozen = 0, set()

    def __enter__(self):
        threading.Thread(target=self.accept, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.stop = True
        for s in (self.listener, *self.open):
            s.close()

    def cut(self):
        """Breaks every connection; the next ones are passed on again."""
        was, self.open = self.open, []
        for s in was:
            try:
                s.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            s.close()

    def freeze(self):
        """Present connections stay open, but nothing comes through them any more, as when something between the hosts has
        forgotten them; new ones are passed on."""
        self.frozen |= set(self.open)

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket()
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                server.connect((self.host, self.target))
            except OSError:
                client.close()
                continue
            self.open += [client, server]
            self.connections += 1
            threading.Thread(target=self.pump, args=(client, server, False, self.connections), daemon=True).start()
            threading.Thread(target=self.pump, args=(server, client, True, self.connections), daemon=True).start()

    def pump(self, source, sink, limited, number):
        try:
            while not self.stop:
                rate = self.rate if limited else None
                data = source.recv(max(1, rate // 10) if rate else 65536)
                if not data:
                    break
                if source in self.frozen:
                    continue
                if self.seen is not None:
                    self.seen.setdefault((number, limited), bytearray()).extend(data)
                sink.sendall(data)
                if rate:
                    time.sleep(len(data) / rate)
        except OSError:
            pass
        if source in self.frozen:
            return
        for s in (source, sink):
            s.close()
