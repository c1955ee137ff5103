"""GEMV kernels compute what they mean, by their own C++ on the host."""

from __future__ import annotations

import subprocess

import pytest
from emulator import Emulator
from gemv_classes import CLASSES

pytestmark = pytest.mark.compile

#: Compares how 8-bit floats become numbers, on GPUs that have no instruction for it, with CUTLASS's conversion.
FLOAT8 = """
#include <cstdio>
#include "pycutlass/gemv.h"

template <typename Element>
int wrong() {
  int found = 0;
  for (int i = 0; i < 256; ++i) {
    Element const element = Element::bitcast(uint8_t(i));
    float const ours = pycutlass::GemvNumber<float, Element>::of(element), exact = float(element);
    found += std::memcmp(&ours, &exact, 4) && !(ours != ours && exact != exact);
  }
  return found;
}
int main() {
  std::printf("%d %d", wrong<cutlass::float_e4m3_t>(), wrong<cutlass::float_e5m2_t>());
}
"""


@pytest.mark.parametrize("name", CLASSES)
def test_a_gemv_computes_what_it_means(name: str, emulator: Emulator) -> None:
    right, said = emulator.run_gemv(CLASSES[name])
    assert right, said


def test_floats_of_8_bits_become_the_numbers_that_they_are(emulator: Emulator) -> None:
    program = emulator.build(FLOAT8)
    assert subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout == "0 0"
