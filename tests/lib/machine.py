"""What the CPU of this machine can do."""


def levels():
    """Instruction-set levels that this machine can be forced to."""
    with open("/proc/cpuinfo") as f:
        flags = set(next(l for l in f if l.startswith("flags")).split())
    have = ["scalar"]
    if {"avx2", "fma", "f16c"} <= flags:
        have.append("avx2")
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512_vnni"} <= flags:
        have.append("avx512")
    return have
