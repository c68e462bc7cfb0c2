"""The page at /, in a headless Chromium (long form): a message is sent with the keyboard, its answer streams, the cluster is
shown. PAGE_PICTURE=FILE keeps a picture. In the short form what the gateway answers for it."""
import json, os, re, sys, unittest, urllib.error, urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lib"))
from browser import Browser
from cluster import LONG, Cluster, run


def get(url, **headers):
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as r:
        return r.status, r.headers, r.read().decode()


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cluster = Cluster(workers=2, threads=1, kv_tokens=8192)
        cls.url = cls.cluster.http + "/"

    @classmethod
    def tearDownClass(cls):
        cls.cluster.stop()

    def test_served(self):
        status, headers, text = get(self.url)
        self.assertEqual((status, headers["Content-Type"]), (200, "text/html; charset=utf-8"))
        self.assertIn("default-src 'none'", headers["Content-Security-Policy"])
        self.assertNotRegex(text, r"(?i)https?://|src=|@import|url\(|innerHTML|eval\(")
        ids = re.findall(r'\bid="(\w+)"', text)
        self.assertEqual(len(ids), len(set(ids)))
        self.assertEqual(set(re.findall(r'\$\("(\w+)"\)', text)) - set(ids), set())

    def test_status(self):
        _, _, text = get(self.url + "status")
        shown, printed = json.loads(text), json.loads(run("status", "--cluster", self.cluster.address, "--json").stdout)

        def keys(x):
            return {k: keys(v) for k, v in x.items()} if isinstance(x, dict) else [keys(v) for v in x] if isinstance(x, list) else None
        self.assertEqual(keys(shown), keys(printed))
        self.assertEqual([w["layers"] for w in shown["replicas"][0]["workers"]], [[0, 14], [15, 29]])

    @unittest.skipUnless(LONG, "in the long form")
    def test_chat(self):
        with Browser(self.url) as b:
            b.wait("document.querySelectorAll('.chain li').length === 2")
            shown = b.value("document.getElementById('cluster').innerText")
            self.assertRegex(shown, r"(?s)Replica a.*ready.*layers 0.14.*layers 15.29")
            self.assertEqual(b.value("document.activeElement.id"), "text")
            b.value("document.getElementById('most').value = 120")
            b.type("Write a short story about <b>two</b> lighthouses.")
            b.press("Enter", 13)
            # It grows while it comes.
            lengths, ends = [], "document.getElementById('stop').disabled"
            b.wait("document.querySelectorAll('.turn.assistant > .text')[0]?.innerText.length > 0")
            while not b.value(ends):
                lengths.append(b.value("document.querySelector('.turn.assistant > .text').innerText.length"))
            self.assertGreater(len(set(lengths)), 3)
            self.assertRegex(b.value("document.querySelector('.turn.assistant .figures').innerText"),
                             r"first token after \d+ ms . \d+ tokens . [\d.]+ tokens/s")
            self.assertIn("<b>two</b>", b.value("document.querySelector('.turn.user > .text').innerText"))
            b.wait("/load \\d+ %/.test(document.getElementById('cluster').innerText)")
            if os.environ.get("PAGE_PICTURE"):
                with open(os.environ["PAGE_PICTURE"], "wb") as f:
                    f.write(b.picture())
            # The next one is stopped by a key.
            b.value("document.getElementById('most').value = 4000")
            b.type("Tell me everything about the sea.")
            b.press("Enter", 13)
            b.wait("document.querySelectorAll('.turn.assistant > .text')[1]?.innerText.length > 20")
            b.press("Escape", 27)
            b.wait(ends)
            self.assertIn("stopped", b.value("document.querySelectorAll('.turn.assistant .figures')[1].innerText"))
            self.cluster.wait(lambda s: s["requests"] == {"running": 0, "queued": 0}, 10)
            self.assertEqual(b.problems, [])


if __name__ == "__main__":
    unittest.main(verbosity=2)
