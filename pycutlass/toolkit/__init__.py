"""Finding what compiles kernels: CUTLASS's headers, CUDA's headers with a device compiler, and a host compiler.

Read in this order: ``models`` (what can be found), ``find`` and ``host_compiler`` (where), ``diagnostics`` (all of it,
for ``pycutlass doctor``); ``files`` is what they stand on. Looking costs a few file system calls: no process is started
where a memo remembers the answer, and no library is loaded or imported.
"""

from pycutlass.toolkit.diagnostics import Finding, findings, safely
from pycutlass.toolkit.disassembly import disassembled, instruction_mix
from pycutlass.toolkit.files import (
    Answer,
    Memo,
    cuda_release,
    file_fingerprint,
    is_directory,
    is_file,
    is_script,
    names_in,
    on_path,
    read_bytes,
    real_path,
    run_quietly,
    without_memo,
)
from pycutlass.toolkit.find import (
    bindings_directory,
    find_cutlass,
    find_nvcc,
    find_nvrtc,
    find_tool,
    own_headers_digest,
    own_include,
)
from pycutlass.toolkit.host_compiler import compiler_options, find_host_compiler
from pycutlass.toolkit.models import KNOWN_CUDA, KNOWN_CUTLASS, Cutlass, Toolkit
from pycutlass.toolkit.scratch import scratch_directory, sweep_scratch
from pycutlass.toolkit.trace import Trace, look, recorded, unrecorded, unrepeatable

__all__ = [
    "KNOWN_CUDA",
    "KNOWN_CUTLASS",
    "Answer",
    "Cutlass",
    "Finding",
    "Memo",
    "Toolkit",
    "Trace",
    "bindings_directory",
    "compiler_options",
    "cuda_release",
    "disassembled",
    "file_fingerprint",
    "find_cutlass",
    "find_host_compiler",
    "find_nvcc",
    "find_nvrtc",
    "find_tool",
    "findings",
    "instruction_mix",
    "is_directory",
    "is_file",
    "is_script",
    "look",
    "names_in",
    "on_path",
    "own_headers_digest",
    "own_include",
    "read_bytes",
    "real_path",
    "recorded",
    "run_quietly",
    "safely",
    "scratch_directory",
    "sweep_scratch",
    "unrecorded",
    "unrepeatable",
    "without_memo",
]
