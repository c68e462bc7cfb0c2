"""The link relay that other tests use does what they ask of it, in each direction, and costs nothing while nothing moves.

What must not happen sooner is measured by the clock; what must happen at all has ten seconds.
"""
import os, selectors, socket, sys, threading, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from relay import ON_THE_WAY_BYTES, READ_BYTES, Relay

ENOUGH_S = 10


class Server:
    """Accepts connections on this machine, and hands them to the test."""

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.listener.settimeout(ENOUGH_S)
        self.port = self.listener.getsockname()[1]
        return self

    def __exit__(self, *_):
        self.listener.close()

    def pair(self, relay):
        """A new connection through the relay: its two ends."""
        client = socket.create_connection(("127.0.0.1", relay.port), timeout=ENOUGH_S)
        server, _ = self.listener.accept()
        server.settimeout(ENOUGH_S)
        return client, server


def receive(sock, n):
    data = b""
    while len(data) < n:
        more = sock.recv(n - len(data))
        if not more:
            break
        data += more
    return data


def pattern(n, seed):
    return bytes((i * 31 + seed * 7) & 0xff for i in range(256)) * (n // 256)


def is_silent(sock, seconds=0.2):
    """Nothing comes within that time, not even an end."""
    with selectors.DefaultSelector() as s:
        s.register(sock, selectors.EVENT_READ)
        return not s.select(seconds)


class RelayTest(unittest.TestCase):
    def assertReset(self, sock):
        sock.settimeout(ENOUGH_S)
        with self.assertRaises(ConnectionResetError):
            sock.recv(1)

    def assertRefused(self, relay):
        with self.assertRaises(ConnectionResetError):  # at once, or when it has already been accepted
            with socket.create_connection(("127.0.0.1", relay.port), timeout=ENOUGH_S) as client:
                client.recv(1)

    def test_many_connections(self):
        """Sixty connections at once, each with bytes of its own both ways, and their ends."""
        n, size = 60, 65536
        with Server() as server, Relay(server.port) as relay:
            pairs = [server.pair(relay) for _ in range(n)]
            senders = [threading.Thread(target=s.sendall, args=(pattern(size, seed),))
                       for i, ends in enumerate(pairs) for seed, s in zip((2 * i, 2 * i + 1), ends)]
            for t in senders:
                t.start()
            for i, (client, far) in enumerate(pairs):
                self.assertEqual(receive(far, size), pattern(size, 2 * i))
                self.assertEqual(receive(client, size), pattern(size, 2 * i + 1))
            for t in senders:
                t.join()
            for client, far in pairs:
                client.shutdown(socket.SHUT_WR)
                self.assertEqual(far.recv(1), b"")
                far.sendall(b"bye")  # the other direction is open still
                far.close()
                self.assertEqual(receive(client, 4), b"bye")
                client.close()
            self.assertEqual((relay.connections, relay.forth.bytes, relay.back.bytes), (n, n * size, n * (size + 3)))
            end = time.monotonic() + ENOUGH_S
            while relay.live and time.monotonic() < end:
                time.sleep(0.01)
            self.assertEqual(len(relay.live), 0)

    def test_latency(self):
        with Server() as server, Relay(server.port) as relay:
            client, far = server.pair(relay)
            relay.set(relay.forth, latency=0.3)
            relay.set(relay.back, latency=0.2)
            at = time.monotonic()
            client.sendall(b"a")
            far.recv(1)
            there = time.monotonic()
            far.sendall(b"b")
            client.recv(1)
            back = time.monotonic()
            self.assertGreaterEqual(there - at, 0.3)
            self.assertGreaterEqual(back - there, 0.2)
            # Bytes follow each other on the way: 2 MiB do not wait for each other's latency.
            at, sender = time.monotonic(), threading.Thread(target=client.sendall, args=(pattern(1 << 21, 3),))
            sender.start()
            self.assertEqual(receive(far, 1 << 21), pattern(1 << 21, 3))
            sender.join()
            self.assertLess(time.monotonic() - at, 0.3 * (1 << 21) / 65536 / 2)
            relay.set(relay.forth, latency=0)
            for _ in range(20):
                client.sendall(b"a")
                far.recv(1)
            client.close(), far.close()

    def test_bandwidth(self):
        """Two connections share a direction's bandwidth; the other direction is not slower for it."""
        rate, size = 60_000, 51_200
        with Server() as server, Relay(server.port) as relay:
            pairs = [server.pair(relay) for _ in range(2)]
            relay.set(relay.back, rate=rate)
            at = time.monotonic()
            senders = [threading.Thread(target=far.sendall, args=(pattern(size, i),)) for i, (_, far) in enumerate(pairs)]
            for s in senders:
                s.start()
            pairs[0][0].sendall(pattern(1 << 20, 5))
            self.assertEqual(receive(pairs[0][1], 1 << 20), pattern(1 << 20, 5))
            self.assertLess(relay.back.bytes, 2 * size)
            self.assertEqual(receive(pairs[0][0], size), pattern(size, 0))
            # The second has had its share while the first was served.
            self.assertGreater(relay.back.bytes, 1.5 * size)
            self.assertEqual(receive(pairs[1][0], size), pattern(size, 1))
            self.assertGreaterEqual(time.monotonic() - at, 2 * size / rate)
            for s in senders:
                s.join()
            relay.set(relay.back, rate=10)  # as a client that hardly reads
            pairs[0][1].sendall(b"x" * 1000)
            self.assertEqual(receive(pairs[0][0], 3), b"xxx")
            self.assertLess(relay.back.bytes, 2 * size + 1000)
            relay.set(relay.back, rate=None)
            self.assertEqual(receive(pairs[0][0], 997), b"x" * 997)
            for s in sum(pairs, ()):
                s.close()

    def test_black_hole(self):
        with Server() as server, Relay(server.port) as relay:
            client, far = server.pair(relay)
            relay.set(relay.forth, black_hole=True)
            client.sendall(b"one")
            far.sendall(b"two")
            self.assertEqual(receive(client, 3), b"two")
            self.assertTrue(is_silent(far))
            other, other_far = server.pair(relay)  # a new connection finds the same
            other.sendall(b"three")
            client.sendall(b"four")
            client.close()
            self.assertTrue(is_silent(far))
            self.assertTrue(is_silent(other_far))
            self.assertEqual(relay.forth.bytes, 0)
            relay.set(relay.forth, black_hole=False)
            self.assertEqual(receive(far, 8), b"onefour")
            self.assertEqual(receive(other_far, 5), b"three")
            relay.set(relay.forth, latency=0.3)
            other.sendall(b"on the way")
            time.sleep(0.1)
            relay.set(relay.forth, black_hole=True)
            self.assertTrue(is_silent(other_far, 0.5))
            relay.set(relay.forth, black_hole=False)
            self.assertEqual(receive(other_far, 10), b"on the way")
            for s in (far, other, other_far):
                s.close()

    def test_cut(self):
        with Server() as server, Relay(server.port) as relay:
            ends = server.pair(relay) + server.pair(relay)
            relay.cut()
            for s in ends:
                self.assertReset(s)
                s.close()
            self.assertRefused(relay)
            relay.mend()
            ends = server.pair(relay)
            relay.break_connections()
            for s in ends:
                self.assertReset(s)
                s.close()
            client, far = server.pair(relay)
            client.sendall(b"whole")
            self.assertEqual(receive(far, 5), b"whole")
            client.close(), far.close()

    def test_half_open(self):
        with Server() as server, Relay(server.port) as relay:
            for gone in ("target", "client"):
                client, far = server.pair(relay)
                dead, alive = (far, client) if gone == "target" else (client, far)
                relay.half_open(gone)
                self.assertReset(dead)
                alive.sendall(pattern(1 << 20, 1))  # taken, and gone
                self.assertTrue(is_silent(alive))
                client.close(), far.close()

    def test_forgotten(self):
        with Server() as server, Relay(server.port) as relay:
            client, far = server.pair(relay)
            relay.forget()
            for one, other in ((client, far), (far, client)):
                one.sendall(b"lost")
                self.assertTrue(is_silent(other))
            new, new_far = server.pair(relay)
            new.sendall(b"here")
            self.assertEqual(receive(new_far, 4), b"here")
            client.close()
            self.assertTrue(is_silent(far))
            for s in (far, new, new_far):
                s.close()

    def test_nobody_listens(self):
        with Server() as server:
            port = server.port
        with Relay(port) as relay:
            for _ in range(3):
                self.assertRefused(relay)

    def test_sleeps(self):
        """While bytes wait for their time, for a reader, or behind a black hole, the relay's thread waits too."""
        with Server() as server, Relay(server.port) as relay:
            pairs = [server.pair(relay) for _ in range(4)]
            for s in (pairs[0][0], pairs[1][1]):
                s.settimeout(0.2)
                with self.assertRaises(TimeoutError):  # far more than sockets and relay hold: the other end never reads
                    s.sendall(bytes(64 << 20))
            self.assertLess(max(f.held for forth in relay.live for f in (forth, forth.reverse)), ON_THE_WAY_BYTES + READ_BYTES)
            relay.set(relay.back, latency=600)
            pairs[2][1].sendall(b"late")
            relay.set(relay.forth, rate=10)
            pairs[3][0].sendall(b"slow" * 100)
            time.sleep(0.2)
            turns, at = relay.turns, time.monotonic()
            time.sleep(0.5)
            # Ten bytes a second wake it twice a byte.
            self.assertLess(relay.turns - turns, 10 + 40 * (time.monotonic() - at))
            for black_hole in (True, False):
                relay.set(relay.forth, black_hole=black_hole)
            for s in sum(pairs, ()):
                s.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
