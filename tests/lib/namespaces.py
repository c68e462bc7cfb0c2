"""Hosts on this machine: network namespaces joined by a bridge, with links that a test cuts, silences or slows down, and a
cluster whose processes run in one each. Needs root (CAP_SYS_ADMIN and CAP_NET_ADMIN), iproute2 and nftables.

Names are flotilla-PID-HOST with the test's process id. A guard, a process of its own, removes the namespaces and ends what
runs in them when the test ends, however it ends; what is left of tests whose guard died too is removed by the next one.
"""
import ctypes, os, re, signal, subprocess, sys, time

FOLDER = "/run/netns"
CLONE_NEWNET = 0x40000000
SLOW_BURST_BYTES = 65536
# What the kernel or the rights do not allow, in the words of ip, nft and nsenter.
REFUSED = re.compile("not permitted|Permission denied|not supported|Read-only|Unknown device type", re.IGNORECASE)


def do(*words, text=None):
    r = subprocess.run(words, input=text, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if r.returncode != 0:
        raise OSError(f"{' '.join(words)}: {r.stderr.strip()}")
    return r.stdout


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def existing(pid=None):
    """Names of namespaces of the test `pid`; without it, of tests that are dead."""
    found = []
    for name in os.listdir(FOLDER) if os.path.isdir(FOLDER) else ():
        m = re.fullmatch(r"flotilla-(\d+)(-\w+)?", name)
        if m and (int(m.group(1)) == pid if pid else not is_alive(m.group(1))):
            found.append(name)
    return found


def remove(names):
    """Ends all processes in them, and deletes them."""
    for name in names:
        end = time.monotonic() + 10
        while time.monotonic() < end:
            try:
                pids = [int(p) for p in do("ip", "netns", "pids", name).split()]
            except OSError:
                break  # it was half made
            if not pids:
                break
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)
        try:
            do("ip", "netns", "del", name)
        except OSError:
            if name in existing(int(name.split("-")[1])):
                raise


class Host:
    """One namespace, with the interface eth0. `prefix` starts a command in it."""

    def __init__(self, namespace, address):
        self.namespace, self.address = namespace, address
        self.prefix = ["nsenter", f"--net={FOLDER}/{namespace}"]
        self.rules = []  # of its packet filter, for what comes in

    def enter(self):
        """Moves the calling thread into the namespace: sockets that it makes from now on are there."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd = os.open(f"{FOLDER}/{self.namespace}", os.O_RDONLY)
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"setns {self.namespace}")
        os.close(fd)

    def filter(self, rules):
        """Sets all the rules in one go."""
        self.rules = rules
        lines = "".join(f"add rule inet t in {r}\n" for r in rules)
        do(*self.prefix, "nft", "-f", "-",
           text=f"add table inet t\nadd chain inet t in {{ type filter hook input priority 0 ; }}\nflush chain inet t in\n{lines}")

    def block(self, port):
        """Packets to and from the port vanish, also within the host, without a word to either side."""
        self.filter(self.rules + [f"tcp dport {port} drop", f"tcp sport {port} drop"])

    def unblock(self):
        self.filter([])

    def slow(self, rate):
        """What leaves the host has this bandwidth ("2mbit") from now on, but for a burst after each pause."""
        do("tc", "-n", self.namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
           "burst", str(SLOW_BURST_BYTES), "limit", "16mb")

    def listening(self, pid):
        """TCP ports at which a process listens."""
        lines = do(*self.prefix, "ss", "-ltnpH").splitlines()
        return [int(l.split()[3].rsplit(":", 1)[1]) for l in lines if f"pid={pid}," in l]


class Network:
    """`with Network("c", "w1") as net:` hosts by name, net["w1"], that reach each other through a bridge; nothing else."""

    def __init__(self, *names):
        mine = f"flotilla-{os.getpid()}-"
        self.switch = mine + "switch"
        self.hosts = {name: Host(mine + name, f"10.99.0.{i + 1}") for i, name in enumerate(names)}

    def __getitem__(self, name):
        return self.hosts[name]

    def __enter__(self):
        remove(existing() + existing(os.getpid()))
        self.guard = subprocess.Popen([sys.executable, __file__, str(os.getpid())], stdin=subprocess.PIPE, start_new_session=True)
        try:
            do("ip", "netns", "add", self.switch)
            do("ip", "-n", self.switch, "link", "add", "br0", "type", "bridge")
            do("ip", "-n", self.switch, "link", "set", "br0", "up")
            for name, host in self.hosts.items():
                do("ip", "netns", "add", host.namespace)
                do("ip", "-n", self.switch, "link", "add", "name", name, "type", "veth", "peer", "name", "eth0", "netns", host.namespace)
                do("ip", "-n", self.switch, "link", "set", "dev", name, "master", "br0", "up")
                do("ip", "-n", host.namespace, "address", "add", host.address + "/24", "dev", "eth0")
                for device in ("lo", "eth0"):
                    do("ip", "-n", host.namespace, "link", "set", device, "up")
                host.filter([])
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.guard.stdin.close()
        if self.guard.wait(timeout=60) != 0:
            raise OSError(f"namespaces are left: {existing(os.getpid())}")

    def drop(self, source, sink):
        """Packets from one host to the other vanish."""
        sink = self[sink]
        sink.filter(sink.rules + [f"ip saddr {self[source].address} drop"])

    def black_hole(self, a, b):
        self.drop(a, b)
        self.drop(b, a)

    def cut(self, a, b):
        """Connections between the two are reset when they next say something, and new ones are refused."""
        for source, sink in ((self[a], self[b]), (self[b], self[a])):
            sink.filter(sink.rules + [f"ip saddr {source.address} tcp flags & rst == 0 reject with tcp reset"])

    def half_open(self, gone, other):
        """All connections between the two are over at `gone`, and `other` hears nothing of it before it next says something."""
        lost, other = self[gone], self[other].address
        do(*lost.prefix, "nft", "-f", "-", text="add table inet silence\nadd chain inet silence out "
           f"{{ type filter hook output priority 0 ; }}\nadd rule inet silence out ip daddr {other} drop\n")
        try:
            do(*lost.prefix, "ss", "-K", "-tnH", "dst", other)
        finally:
            do(*lost.prefix, "nft", "delete", "table", "inet", "silence")

    def mend(self):
        """Ends whatever was cut or silenced."""
        for host in self.hosts.values():
            if host.rules:
                host.filter([])


def why_not():
    """Why there can be no such network here; None where there can."""
    try:
        with Network("a", "b") as net:
            net.cut("a", "b")
            net["a"].slow("1mbit")
            do(*net["a"].prefix, "true")
    except OSError as e:
        if not REFUSED.search(str(e)):
            raise  # a tool is missing, or a fault of this file
        return str(e)
    return None


if __name__ == "__main__":  # the guard
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    remove(existing(int(sys.argv[1])))
