"""A worse model of the same vocabulary, as a draft for tests: fewer of a model's layers, or coarser weights.

    smaller.py SOURCE DESTINATION [--layers N] [--type Q4_0]

The first layers stay, and with them the file's embedding and head: a third of them makes a draft that is mostly wrong.
"""
import argparse, re

import gguf
import numpy as np


def write(source, path, layers=None, type=None):
    reader = gguf.GGUFReader(source)
    arch = reader.fields["general.architecture"].contents()
    count = reader.fields[f"{arch}.block_count"].contents()
    layers = count if layers is None else layers
    if not 0 < layers <= count:
        raise ValueError(f"{layers} of {count} layers")
    w = gguf.GGUFWriter(path, arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", f"{arch}.block_count"):
            continue
        kind = field.types[0]
        w.add_key_value(name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    w.add_block_count(layers)
    for t in reader.tensors:
        m = re.match(r"blk\.(\d+)\.", t.name)
        if m and int(m[1]) >= layers:
            continue
        if type is not None and len(t.shape) == 2 and t.tensor_type != type:
            values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            w.add_tensor(t.name, gguf.quants.quantize(values, type), raw_dtype=type)
        else:
            w.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source")
    p.add_argument("destination")
    p.add_argument("--layers", type=int)
    p.add_argument("--type")
    o = p.parse_args()
    write(o.source, o.destination, o.layers, gguf.GGMLQuantizationType[o.type] if o.type else None)


if __name__ == "__main__":
    main()
