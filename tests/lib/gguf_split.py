"""Cuts a GGUF file into parts as gguf-split does: PREFIX-00001-of-0000N.gguf and so on; the first has the metadata, and each
says which part it is."""
import struct

from gguf import GGUFReader

from rawgguf import I32, U16, kv, p32, p64, tinfo


def name(prefix, i, n):
    return f"{prefix}-{i:05}-of-{n:05}.gguf"


def cut(path, prefix, n):
    """Returns the parts' paths. Tensors stay in their order, about as many in each part."""
    reader = GGUFReader(path)
    tensors = reader.tensors
    paths = []
    with open(path, "rb") as f:
        head = f.read(tensors[0].field.offset)
        n_kvs = struct.unpack("<Q", head[16:24])[0]
        for no in range(n):
            mine = tensors[len(tensors) * no // n:len(tensors) * (no + 1) // n]
            keys = [kv("split.no", U16, no), kv("split.count", U16, n), kv("split.tensors.count", I32, len(tensors))]
            infos, at = [], 0
            for t in mine:
                infos.append(tinfo(t.name, [int(d) for d in t.shape], int(t.tensor_type), at))
                at += int(t.n_bytes) + -int(t.n_bytes) % 32
            header = b"GGUF" + p32(3) + p64(len(mine)) + p64((0 if no else n_kvs) + 3) + (b"" if no else head[24:]) + \
                b"".join(keys) + b"".join(infos)
            paths.append(name(prefix, no + 1, n))
            with open(paths[-1], "wb") as to:
                to.write(header + b"\0" * (-len(header) % 32))
                for t in mine:
                    f.seek(int(t.data_offset))
                    to.write(f.read(int(t.n_bytes)) + b"\0" * (-int(t.n_bytes) % 32))
    return paths
