"""Random and mutated messages to every socket of a running cluster, of the sanitized build where there is one: calls that
break a rule get a status, other bytes are dropped and counted, and the cluster still gives the right answer."""
import os, re, subprocess, sys, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
BIN = os.environ["FLOTILLA_BIN"]
os.environ["FLOTILLA_BIN"] = os.environ.get("FLOTILLA_SANITIZED_BIN") or BIN
from cluster import LONG, Cluster, local

SECONDS = 600 if LONG else 10


class Noise(unittest.TestCase):
    def test_every_socket(self):
        want = local("Once upon a time", tokens=6)["tokens"]
        with Cluster(workers=2, threads=1, kv_tokens=2048, max_requests=64) as c:
            listing = subprocess.run(["ss", "-ltnpH"], stdout=subprocess.PIPE, text=True).stdout
            pids = {w["pid"] for w in c.workers()}
            children = {int(p) for p in subprocess.run(["pgrep", "-P", str(c.up.pid)], stdout=subprocess.PIPE,
                                                       text=True).stdout.split()} - pids
            data, other = set(), set()
            for line in listing.splitlines():
                pid = re.search(r"pid=(\d+)", line)
                port = int(line.split()[3].rsplit(":", 1)[1])
                if pid and int(pid.group(1)) in pids:
                    data.add(port)
                elif pid and int(pid.group(1)) in children:
                    other.add(port)
            client = int(c.address.rsplit(":", 1)[1])
            worker = int(c.join.rsplit(":", 1)[1])
            http = int(re.search(r"metrics at http://\S+:(\d+)/", c.text()).group(1))
            results = other - {client, worker, http}
            self.assertEqual((len(data), len(results)), (2, 1), listing)
            at = "tcp://127.0.0.1:"
            words = [f"client={at}{client}", f"worker={at}{worker}", *(f"push={at}{p}" for p in data | results)]
            r = subprocess.run([os.path.join(BIN, "noise_probe"), str(SECONDS), "3", *words], stdout=subprocess.PIPE, text=True,
                               timeout=SECONDS + 120)
            self.assertEqual(r.returncode, 0, r.stdout)
            statuses = dict((int(k), int(v)) for k, v in re.findall(r" (\d+):(\d+)", r.stdout))
            self.assertGreater(int(r.stdout.split()[1]), 100 * SECONDS, r.stdout)
            for code in (0, 3, 9, 12):  # some are well-formed: served, out of range, other versions, unknown methods
                self.assertGreater(statuses.get(code, 0), 0, r.stdout)
            self.assertGreater(c.status()["messages_dropped"], 0)
            self.assertGreater(sum(w["messages_dropped"] for w in c.workers()), 0)
            s = c.wait(lambda s: s["ready"] and s["requests"]["running"] == 0, 30)
            self.assertEqual(s["replicas"][0]["epoch"], 1, c.text()[-2000:])
            self.assertEqual({w["pid"] for w in c.workers()}, pids)
            self.assertEqual(c.generate("Once upon a time", tokens=6)["tokens"], want)


if __name__ == "__main__":
    unittest.main(verbosity=2)
