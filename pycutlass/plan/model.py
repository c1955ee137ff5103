"""How long candidates take, predicted from what is known of the GPU, without measuring.

A kernel begins, works off its tiles in waves, and ends; meanwhile memory delivers the operands, and power limits how
fast tensor cores multiply. What takes longest hides most of the rest:

    start + larger(waves, memory, power) + what adds up slices of K

where `larger` is a norm of a high order, a maximum that does not jump. docs/guide/which-tile.md has the terms in words.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pycutlass.plan.candidate import Candidate
from pycutlass.plan.constants import Constants
from pycutlass.plan.features import Bools, Features, Floats, tile_class
from pycutlass.plan.kind import GemmKind

__all__ = ["Model", "Prediction"]

#: Order of the norm. Of two terms that are equal, the sum takes 1.09 times as long as either.
_ORDER = 8.0
#: K of one instruction of wgmma in bytes, its rows, and what shared memory delivers in a cycle, in bytes.
_WGMMA_BYTES, _WGMMA_ROWS, _SHARED_BYTES = 32.0, 64.0, 128.0
_PARTIAL_BYTES = 4.0  # of a partial sum
_L2_SHARE = 0.6  # of the L2 cache that operands may fill and still stay
_LINE_BYTES = 128.0  # of K: the usual depth of a tile
_BARRIER_CYCLES = 10.0  # of each k-tile, so that of two tiles that wait for memory the deeper one is faster
_LEAST_K_TILES = 8  # that CUTLASS's stream-K gives a threadblock (gemm/kernel/tile_scheduler_params.h)
_ALONE = 0.85  # time of a k-tile in a wave of hardly any tiles, of that in a full one


@dataclass(frozen=True)
class Prediction:
    """What the model says of each candidate: arrays in their order.

    Attributes
    ----------
    microseconds : array
        Of the whole launch, and of the reduction behind it where there is one.
    waves : array
        How many tiles a multiprocessor computes one after the other.
    multiplying, memory, power, adding : array
        Terms of the time, in microseconds: tiles in waves, operands from memory, tensor cores at the clock that power
        allows, and what adds up slices of K.
    """

    microseconds: Floats
    waves: Floats
    multiplying: Floats
    memory: Floats
    power: Floats
    adding: Floats

    def note(self, place: int) -> str:
        """Return what limits a candidate."""
        terms = {
            "multiplying tile by tile": self.multiplying[place],
            "reading and writing memory": self.memory[place],
            "the clock that power allows": self.power[place],
            "adding up slices of K": self.adding[place],
        }
        return f"limited by {max(terms, key=lambda name: float(terms[name]))}"


class Model:
    """Predicts how long the candidates of a kind take on a GPU.

    Parameters
    ----------
    kind : GemmKind
        What is computed.
    candidates : tuple of Candidate
        The kernels, with the options of their launches.
    constants : Constants
        What is known of the GPU.
    """

    def __init__(self, kind: GemmKind, candidates: tuple[Candidate, ...], constants: Constants) -> None:
        self.kind, self.candidates, self.constants = kind, candidates, constants
        self.features = Features.of(candidates, constants.capability)
        self._bytes = tuple(operand.type.bits / 8 for operand in (kind.A, kind.B, kind.D))

    def predict(self, m: int, n: int, k: int, batches: int = 1) -> Prediction:
        """Return how long each candidate takes for a problem, whether it takes it or not."""
        f = self.features
        rows, columns = np.where(f.is_transposed, n, m), np.where(f.is_transposed, m, n)
        along_m = _up(np.ceil(rows / f.rows), f.cluster_rows)
        along_n = _up(np.ceil(columns / f.columns), f.cluster_columns)
        in_slices = np.where(f.is_stream_k & (f.slices == 1), 1.0, f.slices)
        k_tiles = np.maximum(np.ceil(np.ceil(k / in_slices) / f.depth), 1.0)
        tiles = along_m * along_n * (batches * in_slices)
        divided = self._is_divided(tiles, k_tiles)
        multiplying = self._multiplying(tiles, k_tiles, divided)
        computed = tiles * self._macs_of_depth * k_tiles
        power = computed / self._sustained
        memory = self._memory(m, n, k, batches, along_m, along_n)
        adding = self._adding(m, n, tiles, divided)
        work = (multiplying**_ORDER + memory**_ORDER + power**_ORDER) ** (1 / _ORDER)
        total = np.where(
            f.is_gemv, self._gemv(m, n, k, batches, along_m, along_n), (self._start + work + adding) * self._margin
        )
        return Prediction(total, np.ceil(tiles / self._places), multiplying, memory, power, adding)

    def predict_group(self, sizes: Floats, counts: Floats) -> Prediction:
        """Return how long each candidate takes as the kernel of a group, whose tiles share the waves.

        Parameters
        ----------
        sizes : array of shape (sizes, 3)
            M, N and K of the problems, 1 or more.
        counts : array of shape (sizes,)
            How many problems there are of each size.
        """
        f, count = self.features, counts[:, None]
        m, n, k = (sizes[:, axis, None] for axis in range(3))
        rows, columns = np.where(f.is_transposed, n, m), np.where(f.is_transposed, m, n)
        along_m = _up(np.ceil(rows / f.rows), f.cluster_rows)
        along_n = _up(np.ceil(columns / f.columns), f.cluster_columns)
        of_size = along_m * along_n * count
        tiles, k_tiles = of_size.sum(axis=0), np.maximum(np.ceil(k / f.depth), 1.0)
        depth = (of_size * k_tiles).sum(axis=0) / tiles  # of a tile, on average: which is whose does not matter
        multiplying = self._multiplying(tiles, depth, np.zeros_like(f.is_stream_k))
        power = tiles * depth * self._macs_of_depth / self._sustained
        of_a, of_b, of_d = (x * y * each for x, y, each in zip((m, k, m), (k, n, n), self._bytes, strict=True))
        once = np.broadcast_to(of_a + of_b, along_m.shape)
        stays = once <= _L2_SHARE * self.constants.l2_bytes
        read = np.where(stays, once, self._read(of_a, of_b, along_m, along_n))
        memory = self._delivered((count * (read + of_d)).sum(axis=0), float((count * (of_a + of_b + of_d)).sum()))
        work = (multiplying**_ORDER + memory**_ORDER + power**_ORDER) ** (1 / _ORDER)
        total = (self._start + work) * self._margin
        return Prediction(total, np.ceil(tiles / self._places), multiplying, memory, power, np.zeros_like(tiles))

    def _multiplying(self, tiles: Floats, k_tiles: Floats, divided: Bools) -> Floats:
        """Return the microseconds of all waves of tiles."""
        wave, depth, last_wave, last_depth = self._wave, self._depth, self._last_wave, self._last_depth
        full = np.floor(tiles / self._places)
        rest = tiles / self._places - full
        at_once = np.ceil(rest * self.features.occupancy)  # of a multiprocessor in the last wave
        # Multiprocessors that have nothing left to do leave power and bandwidth to the others.
        last = last_depth * (_ALONE + (1 - _ALONE) * rest) * np.maximum(at_once / self.features.occupancy, self._least)
        # Where there is but one tile, one of the two warp groups of a pingpong kernel has nothing to do.
        last = np.where(self.features.is_pingpong & (full == 0), last * self.constants.native["pingpong_alone"], last)
        whole = full * (wave + depth * k_tiles) + np.where(rest > 0, last_wave + last * k_tiles, 0.0)
        result: Floats = np.where(divided, wave + depth * (tiles * k_tiles / self._places), whole)
        return result

    def _is_divided(self, tiles: Floats, k_tiles: Floats) -> Bools:
        """Return where stream-K divides tiles: CUTLASS leaves them whole where a last wave is half full or more."""
        f = self.features
        full = np.floor(tiles / self._places) * self._places
        rest = tiles - full
        sparse = (rest > 0) & (~f.is_native | (2 * rest < self._places)) & (k_tiles > _LEAST_K_TILES)
        result: Bools = f.is_stream_k & (f.slices == 1) & sparse
        return result

    def _memory(self, m: int, n: int, k: int, batches: int, along_m: Floats, along_n: Floats) -> Floats:
        """Return the microseconds in which memory delivers the operands and takes D.

        An operand that does not stay in the L2 cache is read again for each group of tiles that work at the same time
        along the other; a swizzle makes such a group a square rather than a strip.
        """
        g = self.constants
        per_a, per_b, per_d = self._bytes
        of_a, of_b, of_d = m * k * per_a, k * n * per_b, m * n * per_d
        least = batches * (of_a + of_b + of_d)
        if of_a + of_b <= _L2_SHARE * g.l2_bytes:
            return np.full(len(self.candidates), self._delivered(least, least))
        result: Floats = self._delivered(batches * (self._read(of_a, of_b, along_m, along_n) + of_d), least)
        return result

    def _delivered(self, moved: Any, least: float) -> Any:
        """Return the microseconds in which memory delivers or takes so many bytes, of which `least` are different."""
        g = self.constants
        return moved / (g.dram_gb_per_s * 1e3) + g.dram_start_us * min(1.0, least / g.dram_start_bytes)

    def _read(self, of_a: Any, of_b: Any, along_m: Floats, along_n: Floats) -> Floats:
        """Return how many bytes of A and B are read of memory, which do not both stay in the L2 cache."""
        f, kept = self.features, _L2_SHARE * self.constants.l2_bytes
        shorter, longer = np.minimum(along_m, along_n), np.maximum(along_m, along_n)
        across = np.minimum(shorter, f.swizzle * np.maximum(1.0, np.ceil(self._places / (f.swizzle * longer))))
        along = np.maximum(np.minimum(longer, np.floor(self._places / across)), 1.0)
        is_flat = along_m <= along_n
        by_rows = np.ceil(along_n / np.where(is_flat, along, across))  # how often the rows of the kernel are read
        by_columns = np.ceil(along_m / np.where(is_flat, across, along))
        of_rows, of_columns = np.where(f.is_transposed, of_b, of_a), np.where(f.is_transposed, of_a, of_b)
        result: Floats = (
            np.where(of_rows > kept, by_rows, 1.0) * of_rows + np.where(of_columns > kept, by_columns, 1.0) * of_columns
        )
        return result

    def _adding(self, m: int, n: int, tiles: Floats, divided: Bools) -> Floats:
        """Return the microseconds of adding up what slices of K have summed, and of preparing for it."""
        f, g = self.features, self.constants
        peers = np.where(divided, np.maximum(np.ceil(self._places / np.maximum(tiles, 1.0)), 2.0), 1.0)
        peers = np.where(f.is_serial, f.slices, peers)
        of_tile = f.rows * f.columns * (_PARTIAL_BYTES * 2)  # written by one threadblock, and read by the next
        fixup = np.where(peers > 1, peers * of_tile / self._fixup + self._fixed, 0.0)
        fixup = np.where(f.is_stream_k, np.maximum(fixup, self._of_family("scheduler_us")), fixup)
        partial = f.slices * (m * n * _PARTIAL_BYTES * 2) / (g.dram_gb_per_s * 1e3)
        result: Floats = np.where(f.is_parallel, self._reduction + partial, fixup)
        return result

    def _gemv(self, m: int, n: int, k: int, batches: int, along_m: Floats, along_n: Floats) -> Floats:
        """Return the microseconds of kernels of CUDA cores, which wait for memory or convert and multiply."""
        f, g = self.features, self.constants
        of_a, of_b, of_d = self._bytes
        read = batches * (m * k * of_a + k * n * of_b + m * n * of_d) * along_m
        blocks = along_m * along_n * batches
        at_once = np.minimum(blocks, g.sm_count * f.occupancy)
        in_flight = at_once * f.columns * f.deep_bytes  # a thread loads all of its part of a tile before it multiplies
        bandwidth = np.minimum(g.dram_gb_per_s * g.gemv["efficiency"] * 1e3, in_flight / g.gemv["latency_us"])
        per_cycle = g.gemv["macs_per_cycle"] * np.minimum(at_once, g.sm_count)
        macs = blocks * f.rows * f.columns * (np.ceil(k / f.depth) * f.depth)
        computing = macs / (per_cycle * g.clock_ghz * 1e3)
        result: Floats = g.gemv["start_us"] + np.maximum(read / bandwidth, computing)
        return result

    @cached_property
    def _multiprocessors(self) -> Floats:
        """Multiprocessors that clusters can fill."""
        f = self.features
        size = f.cluster_rows * f.cluster_columns
        result: Floats = np.maximum(self.constants.sm_count // size, 1) * size
        return result

    @cached_property
    def _places(self) -> Floats:
        """Tiles that are computed at once."""
        result: Floats = self._multiprocessors * self.features.occupancy
        return result

    @cached_property
    def _macs_of_depth(self) -> Floats:
        result: Floats = self.features.rows * self.features.columns * self.features.depth
        return result

    @cached_property
    def _macs_per_us(self) -> Floats:
        """Multiply-adds that the whole GPU makes in a microsecond at its full clock."""
        g = self.constants
        rates = np.array([g.macs_per_cycle[name] for name in self.features.classes])
        result: Floats = rates * (g.sm_count * g.clock_ghz * 1e3)
        return result

    @cached_property
    def _sustained(self) -> Floats:
        """Multiply-adds of a microsecond that power allows."""
        g = self.constants
        shares = np.array([g.sustained[name] for name in self.features.classes])
        result: Floats = self._macs_per_us * shares
        return result

    @cached_property
    def _depth(self) -> Floats:
        """Microseconds of a k-tile in a full wave: multiplying, or loading it from the L2 cache."""
        f, g = self.features, self.constants
        cycle = g.clock_ghz * 1e3
        rates = np.array([g.macs_per_cycle[name] for name in f.classes])
        efficiency = np.array([g.ampere["efficiency"][name] for name in f.classes])
        of_wgmma = np.array([g.native["efficiency"].get(name, 1.0) for name in f.classes])
        lines = f.deep_bytes / _LINE_BYTES
        between = np.where(f.is_pingpong, g.native["pingpong_depth_cycles"], g.native["cooperative_depth_cycles"])
        # wgmma reads A and B from shared memory; with few columns it waits for A.
        steps = f.rows / _WGMMA_ROWS * (f.deep_bytes / _WGMMA_BYTES)
        by_shared = steps * (_WGMMA_ROWS + f.columns) * _WGMMA_BYTES / _SHARED_BYTES
        # Each warp of mma.sync reads the rows and columns that are its own.
        by_fragments = (f.warps_along_n * f.rows + f.warps_along_m * f.columns) * f.deep_bytes / _SHARED_BYTES
        multiplied = np.where(
            f.is_native,
            np.maximum(self._macs_of_depth / (rates * of_wgmma), by_shared) + between * lines,
            (np.maximum(self._macs_of_depth / (rates * efficiency), by_fragments) + g.ampere["between_cycles"])
            * f.occupancy,
        )
        multiplied = multiplied * np.where(f.promotes, g.native["promotion"], 1.0)
        loaded = (f.rows / f.cluster_columns + f.columns / f.cluster_rows) * f.deep_bytes * f.occupancy
        cycles = np.maximum(multiplied, loaded / g.l2_bytes_per_cycle + _BARRIER_CYCLES)
        return self._measured("depth", np.maximum(cycles, np.where(f.is_native, 0.0, g.ampere["depth_cycles"])) / cycle)

    @cached_property
    def _least(self) -> Floats:
        """Least share of a full wave's k-tile that one takes with fewer tiles on a multiprocessor.

        Warps of an Ampere-style kernel wait for each other and for memory, however few there are.
        """
        f, g = self.features, self.constants
        waited = g.ampere["depth_cycles"] / (g.clock_ghz * 1e3) / self._depth
        least: Floats = np.where(f.is_native, 0.0, np.minimum(waited, 1.0))
        return least

    @cached_property
    def _last_wave(self) -> Floats:
        return self._measured("last_wave", self._epilogue)

    @cached_property
    def _last_depth(self) -> Floats:
        return self._measured("last_depth", self._depth)

    @cached_property
    def _epilogue(self) -> Floats:
        """Microseconds of writing a tile where nothing hides it; pingpong kernels hide it behind the next tile."""
        f, g = self.features, self.constants
        cycle = g.clock_ghz * 1e3
        written = f.rows * f.columns * (self._bytes[2] / cycle)
        cooperative = g.native["cooperative_wave_us"] + written / g.native["epilogue_bytes_per_cycle"]
        native = np.where(f.is_pingpong, g.native["pingpong_wave_us"], cooperative)
        result: Floats = np.where(f.is_native, native, g.ampere["wave_us"] + written / g.l2_bytes_per_cycle)
        return result

    @cached_property
    def _wave(self) -> Floats:
        """Microseconds of a wave beside its k-tiles; a cooperative kernel waits for operands anew after each."""
        f, g = self.features, self.constants
        turns = np.where(f.is_native & ~f.is_pingpong, g.native["cooperative_turn_us"], 0.0)
        return self._measured("wave", self._epilogue + turns)

    @cached_property
    def _margin(self) -> Floats:
        """How much longer a tile is taken to need that nothing was measured of, on the GPU that the constants are of.

        The smallest of many predictions is one that errs on the low side, and those of tiles that nobody has measured
        err most.
        """
        native = self.constants.native
        known = [tile_class(candidate) in native["measured"] for candidate in self.candidates]
        result: Floats = np.where(self.features.is_native & ~np.array(known, np.bool_), native["margin"], 1.0)
        return result

    @cached_property
    def _start(self) -> Floats:
        """Microseconds before the first and after the last wave."""
        g = self.constants
        start: Floats = np.where(self.features.is_native, g.native["start_us"], g.ampere["start_us"])
        return self._measured("start", start)

    @cached_property
    def _fixup(self) -> Floats:
        """Bytes of partial sums that a threadblock writes and reads in a microsecond."""
        return self._of_family("fixup_bytes_per_cycle") * (self.constants.clock_ghz * 1e3)

    @cached_property
    def _fixed(self) -> Floats:
        """Microseconds of clearing semaphores and of waiting for the first of them."""
        return self._of_family("stream_k_us")

    @cached_property
    def _reduction(self) -> Floats:
        """Microseconds of the launch of the kernel that adds up."""
        return self._of_family("reduction_us")

    def _of_family(self, name: str) -> Floats:
        g = self.constants
        result: Floats = np.where(self.features.is_native, g.native[name], g.ampere[name])
        return result

    @cached_property
    def _fits(self) -> list[Any]:
        """What was measured of each candidate, or None."""
        known = self.constants.fitted
        pairs = zip(self.candidates, self.features.classes, strict=True)
        return [known.get(product, {}).get(candidate.name) for candidate, product in pairs]

    def _measured(self, name: str, analytic: Floats) -> Floats:
        """Return constants with those of measured candidates in their places."""
        fits = self._fits
        if not any(fits):
            return analytic
        return np.array(
            [value if fit is None else getattr(fit, name) for fit, value in zip(fits, analytic, strict=True)]
        )


def _up(values: Floats, steps: Floats) -> Floats:
    result: Floats = np.ceil(values / steps) * steps
    return result
