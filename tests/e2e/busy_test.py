"""A machine that others use too: twelve busy processes beside two workers lose no generation, and `status` says who waits
for CPU; a compute thread that stands still is named, and a spare takes its place."""
import ctypes, json, os, subprocess, sys, time, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import LONG, Cluster, program

BUSY = 12
STEP_TIMEOUT_S = 2  # the default of the cluster file
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207


def ptrace(request, thread):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_ulong, ctypes.c_ulong, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, thread, None, None) != 0:
        raise OSError(ctypes.get_errno(), "ptrace")


def compute_thread(pid):
    """Of a worker with one thread: the first that is neither the main one nor libzmq's."""
    for t in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
        with open(f"/proc/{pid}/task/{t}/comm") as f:
            if t != pid and not f.read().startswith("ZMQ"):
                return t
    raise AssertionError("no compute thread")


class Busy(unittest.TestCase):
    def test_busy_neighbours(self):
        end = time.monotonic() + (120 if LONG else 10)
        with Cluster(workers=2, threads=1, kv_tokens=8192) as c:
            others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(BUSY)]
            try:
                waits, requests = set(), 0
                while time.monotonic() < end:
                    load = subprocess.Popen([program("flotilla"), "bench", "--cluster", c.address, "--clients", "4", "--requests", "8",
                                             "--prompt-tokens", "64", "--tokens", "16", "--json"], stdout=subprocess.PIPE,
                                            stderr=subprocess.DEVNULL)
                    while load.poll() is None:
                        waits |= {w["name"] for w in c.workers() if w["cpu_waiting"] > 0.5}
                        time.sleep(0.5)
                    summary = json.load(load.stdout)
                    load.stdout.close()
                    self.assertEqual(summary["failed"], 0, summary)
                    requests += summary["requests"]
                self.assertGreater(requests, 0)
                self.assertEqual(waits, {"w1", "w2"})  # each was told to wait for CPU more than half of its time
                self.assertEqual(c.status()["replicas"][0]["epoch"], 1, c.text()[-3000:])
            finally:
                for p in others:
                    p.kill()
                    p.wait()

    def test_stopped_compute_thread(self):
        """It is told from a slow one and from a broken link: its counter stands still while its worker speaks."""
        with Cluster(workers=2, threads=1, kv_tokens=8192, replica_wait=120) as c:
            c.worker("spare", threads=1)
            c.wait(lambda s: s["ready"], 10)
            g = c.start("Once upon a time", tokens=300, ignore_eos=True)
            c.wait(lambda s: s["requests"]["running"] == 1, 30)
            thread = compute_thread(next(w["pid"] for w in c.workers() if w["name"] == "w2"))
            ptrace(PTRACE_SEIZE, thread)
            ptrace(PTRACE_INTERRUPT, thread)
            try:
                s = c.wait(lambda s: s["replicas"][0]["epoch"] > 1 or not s["ready"], 3 * 2 * STEP_TIMEOUT_S)
                self.assertRegex(c.text(), r"generation 1 ended: .*worker w2")
                self.assertNotRegex(c.text(), r"generation 1 ended: .*link")
                s = c.wait(lambda s: s["ready"], 3 * 20)
                self.assertEqual({w["name"] for w in s["replicas"][0]["workers"]}, {"w1", "spare"})
                self.assertIsNotNone(g.result(), "the stream was lost")
            finally:
                ptrace(PTRACE_DETACH, thread)


if __name__ == "__main__":
    unittest.main(verbosity=2)
