"""Draft models in a cluster. A draft that is the target itself is right each time, whatever the sampling: it has the target's
noise, history, form and bits. Other models change no token, and are refused where they have other tokens. The stages stand apart,
so that drafts have the time that they need."""
import os, sys, tempfile, unittest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "lib"))
from cluster import GEMMA, LONG, MODEL, local, run
from delayed import DelayedCluster
from smaller import write

import gguf

PROMPTS = ["Once upon a time there was a lighthouse whose keeper", "List of facts about the sea:\n1.", "To make bread, first"]
TOKENS = 96 if LONG else 32
TRIES = 5  # of an answer, until a draft came in time: on a busy machine few do
GRAMMAR = 'root ::= ("fish" [ ,] [0-9]+ [ ;]){40}'
PARAMETERS = [dict(temp=0), dict(temp=0.8, seed=7), dict(temp=1, seed=3, top_k=50, top_p=0.95),
              dict(temp=0.7, seed=5, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4),
              dict(temp=0.8, seed=9, logit_bias=["28=-4", "260=2"], logprobs=2),
              dict(temp=0.9, seed=4, ignore_eos=False, grammar=True)]


def cluster(draft, length):
    return DelayedCluster(2, 0.03, f'kv_tokens: 4096\ndraft: "{draft}"\ndraft_len: {length}')


class Drafters(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.grammar = tempfile.NamedTemporaryFile("w", suffix=".gbnf")
        cls.grammar.write(GRAMMAR)
        cls.grammar.flush()

    @classmethod
    def tearDownClass(cls):
        cls.grammar.close()

    def answers(self, c, parameters):
        """Compares each with the engine alone. What became of the drafts: (drafted, accepted) of each."""
        counts = []
        for i, parameter in enumerate(parameters):
            p, kw = PROMPTS[i % len(PROMPTS)], dict(dict(tokens=TOKENS, ignore_eos=True), **parameter)
            if "grammar" in kw:
                kw["grammar"] = self.grammar.name
            want = local(p, **kw)
            for _ in range(TRIES):
                got = c.generate(p, **kw)
                self.assertEqual((got["tokens"], got.get("logprobs")), (want["tokens"], want.get("logprobs")), (p, kw))
                if got["speculation"]["drafted"]:
                    break
            counts.append((got["speculation"]["drafted"], got["speculation"]["accepted"]))
        return counts

    def test_the_target_as_its_own_draft(self):
        with cluster(MODEL, 4) as c:
            counts = self.answers(c, PARAMETERS)
        for (drafted, accepted), p in zip(counts, PARAMETERS):
            self.assertGreater(drafted, 0, p)
            self.assertEqual(accepted, drafted, p)

    def test_a_coarser_draft(self):
        """Often right, not always, and no token is another."""
        with tempfile.TemporaryDirectory() as d:
            path = os.path.join(d, "draft.gguf")
            write(MODEL, path, type=gguf.GGMLQuantizationType.Q4_0)
            for draft in (path, "auto:" + path):
                with cluster(draft, 3) as c:
                    counts = self.answers(c, PARAMETERS[:4])
                    drafted, accepted = (sum(n) for n in zip(*counts))
                    # auto has what it finds in the text, too, and stays off where the machine is too busy to gain.
                    if draft == path:
                        self.assertTrue(0 < accepted < drafted, (accepted, drafted))  # a busy machine makes few in time

    def test_another_vocabulary_is_refused(self):
        r = run("up", "--model", MODEL, "--draft", GEMMA, timeout=60)
        self.assertNotEqual(r.returncode, 0)
        for word in (os.path.basename(GEMMA), "262144", "49152"):
            self.assertIn(word, r.stderr.decode())


if __name__ == "__main__":
    unittest.main(verbosity=2)
