"""Compiles one CUDA source to PTX with NVRTC, without a GPU: nvrtc.py LIBRARY SOURCE TARGET OUTPUT [DEFINES…]."""

import ctypes
import pathlib
import sys

library, source, target, output, *defines = sys.argv[1:]
nvrtc = ctypes.CDLL(library)
text = pathlib.Path(source).read_bytes()
names = sorted(pathlib.Path(".").glob("*.cuh"))
headers = (ctypes.c_char_p * len(names))(*(n.read_bytes() for n in names))
header_names = (ctypes.c_char_p * len(names))(*(n.name.encode() for n in names))
program = ctypes.c_void_p()
assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, source.encode(), len(names), headers, header_names) == 0
options = ["-arch=compute_" + target, "-std=c++17", *defines]
result = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*(o.encode() for o in options)))
size = ctypes.c_size_t()
nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
log = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetProgramLog(program, log)
if result != 0:
    sys.exit(f"{source}: {log.value.decode()}")
nvrtc.nvrtcGetPTXSize(program, ctypes.byref(size))
ptx = ctypes.create_string_buffer(size.value)
nvrtc.nvrtcGetPTX(program, ptx)
pathlib.Path(output).write_bytes(ptx.value)
