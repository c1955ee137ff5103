"""How long candidates take, predicted from what is known of the GPU, without measuring.

A kernel begins, works off its tiles in waves, and ends; meanwhile memory delivers the operands, and power limits how
fast tensor cores multiply. What takes longest hides most of the rest:

    start + larger(waves, memory, power) + what adds up slices of K

where `larger` is a norm of a high order, a maximum that does not jump. docs/guide/which-tile.md has the terms in words.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from pycutlass.enums import MathOperation
from pycutlass.plan.constants import Constants
from pycutlass.plan.conv_kind import Conv2dKind
from pycutlass.plan.correction import MOST, of_candidates, of_problem
from pycutlass.plan.features import Bools, Features, Floats, Modelled, tile_class
from pycutlass.plan.gemv_time import ORDER, gemv_microseconds
from pycutlass.plan.kind import GemmKind
from pycutlass.plan.prediction import Prediction, Seen
from pycutlass.plan.simt import SimtShares, loads_of_depth, loads_words, operands_along_k, turns_words
from pycutlass.plan.traffic import Tiling, bytes_of_sum

__all__ = ["Model"]

#: K of one instruction of wgmma in bytes, its rows, and what shared memory delivers in a cycle, in bytes.
_WGMMA_BYTES, _WGMMA_ROWS, _SHARED_BYTES = 32.0, 64.0, 128.0
_PARTIAL_BYTES = 4.0  # of a partial sum
_LINE_BYTES = 128.0  # of K: the usual depth of a tile
_BARRIER_CYCLES = 10.0  # of each k-tile, so that of two tiles that wait for memory the deeper one is faster
_WIDEST = 128  # bits of an access
_TALL = 128  # rows, beyond which each warp has two parts of a tile
_WHOLE_COLUMNS = 128  # beyond which one warp group multiplies promoted products of 64 rows in two halves
_STEEP = 16  # order of the norm of a corrected time and the least possible one: almost the larger of both
_LEAST_K_TILES = 8  # that CUTLASS's stream-K gives a threadblock (gemm/kernel/tile_scheduler_params.h)


class Model:
    """Predicts how long the candidates of a kind take on a GPU.

    Parameters
    ----------
    kind : GemmKind or Conv2dKind
        What is computed.
    candidates : sequence of Candidate or Conv2dCandidate
        The kernels, with the options of their launches.
    constants : Constants
        What is known of the GPU.
    """

    def __init__(self, kind: GemmKind | Conv2dKind, candidates: Sequence[Modelled], constants: Constants) -> None:
        self.kind, self.candidates, self.constants = kind, candidates, constants
        self.features = Features.of(candidates, constants.capability)
        self._tile_classes = [tile_class(each) if each.operation.is_sm90 else "" for each in candidates]
        #: Of an element of A and of B, and of all that the epilogue moves for a sum.
        self._bytes = kind.A.type.bits / 8, kind.B.type.bits / 8, bytes_of_sum(kind.epilogue, kind.C, kind.D)

    def with_constants(self, constants: Constants) -> Model:
        """Return the model of the same candidates where something else is known of the same GPU."""
        made = object.__new__(Model)
        made.kind, made.candidates, made.constants = self.kind, self.candidates, constants
        made.features, made._tile_classes, made._bytes = self.features, self._tile_classes, self._bytes
        return made

    def predict(
        self, m: int, n: int, k: int | Floats, batches: int = 1, moved: tuple[float, float, float] | None = None
    ) -> Prediction:
        """Return how long each candidate takes for a problem, whether it takes it or not.

        Parameters
        ----------
        m, n, k : int, and for K also an array with an entry for each candidate
            Extents of one product.
        batches : int
            How many there are.
        moved : tuple of 3 float, optional
            Bytes of A, B, and of D with what the epilogue moves beside it, of one product, where memory holds them
            otherwise than as matrices of these extents.
        """
        found, seen = self._predicted(m, n, k, batches, moved)
        correction = self.constants.correction
        if correction is None or not self.is_corrected:
            return found
        inputs = of_problem((m, n, int(np.max(k))), batches, found, seen, self.kind)
        times = found.microseconds.copy()
        near = times <= times.min() * MOST**2  # others are not the best, whatever is learned of them
        corrected = times[near] * correction.factors(self._begun[near], inputs[near])
        # No network makes a GPU faster than it is; the order of candidates stays as it is.
        least = self._least_time(m * n * float(np.max(k)) * batches, batches * sum(seen.moved))
        times[near] = least * (1.0 + (corrected / least) ** _STEEP) ** (1 / _STEEP)
        return replace(found, microseconds=times)

    def read(self, m: int, n: int, k: int, batches: int = 1) -> tuple[Prediction, Floats]:
        """Return what is predicted without a correction, and what a correction reads beside `of_candidates`."""
        found, seen = self._predicted(m, n, k, batches, None)
        return found, of_problem((m, n, k), batches, found, seen, self.kind)

    def _least_time(self, macs: float, moved: float) -> float:
        """Return the microseconds below which no kernel computes so many products, and moves so many bytes."""
        return max(float(np.min(macs / self._macs_per_us)), moved / (self.constants.dram_gb_per_s * 1e3))

    def _predicted(
        self, m: int, n: int, k: int | Floats, batches: int, moved: tuple[float, float, float] | None
    ) -> tuple[Prediction, Seen]:
        """Return what is predicted without a correction, and of what."""
        f = self.features
        if moved is None:
            moved = self._matrix_bytes(m, n, float(np.max(k)))
        tiling = Tiling.of(f, np.where(f.is_transposed, n, m), np.where(f.is_transposed, m, n))
        in_slices = np.where(f.is_stream_k & (f.slices == 1), 1.0, f.slices)
        k_tiles = np.maximum(np.ceil(np.ceil(k / in_slices) / f.depth), 1.0)
        tiles = tiling.visited * (batches * in_slices)
        divided = self._is_divided(tiles, k_tiles)
        multiplying = self._multiplying(tiles, k_tiles, divided)
        delivered = self._memory(moved, batches, tiling)
        found = self._prediction(tiles, k_tiles, multiplying, delivered, self._adding(m, n, tiles, divided))
        if f.is_gemv.any():
            by_cuda_cores = gemv_microseconds(self.kind, f, self.constants, self._bytes, (m, n, k), batches, tiling)
            found = replace(found, microseconds=np.where(f.is_gemv, by_cuda_cores, found.microseconds))
        return found, Seen(f, tiling, k_tiles, tiles / self._places, self._start, moved)

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
        tiling = Tiling.of(f, np.where(f.is_transposed, n, m), np.where(f.is_transposed, m, n))
        of_size = tiling.visited * count
        tiles = of_size.sum(axis=0)
        # Of a tile, on average: which tile is whose does not matter.
        k_tiles = (of_size * np.maximum(np.ceil(k / f.depth), 1.0)).sum(axis=0) / tiles
        multiplying = self._multiplying(tiles, k_tiles, np.zeros_like(f.is_stream_k))
        of_a, of_b, of_d = (x * y * each for x, y, each in zip((m, k, m), (k, n, n), self._bytes, strict=True))
        moved = (count * (self._read(of_a, of_b, tiling) + of_d)).sum(axis=0)
        delivered = self._delivered(moved, float((count * (of_a + of_b + of_d)).sum()))
        return self._prediction(tiles, k_tiles, multiplying, delivered, np.zeros_like(tiles))

    def _prediction(
        self, tiles: Floats, k_tiles: Floats, multiplying: Floats, delivered: Floats, adding: Floats
    ) -> Prediction:
        """Return how long tiles take that last so long in waves, with operands that memory delivers in such a time."""
        power = tiles * self._macs_of_depth * k_tiles / self._sustained
        cache = tiles * k_tiles * self._loaded / (self.constants.l2_gb_per_s * 1e3)
        memory = np.maximum(delivered, cache)
        work = (multiplying**ORDER + memory**ORDER + power**ORDER) ** (1 / ORDER)
        total = (self._start + work + adding) * self._factor
        return Prediction(total, np.ceil(tiles / self._places), multiplying, memory, power, adding)

    def _multiplying(self, tiles: Floats, k_tiles: Floats, divided: Bools) -> Floats:
        """Return the microseconds of all waves of tiles."""
        wave, depth, last_wave = self._wave, self._depth, self._epilogue
        full = np.floor(tiles / self._places)
        rest = tiles / self._places - full
        at_once = np.ceil(rest * self.features.occupancy)  # of a multiprocessor in the last wave
        # Multiprocessors that have nothing left to do leave power and bandwidth to the others.
        alone = np.where(self.features.is_native, self.constants.native["alone"], 1.0)
        last = depth * (alone + (1 - alone) * rest) * np.maximum(at_once / self.features.occupancy, self._least)
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

    def _matrix_bytes(self, m: int, n: int, k: float) -> tuple[float, float, float]:
        """Return the bytes of A, B, and of D with what the epilogue moves beside it, as matrices."""
        per_a, per_b, per_d = self._bytes
        return m * k * per_a, k * n * per_b, m * n * per_d

    def _memory(self, moved: tuple[float, float, float], batches: int, tiling: Tiling) -> Floats:
        """Return the microseconds in which memory delivers the operands and takes D."""
        of_a, of_b, of_d = moved
        read = batches * (self._read(of_a, of_b, tiling) + of_d)
        return self._delivered(read, batches * (of_a + of_b + of_d))

    def _delivered(self, moved: Floats, different: float) -> Floats:
        """Return the microseconds of so many bytes that memory delivers or takes, of which some are the same."""
        g = self.constants
        start = g.dram_start_us * min(1.0, different / g.dram_start_bytes)
        result: Floats = moved / (g.dram_gb_per_s * 1e3) + start
        return result

    def _read(self, of_a: float | Floats, of_b: float | Floats, tiling: Tiling) -> Floats:
        """Return the bytes of A and B that memory delivers."""
        f, g = self.features, self.constants
        of_rows, of_columns = np.where(f.is_transposed, of_b, of_a), np.where(f.is_transposed, of_a, of_b)
        kept, sharpness, in_wave = (g.reuse[name] for name in ("l2_share", "sharpness", "in_wave"))
        return tiling.read(of_rows, of_columns, self._places, kept * g.l2_bytes, sharpness, in_wave)

    def _adding(self, m: int, n: int, tiles: Floats, divided: Bools) -> Floats:
        """Return the microseconds of adding up what slices of K have summed, and of preparing for it."""
        f, g = self.features, self.constants
        peers = np.where(divided, np.maximum(np.ceil(self._places / np.maximum(tiles, 1.0)), 2.0), 1.0)
        peers = np.where(f.is_serial, f.slices, peers)
        of_tile = f.rows * f.columns * (_PARTIAL_BYTES * 2)  # written by one threadblock, and read by the next
        fixup = np.where(peers > 1, peers * of_tile / self._fixup + self._fixed, 0.0)
        # Slices of a tile that end at once wait for each other; those of later waves have others ahead of them.
        in_turn = np.clip(self._places * f.slices / tiles, 1.0, f.slices) - 1.0
        fixup = fixup + np.where(f.is_serial & ~f.is_native, in_turn * g.ampere["turn_us"], 0.0)
        fixup = np.where(f.is_stream_k, np.maximum(fixup, self._of_family("scheduler_us")), fixup)
        partial = f.slices * (m * n * _PARTIAL_BYTES * 2) / (g.dram_gb_per_s * 1e3)
        result: Floats = np.where(f.is_parallel, self._reduction + partial, fixup)
        return result

    @cached_property
    def is_corrected(self) -> bool:
        """Whether a correction was trained with such kernels: Hopper-native ones of GEMMs, with the widest accesses."""
        kind, correction = self.kind, self.constants.correction
        if correction is None or not isinstance(kind, GemmKind) or not len(self.candidates):
            return False
        is_widest = all(each.alignment * each.type.bits == _WIDEST for each in (kind.A, kind.B, kind.D))
        is_native = bool((self.features.is_native | self.features.is_gemv).all())
        is_fast = kind.math_operation is MathOperation.multiply_add_fast_accum
        return is_widest and is_native and not is_fast and self.features.classes[0] in correction.classes

    @cached_property
    def _begun(self) -> npt.NDArray[np.float32]:
        """What candidates add to the hidden units of a correction."""
        assert self.constants.correction is not None
        return self.constants.correction.begun(of_candidates(self.features, self.kind))

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
        filled = g.native["filled_share"] * (f.rows + f.columns) * f.deep_bytes / _SHARED_BYTES  # by TMA, meanwhile
        twice = f.promotes & f.is_pingpong & (f.rows == _WGMMA_ROWS) & (f.columns > _WHOLE_COLUMNS)
        of_instruction = np.where(twice, 2, 1) * _WGMMA_ROWS + f.columns
        by_shared = steps * of_instruction * _WGMMA_BYTES / _SHARED_BYTES + filled
        of_wgmma = of_wgmma * np.where(f.is_pingpong, g.native["pingpong_efficiency"], 1.0)
        # Each warp of mma.sync reads the rows and columns that are its own.
        by_fragments = (f.warps_along_n * f.rows + f.warps_along_m * f.columns) * f.deep_bytes / _SHARED_BYTES
        by_warps = np.maximum(self._macs_of_depth / (rates * efficiency), by_fragments) + g.ampere["between_cycles"]
        share = self._simt.share
        by_warps = np.where(np.isnan(share), by_warps, self._macs_of_depth / (rates * share))
        by_warps = np.maximum(by_warps, self._single_loads * f.threads * g.ampere["load_cycles"])
        multiplied = np.where(
            f.is_native,
            np.maximum(self._macs_of_depth / (rates * of_wgmma), by_shared) + between * lines + self._turning,
            by_warps * f.occupancy,
        )
        waiting = np.where(
            f.is_pingpong, g.native["pingpong_promotion_cycles"], g.native["cooperative_promotion_cycles"]
        )
        promoted = multiplied * g.native["promotion"] + waiting * lines
        multiplied = np.where(f.promotes, promoted, multiplied)
        cycles = np.maximum(multiplied, self._loaded * f.occupancy / g.l2_bytes_per_cycle + _BARRIER_CYCLES)
        result: Floats = np.maximum(cycles, self._waited) / cycle
        return result

    @cached_property
    def is_unmeasured(self) -> Bools:
        """Which candidates are kernels of CUDA cores of which no times are known."""
        of_cuda_cores = np.array([each == "simt" for each in self.features.classes], np.bool_) & ~self.features.is_gemv
        result: Bools = of_cuda_cores & np.isnan(self._simt.share)
        return result

    @cached_property
    def _simt(self) -> SimtShares:
        """What was measured of kernels of CUDA cores."""
        return SimtShares.of(self.features, operands_along_k(self.kind), self.constants.simt)

    @cached_property
    def _waited(self) -> Floats:
        """Cycles that a k-tile of an Ampere-style kernel takes at least: warps wait for each other and for memory."""
        f, ampere, simt = self.features, self.constants.ampere, self._simt
        usual = ampere["depth_cycles"] + self._single_loads * ampere["load_wait_cycles"]
        result: Floats = np.where(f.is_native, 0.0, np.where(np.isnan(simt.cycles), usual, simt.cycles))
        return result

    @cached_property
    def _single_loads(self) -> Floats:
        return loads_of_depth(self.features, self.kind)

    @cached_property
    def _turning(self) -> Floats:
        """Cycles in which warps load tf32 that does not lie along K, or turn it around in B."""
        f, native = self.features, self.constants.native
        cycles = np.where(f.is_pingpong, native["pingpong_turning_cycles"], native["cooperative_turning_cycles"])
        of_rows = np.where(f.rows > _TALL, native["tall_loading_cycles"], 0.0)
        result: Floats = cycles * turns_words(self.kind) + of_rows * loads_words(self.kind)
        return result

    @cached_property
    def _loaded(self) -> Floats:
        """Bytes that a tile takes from the L2 cache for each k-tile; threadblocks of a cluster share them."""
        f = self.features
        result: Floats = (f.rows / f.cluster_columns + f.columns / f.cluster_rows) * f.deep_bytes
        return result

    @cached_property
    def _least(self) -> Floats:
        """Least share of a full wave's k-tile that one takes with fewer tiles on a multiprocessor.

        Warps of an Ampere-style kernel wait for each other and for memory, however few there are.
        """
        least: Floats = np.minimum(self._waited / (self.constants.clock_ghz * 1e3) / self._depth, 1.0)
        return least

    @cached_property
    def _epilogue(self) -> Floats:
        """Microseconds of the epilogue of a tile where nothing hides it; pingpong kernels hide it behind the next."""
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
        result: Floats = self._epilogue + np.where(f.is_native & ~f.is_pingpong, g.native["cooperative_turn_us"], 0.0)
        return result

    @cached_property
    def _factor(self) -> Floats:
        """How much longer tiles take than all this says, of those that were measured."""
        known = self.constants.tiles
        return np.array(
            [known.get(tile_class(each), 1.0) if each.operation.is_sm90 else 1.0 for each in self.candidates]
        )

    @cached_property
    def _start(self) -> Floats:
        """Microseconds before the first and after the last wave; threadblocks of a cluster start together."""
        f, g = self.features, self.constants
        in_clusters = np.where(f.cluster_rows * f.cluster_columns > 1, g.native["cluster_start_us"], 0.0)
        start: Floats = np.where(f.is_native, g.native["start_us"], g.ampere["start_us"]) + in_clusters
        return start

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
