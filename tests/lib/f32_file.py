"""The F32 file of a model: every tensor dequantised by the gguf package, all else as it was."""
import sys

import gguf
import numpy as np


def write(source, path):
    reader = gguf.GGUFReader(source)
    w = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type"):
            continue
        kind = field.types[0]
        w.add_key_value(name, field.contents(), kind, field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None)
    w.add_file_type(gguf.LlamaFileType.ALL_F32)
    shapes = [[int(n) for n in reversed(t.shape)] for t in reader.tensors]
    for t, shape in zip(reader.tensors, shapes):
        w.add_tensor_info(t.name, shape, np.dtype(np.float32), 4 * t.n_elements)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    for t, shape in zip(reader.tensors, shapes):  # one after the other: a large model's do not fit in memory together
        w.write_tensor_data(gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape))
    w.close()


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2])
