"""Logits from the engine, by position (tests/lib/logits_tool.c)."""
import os, subprocess

import numpy as np

BIN = os.environ["FLOTILLA_BIN"]
KV_TYPES = ("f32", "f16", "q8_0", "q4_0")


def _run(path, ids, kv, slices, isa, chunk, threads, last, windowed, program, prefix):
    r = subprocess.run([*prefix, os.path.join(program, "logits_tool"), path, str(slices), kv, isa, str(chunk), str(threads), last,
                        str(windowed)],
                       input=np.array(ids, np.int32).tobytes(), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if r.returncode == 1:
        return None
    r.check_returncode()
    return np.frombuffer(r.stdout, np.float32)


def embedding(path, ids, kv="f32", slices=1, isa="", chunk=512, threads=2):
    """[width] f32; None where the engine refuses."""
    return _run(path, ids, kv, slices, isa, chunk, threads, "embedding", 0, BIN, ())


def logits(path, ids, kv="f32", slices=1, isa="", chunk=512, threads=2, last=0, windowed=0, program=BIN, prefix=()):
    """[positions][vocabulary] f32, of all positions or the `last` ones; None where the engine refuses. windowed: pages of layers
    with a window; 0: these keep all positions."""
    got = _run(path, ids, kv, slices, isa, chunk, threads, str(last), windowed, program, prefix)
    return None if got is None else got.reshape(last or len(ids), -1)
