"""Reading a cubin (the ELF file of a kernel), and dropping the symbols that nothing refers to.

NVRTC turns every namespace-scope constant of the CUTLASS headers into a device variable with a symbol: a Hopper kernel
gets 8,300 of them, 1.4 MB that take 30 ms to load. Its PTX, which comes with the cubin at no cost, tells which of them
the code mentions. The others are cut from the symbol table; code and data stay as they are, byte for byte.

CUDA's ELF sections are not documented. A cubin with a section or attribute that is not listed here is returned whole,
so an unknown compiler costs loading time and never a kernel.
"""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from pycutlass.errors import CompileError

__all__ = [
    "constant_bytes",
    "drop_symbols",
    "kernel_names",
    "kernel_parameter_bytes",
    "unused_variables",
    "wgmma_shapes",
]

_log = logging.getLogger("pycutlass")


def kernel_names(cubin: bytes) -> tuple[str, ...]:
    """Return the names of the kernels in `cubin`, sorted.

    Raises
    ------
    CompileError
        If `cubin` is no cubin.
    """
    elf = _Elf.read(cubin)
    table, strings = elf.section(".symtab"), elf.section(".strtab")
    if table is None or strings is None:
        raise CompileError("not a cubin: it has no symbol table")
    entries = (symbol[0] for symbol in _SYMBOL.iter_unpack(table.data) if symbol[2] & _KERNEL_ENTRY)
    return tuple(sorted(_string(strings.data, entry) for entry in entries))


def kernel_parameter_bytes(cubin: bytes, name: str) -> int:
    """Return the size in bytes of the parameters that kernel `name` takes, as the device compiler laid them out.

    Raises
    ------
    CompileError
        If `cubin` is no cubin, or does not hold the kernel or its parameter sizes.
    """
    elf = _Elf.read(cubin)
    info = elf.section(f".nv.info.{name}")
    if info is None:
        raise CompileError(f"the cubin holds no kernel {name!r}; it holds {', '.join(kernel_names(cubin)) or 'none'}")
    # Offsets do not begin at 0 where the first parameter is aligned to more than the parameter bank.
    spans = [_parameter_span(a) for a in _attributes(info.data) if a.number in (_KPARAM_INFO, _KPARAM_INFO_V2)]
    if spans:
        return max(end for _, end in spans) - min(begin for begin, _ in spans)
    sizes = [a.value for a in _attributes(info.data) if a.number == _CBANK_PARAM_SIZE]
    if sizes:
        return sizes[0]
    raise CompileError(f"the cubin does not say how large the parameters of kernel {name!r} are")


def constant_bytes(cubin: bytes, name: str) -> int:
    """Return the bytes of constant memory that kernel `name` takes, its parameters included.

    Raises
    ------
    CompileError
        If `cubin` is no cubin.
    """
    banks = re.compile(rf"\.nv\.constant\d+\.{re.escape(name)}")
    return sum(section.size for section in _Elf.read(cubin).sections if banks.fullmatch(section.name))


def wgmma_shapes(cubin: bytes) -> dict[str, int]:
    """Return how many of Hopper's asynchronous matrix instructions of each shape MxNxK code for sm_90a has.

    The widest come first.

    A tile whose width no single instruction has is multiplied in narrower pieces, which take many times as many.

    Raises
    ------
    CompileError
        If `cubin` is no cubin.
    """
    found: dict[tuple[int, int], int] = {}
    for section in _Elf.read(cubin).sections:
        if not section.name.startswith(".text."):
            continue
        whole = len(section.data) // _INSTRUCTION.size * _INSTRUCTION.size
        for word, _ in _INSTRUCTION.iter_unpack(section.data[:whole]):
            if word & _OPCODE in _WGMMA and word >> 9 & 7 in _WGMMA_FORMS:
                shape = _wgmma_shape(word)
                found[shape] = found.get(shape, 0) + 1
    return {f"64x{n}x{k}": found[n, k] for n, k in sorted(found, reverse=True)}


def _wgmma_shape(word: int) -> tuple[int, int]:
    """Return N and K of the instruction that begins with `word`."""
    if word & _OPCODE == _IGMMA:  # 8, 16, 24, 32, 48, 64 and so on are 0, 3, 6, ...
        step = (word >> 53 & 63) // 3
        return 8 * (step + 1) if step < 3 else 16 * (step - 1), 32
    is_tf32 = word & _OPCODE == _HGMMA and word >> 58 & 1
    return 8 * ((word >> 53 & 31) + 1), 8 if is_tf32 else 16 if word & _OPCODE == _HGMMA else 32


def unused_variables(ptx: str) -> frozenset[str]:
    """Return the module-scope variables of `ptx` that neither its code nor a variable in use mentions."""
    definitions: dict[str, str] = {}
    code: list[str] = []
    for line in ptx.splitlines():
        match = _DEFINITION.match(line)
        if match:
            definitions[match[1]] = line
        else:
            code.append(line)
    used: set[str] = set()
    found = set(_WORD.findall("\n".join(code))) & definitions.keys()
    while found:
        used |= found
        found = {word for name in found for word in _WORD.findall(definitions[name])} & definitions.keys() - used
    return frozenset(definitions.keys() - used)


def drop_symbols(cubin: bytes, names: Set[str]) -> bytes:
    """Return `cubin` without the local variables `names` in its symbol table; their storage stays.

    The caller vouches that no instruction refers to them. A cubin with a structure that is not known here is
    returned as it is.
    """
    elf = _Elf.read(cubin)
    try:
        remap = _remove_from_symbol_table(elf, names)
        for section in elf.sections:
            _renumber(section, remap)
        return elf.write()
    except _UnknownStructureError as reason:
        _log.info("cubin kept with all its symbols: %s", reason)
        return cubin


_KPARAM_INFO, _CBANK_PARAM_SIZE, _KPARAM_INFO_V2 = 0x17, 0x19, 0x45
# Attributes of .nv.info with a sized payload (the others hold one small number and no symbol). The payload begins with
# a symbol index: PARAM_CBANK, FRAME_SIZE, MIN_STACK_SIZE, MAX_STACK_SIZE, REGCOUNT. It is a list of them: EXTERNS.
# It holds none: MAX_THREADS, REQNTID, KPARAM_INFO, various lists of instruction offsets, CRS_STACK_SIZE, ...
_SIZED = 4
_SYMBOL_FIRST = frozenset({0x0A, 0x11, 0x12, 0x23, 0x2F})
_SYMBOL_LIST = frozenset({0x0F})
_NO_SYMBOL = frozenset(
    {0x05, 0x10, 0x17, 0x1C, 0x1D, 0x1E, 0x25, 0x27, 0x28, 0x29, 0x30, 0x31, 0x34, 0x36, 0x37, 0x39, 0x3D, 0x3F}
    | {0x44, 0x45, 0x46, 0x47}
)
# Sections that may be copied as they are, the symbol indices that _renumber knows of aside.
_KNOWN_SECTIONS = (
    r"|\.shstrtab|\.strtab|\.symtab|\.debug_frame|\.note\.nv\.(tkinfo|cuinfo)|\.nv\.(compat|callgraph|rel\.action)"
    r"|\.nv\.info(\..+)?|\.nv\.(constant\d+|shared|local|global)(\..+)?|\.text\..+|\.rela?\..+"
)
# The assembler lists the address of every variable in a constant bank; code reads those that it uses.
_ADDRESS_TABLE = frozenset({".rel.nv.constant4", ".rela.nv.constant4"})
_DEFINITION = re.compile(r"\.(?:global|const)\b[^=;]*?\s([A-Za-z_$%][\w$]*)(?:\[\d*\])*\s*(?:=.*)?;\s*$")
_WORD = re.compile(r"[A-Za-z_$%][\w$]*")

_RELA, _NOBITS, _REL = 4, 8, 9
_LOCAL_OBJECT = 1  # st_info: binding LOCAL, type OBJECT
_KERNEL_ENTRY = 0x10  # st_other of a __global__ function
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
# Machine instructions of sm_90: two words of 64 bits each, of which the first begins with the operation. As nvdisasm
# shows them; A comes from shared memory or from registers.
_INSTRUCTION = struct.Struct("<QQ")
_OPCODE, _WGMMA_FORMS = 0x1FF, frozenset({4, 6})
_WGMMA = _HGMMA, _IGMMA, _QGMMA = 0x1F0, 0x1F1, 0x1F3
_LARGEST_ALIGNMENT = 128
_FIRST_MARK = 0xFFFFFF00


class _UnknownStructureError(Exception):
    """The cubin has something whose meaning is not known here."""


@dataclass
class _Section:
    """One section: its header, with the fields that change by name, and its bytes."""

    name: str
    data: bytes
    name_offset: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int

    def header(self) -> bytes:
        return _SECTION.pack(
            *(self.name_offset, self.kind, self.flags, self.address, self.offset, self.size),
            *(self.link, self.info, self.alignment, self.entry_size),
        )


@dataclass
class _Elf:
    """A cubin taken apart into header, sections and segments."""

    header: list[int | bytes]
    sections: list[_Section]
    segments: list[list[int]]
    segment_offset: int

    @classmethod
    def read(cls, image: bytes) -> _Elf:
        if image[:6] != b"\x7fELF\x02\x01":
            raise CompileError(f"not a cubin: the first bytes are {image[:6]!r}, not those of a 64-bit ELF file")
        try:
            header = list(_HEADER.unpack_from(image))
            segment_offset, section_offset = header[5], header[6]
            segment_count, section_count, name_index = header[10], header[12], header[13]
            raw = [_SECTION.unpack_from(image, section_offset + i * _SECTION.size) for i in range(section_count)]
            names = raw[name_index][4]
            sections = [_take_section(image, names, fields) for fields in raw]
            segments = [
                list(_SEGMENT.unpack_from(image, segment_offset + i * _SEGMENT.size)) for i in range(segment_count)
            ]
        except (struct.error, IndexError, ValueError) as error:
            raise CompileError(f"not a cubin: its ELF structure is broken ({error})") from error
        return cls(header, sections, segments, segment_offset)

    def section(self, name: str) -> _Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def write(self) -> bytes:
        """Lay the sections out anew, in their order and with their alignment, and move the segments along."""
        image = bytearray(_HEADER.size)
        moved: dict[int, int] = {}
        for section in sorted(self.sections[1:], key=lambda s: s.offset):
            new = len(image) + (section.offset - len(image)) % _LARGEST_ALIGNMENT
            if moved.setdefault(section.offset, new) != new and section.size:
                raise _UnknownStructureError(f"section {section.name} shares its place in the file with another")
            if section.kind != _NOBITS:
                image += bytes(new - len(image)) + section.data
                section.size = len(section.data)
            section.offset = new
        image += bytes(-len(image) % 8)
        section_table = len(image)
        for section in self.sections:
            image += section.header()
        moved[self.segment_offset] = len(image)
        self._move_segments(moved)
        for segment in self.segments:
            image += _SEGMENT.pack(*segment)
        self.header[5], self.header[6] = moved[self.segment_offset], section_table
        image[: _HEADER.size] = _HEADER.pack(*self.header)
        return bytes(image)

    def _move_segments(self, moved: dict[int, int]) -> None:
        for segment in self.segments:
            begin, size = segment[2], segment[5]
            inside = [old for old in moved if begin <= old < begin + max(size, 1)]
            if begin not in moved or any(moved[old] - old != moved[begin] - begin for old in inside):
                raise _UnknownStructureError("a segment does not begin with a section, or its sections moved apart")
            segment[2] = moved[begin]


@dataclass(frozen=True)
class _Attribute:
    """One entry of a .nv.info section; the payload, if any, lies at [begin, end), else `value` is all there is."""

    layout: int
    number: int
    begin: int
    end: int
    value: int
    payload: bytes


def _take_section(image: bytes, names: int, fields: tuple[int, ...]) -> _Section:
    name = _string(image, names + fields[0])
    stored = fields[1] not in (0, _NOBITS)
    return _Section(name, image[fields[4] : fields[4] + fields[5]] if stored else b"", *fields)


def _string(table: bytes, offset: int) -> str:
    return table[offset : table.index(0, offset)].decode()


def _attributes(data: bytes) -> Iterator[_Attribute]:
    """Walk a .nv.info section; each entry is layout, number, and a value or the size of the payload that follows."""
    position = 0
    while position + 4 <= len(data):
        layout, number, value = struct.unpack_from("<BBH", data, position)
        begin = end = position + 4
        if layout == _SIZED:
            end += value
        yield _Attribute(layout, number, begin, end, value, data[begin:end])
        position = end


def _parameter_span(attribute: _Attribute) -> tuple[int, int]:
    """Return begin and end of one kernel parameter."""
    _, _, offset, packed = struct.unpack_from("<IHHI", attribute.payload)
    if attribute.number == _KPARAM_INFO:
        return offset, offset + (packed >> 18)
    return offset, offset + (packed & 0xFFFF)


def _remove_from_symbol_table(elf: _Elf, names: Set[str]) -> Callable[[int], int]:
    """Take local variables out of the symbol table; return the function from old to new symbol index (-1: gone)."""
    table, strings = elf.section(".symtab"), elf.section(".strtab")
    if table is None or strings is None:
        raise _UnknownStructureError("no symbol table")
    new_index: list[int] = []
    symbols, text = bytearray(), bytearray(b"\0")
    for name_offset, kind, other, section, value, size in _SYMBOL.iter_unpack(table.data):
        name = _string(strings.data, name_offset)
        if kind == _LOCAL_OBJECT and name in names:
            new_index.append(-1)
            continue
        new_index.append(len(symbols) // _SYMBOL.size)
        symbols += _SYMBOL.pack(len(text) if name else 0, kind, other, section, value, size)
        text += name.encode() + b"\0" if name else b""
    table.info = sum(index >= 0 for index in new_index[: table.info])
    table.data, strings.data = bytes(symbols), bytes(text)

    def remap(old: int) -> int:
        if old >= len(new_index):
            raise _UnknownStructureError(f"symbol {old} is not in the symbol table")
        return new_index[old]

    return remap


def _renumber(section: _Section, remap: Callable[[int], int]) -> None:
    """Replace the symbol indices that `section` holds."""
    if not re.fullmatch(_KNOWN_SECTIONS, section.name):
        raise _UnknownStructureError(f"section {section.name} is not known")
    if section.kind in (_REL, _RELA):
        section.data = _renumber_relocations(section, remap)
    elif section.name.startswith(".nv.info"):
        section.data = _renumber_attributes(section.data, remap)
    elif section.name == ".nv.callgraph":
        words = [word for (word,) in struct.iter_unpack("<I", section.data)]  # pairs; negative ones are marks
        renumbered = (word if word >= _FIRST_MARK else _keep(word, remap) for word in words)
        section.data = b"".join(struct.pack("<I", word) for word in renumbered)
    elif section.name.startswith(".text."):
        # The kernel's own symbol; older architectures keep the register count in the upper byte.
        section.info = section.info & 0xFF000000 | _keep(section.info & 0xFFFFFF, remap)


def _renumber_relocations(section: _Section, remap: Callable[[int], int]) -> bytes:
    entry = struct.Struct("<QIIq" if section.kind == _RELA else "<QII")
    result = bytearray()
    for offset, kind, symbol, *addend in entry.iter_unpack(section.data):
        new = remap(symbol)
        if new >= 0:
            result += entry.pack(offset, kind, new, *addend)
        elif section.name not in _ADDRESS_TABLE:
            raise _UnknownStructureError(f"{section.name} refers to a variable that is to be dropped")
    return bytes(result)


def _renumber_attributes(data: bytes, remap: Callable[[int], int]) -> bytes:
    result = bytearray(data)
    for attribute in _attributes(data):
        if attribute.layout != _SIZED or attribute.number in _NO_SYMBOL:
            continue
        if attribute.number in _SYMBOL_FIRST | _SYMBOL_LIST:
            end = attribute.end if attribute.number in _SYMBOL_LIST else attribute.begin + 4
            for at in range(attribute.begin, end, 4):
                struct.pack_into("<I", result, at, _keep(struct.unpack_from("<I", data, at)[0], remap))
        else:
            raise _UnknownStructureError(f"attribute {attribute.number:#x} is not known")
    return bytes(result)


def _keep(old: int, remap: Callable[[int], int]) -> int:
    new = remap(old)
    if new < 0:
        raise _UnknownStructureError(f"symbol {old} is still referred to")
    return new
