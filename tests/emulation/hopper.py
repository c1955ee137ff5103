"""Headers of CUTLASS with instructions of Hopper in them, and what takes their place (hopper.h)."""

from __future__ import annotations

import re
from collections.abc import Callable

__all__ = ["CHANGES", "replaced"]


def replaced(text: str, pattern: str, by: str | Callable[[re.Match[str]], str], least: int = 1) -> str:
    """Replace what must be there: another CUTLASS may be written otherwise."""
    changed, count = re.subn(pattern, by, text, flags=re.S)
    assert count >= least, pattern
    return changed


def with_barriers(text: str) -> str:
    """Let threads wait at barriers of a block, and at those in shared memory."""
    text = replaced(
        text, r"(void sync_internal\([^{]*\{).*?\}", r"\1 ::emulation::wait_for_threads(barrier_id, num_threads); }"
    )
    for signature, body in (
        (r"void init\(ValueType const\* smem_ptr, uint32_t arrive_count\)", "make_barrier(smem_ptr, arrive_count)"),
        (r"void wait\(ValueType const\* smem_ptr, uint32_t phase\)", "wait_for_phase(smem_ptr, phase)"),
        (
            r"void arrive\(ValueType const\* smem_ptr, uint32_t cta_id, uint32_t pred\)",
            "arrive_if(pred, smem_ptr, cta_id)",
        ),
        (r"void arrive\(ValueType const\* smem_ptr\)", "arrive(smem_ptr)"),
        (
            r"void expect_transaction\(ValueType const\* smem_ptr, uint32_t transaction_bytes\)",
            "expect(smem_ptr, transaction_bytes)",
        ),
    ):
        text = replaced(text, rf"({signature} \{{).*?#endif", rf"\1 ::emulation::{body};")
    return text


def with_roles(text: str) -> str:
    """Let a program end where a thread is not what its pipeline is told."""
    stop = '::emulation::fail("a pipeline is used by threads that it is not for");'
    return replaced(text, r'asm volatile \("brkpt;\\n" ::\);', stop, 2)


def with_matrices(guard: str, macro: str) -> Callable[[str], str]:
    """Let warps move matrices between registers and shared memory."""

    def change(match: re.Match[str]) -> str:
        transposed, count = ("false", match[2]) if match[2] else ("true", str(int(match[3]) // 2))
        if count == "1":
            return match[0]
        numbers = range(int(count))
        if macro == "LDSM":
            loaded = " ".join(f"dst{i} = loaded[{i}];" for i in numbers)
            call = (
                f"uint32_t loaded[{count}]; ::emulation::ldmatrix<{transposed}, {count}>(loaded, &smem_src); {loaded}"
            )
        else:
            given = ", ".join(f"src{i}" for i in numbers)
            call = f"uint32_t const given[] = {{{given}}}; ::emulation::stmatrix<{transposed}>(&smem_dst, given);"
        return f"{match[1]}{call}"

    pattern = rf"(struct SM\d+_U(?:32x(\d)_{macro}_N|16x(\d)_{macro}_T)\b(?:(?!#if).)*)#if defined\({guard}\).*?#endif"
    return lambda text: replaced(text, pattern, change, 6)


def with_tma(text: str) -> str:
    """Let TMA load and store, and threads wait for it."""
    guard = r"#if defined\(CUTE_ARCH_TMA_SM90_ENABLED\)"
    body = rf"{guard}(?:(?!{guard}).)*?CUTE_INVALID_CONTROL_PATH\([^\n]*\);\n#endif"

    def copy(call: str) -> Callable[[re.Match[str]], str]:
        def change(match: re.Match[str]) -> str:
            at = ", ".join(f"crd{i}" for i in range(int(match[2])))
            return f"{match[1]}int32_t const at[] = {{{at}}}; ::emulation::{call}, at);"

        return change

    for kind, call in (("LOAD", "tma_load(desc_ptr, mbar_ptr, smem_ptr"), ("STORE", "tma_store(desc_ptr, smem_ptr")):
        text = replaced(text, rf"(struct SM90_TMA_{kind}_(\d)D\n(?:(?!#if).)*){body}", copy(call), 5)
    text = replaced(text, rf"(tma_store_arrive\(\) \{{\n){body}", r"\1 ::emulation::commit_stores();")
    return replaced(text, rf"(tma_store_wait\(\) \{{\n){body}", r"\1 ::emulation::wait_for_stores(Count);")


def with_election(text: str) -> str:
    """Let one thread of a warp be elected."""
    return replaced(
        text, r"(uint32_t elect_one_sync\(\)\s*\{.*?#else\s+)return true;", r"\1return ::emulation::lane() == 0;"
    )


#: By their paths among those of CUTLASS.
CHANGES: dict[str, Callable[[str], str]] = {
    "cutlass/arch/barrier.h": with_barriers,
    "cutlass/pipeline/sm90_pipeline.hpp": with_roles,
    "cute/arch/cluster_sm90.hpp": with_election,
    "cute/arch/copy_sm75.hpp": with_matrices("CUTE_ARCH_LDSM_SM75_ACTIVATED", "LDSM"),
    "cute/arch/copy_sm90.hpp": with_matrices("CUTE_ARCH_STSM_SM90_ENABLED", "STSM"),
    "cute/arch/copy_sm90_tma.hpp": with_tma,
}
