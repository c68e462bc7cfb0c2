"""Calls that no client library makes get a status that names what is wrong; bytes that are no message at all, on every
port, harm nobody."""
import os, random, socket, subprocess, sys, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import BIN, Cluster


class Api(unittest.TestCase):
    def test_answers(self):
        with Cluster(workers=1, kv_tokens=1024) as c:
            r = subprocess.run([os.path.join(BIN, "api_probe"), c.address], stdout=subprocess.PIPE, text=True, timeout=60)
            lines = {line.split()[0]: line.split(" ", 2)[1:] for line in r.stdout.splitlines()}
            want = {"unknown_method": ("12", "Summarise"), "unknown_version": ("9", "version"), "status": ("0", ""),
                    "models": ("0", ""), "garbage": ("3", "malformed"), "cancel_nothing": ("5", ""),
                    "no_prompt": ("3", "no tokens"),
                    **{n: ("0", "") for n in ("temp_tiny", "temp_huge", "top_p_zero", "top_k_beyond", "top_k_huge",
                                              "bias_never", "logprobs_none", "logprobs_20")},
                    **{n: ("3", field) for field, names in {
                        "'temp'": ("temp_negative", "temp_nan"), "'top_p'": ("top_p_negative", "top_p_above"),
                        "'min_p'": ("min_p_above",), "'presence_penalty'": ("presence_above", "presence_nan"),
                        "'repetition_penalty'": ("repetition_zero", "repetition_nan", "repetition_huge"),
                        "'frequency_penalty'": ("frequency_below",), "'top_logprobs'": ("logprobs_21", "logprobs_huge"),
                        "'logit_bias'": ("bias_beyond", "bias_below", "bias_infinite", "bias_over")}.items() for n in names},
                    "other_model": ("5", "model"), "resume": ("3", "from_index"),
                    "received": ("0", ""), "received_foreign": ("3", "received"), "samples_17": ("3", "samples"),
                    "priority_4": ("3", "priority"),
                    "foreign_token": ("3", "prompt_tokens"), "tokenize": ("0", "3"),
                    "poll_loop": ("0", "24 tokens"), "poll_loop_cancelled": ("1", "early")}
            self.assertEqual(set(lines), set(want))
            for name, (status, words) in want.items():
                self.assertEqual(lines[name][0], status, lines[name])
                self.assertIn(words, lines[name][1] if len(lines[name]) > 1 else "", name)
            self.assertNotIn("spins", lines["poll_loop"][1])
            self.assertEqual(len(c.generate("still alive", tokens=3, ignore_eos=True)["tokens"]), 3)

    def test_noise_on_every_port(self):
        rng = random.Random(5)
        with Cluster(workers=2, kv_tokens=1024) as c:
            pids = c.pids()
            mine = [f"pid={pid}," for some in pids.values() for pid in some]
            listing = subprocess.run(["ss", "-ltnpH"], stdout=subprocess.PIPE, text=True).stdout
            ports = {int(line.split()[3].rsplit(":", 1)[1]) for line in listing.splitlines() if any(m in line for m in mine)}
            self.assertGreaterEqual(len(ports), 5, pids)
            for port in ports:
                for _ in range(20):
                    with socket.create_connection(("127.0.0.1", port)) as s:
                        greeting = b"\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL" + bytes(48)
                        s.sendall((greeting if rng.random() < 0.5 else b"") + rng.randbytes(rng.randint(1, 400)))
            self.assertEqual(len(c.generate("still alive", tokens=3, ignore_eos=True)["tokens"]), 3)
            self.assertEqual(c.pids(), pids)


if __name__ == "__main__":
    unittest.main(verbosity=2)
