"""A cluster on this machine whose processes stand apart: everything between coordinator and workers, and between workers, goes
through TCP relays (delay_relay.c) that hold it for a while. Kernels without netem are common, and it needs no rights.

Worker i listens at 127.1.0.i and is told to others as 127.2.0.i; the coordinator is 127.3.0.i to it, for its results too."""
import os, socket, statistics, subprocess, threading, time

from cluster import BIN, MODEL, HandCluster, free_ports


class Relays:
    """`pairs` of (from, to), each "address:port"."""

    def __init__(self, seconds, pairs):
        self.process = subprocess.Popen([os.path.join(BIN, "delay_relay"), str(round(seconds * 1e6)), *(f"{a}={b}" for a, b in pairs)],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            raise RuntimeError("the relay does not listen")

    def delay(self, seconds):
        """One way, of all of them from now on."""
        self.process.stdin.write(f"{round(seconds * 1e6)}\n")
        self.process.stdin.flush()

    def stop(self):
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(timeout=30)


def measure(seconds, bytes=32 << 20, trips=50):
    """What a relay of this delay does: the median round trip of a byte in seconds, and bytes a second of one connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port, (at,) = server.getsockname()[1], free_ports(1)
        relays = Relays(seconds, [(f"127.2.0.1:{at}", f"127.0.0.1:{port}")])
        with socket.create_connection(("127.2.0.1", at)) as near:
            far, _ = server.accept()
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            far.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            took = []
            for _ in range(trips):
                start = time.perf_counter()
                near.sendall(b"x")
                far.sendall(far.recv(1))
                near.recv(1)
                took.append(time.perf_counter() - start)
            start, got = time.perf_counter(), 0
            sender = threading.Thread(target=near.sendall, args=(b"x" * bytes,))
            sender.start()
            while got < bytes:
                got += len(far.recv(1 << 20))
            rate = bytes / (time.perf_counter() - start)
            sender.join()
            far.close()
        relays.stop()
    return statistics.median(took), rate


class DelayedCluster(HandCluster):
    """`stages` workers of one replica, `seconds` apart; keys: more of the cluster file."""

    def __init__(self, stages, seconds, keys="", model=MODEL, threads=1):
        ports = free_ports(2 + stages)
        control, results, data = ports[0], ports[1], ports[2:]
        pairs = []
        for i in range(stages):
            pairs += [(f"127.3.0.{i + 1}:{control}", f"127.0.0.1:{control}"), (f"127.3.0.{i + 1}:{results}", f"127.0.0.1:{results}"),
                      (f"127.2.0.{i + 1}:{data[i]}", f"127.1.0.{i + 1}:{data[i]}")]
        self.relays = Relays(seconds, pairs)
        try:
            super().__init__(f"workers: {stages}\nsplit: even\n{keys}", model=model, ports=(0, control, results))
            for i in range(stages):
                self.join = f"tcp://127.3.0.{i + 1}:{control}"
                self.worker(f"w{i + 1}", threads=threads, listen=f"127.1.0.{i + 1}", advertise=f"127.2.0.{i + 1}:{data[i]}")
            self.wait(lambda s: s["ready"], 300)
        except BaseException:
            self.stop()
            raise

    def stop(self):
        codes = super().stop() if hasattr(self, "coordinator") else []
        self.relays.stop()
        return codes
