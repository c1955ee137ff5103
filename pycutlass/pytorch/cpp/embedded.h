// Libraries of kernels that a program carries as bytes, and not in a file.
#pragma once

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace embedded {

inline uint32_t rotated(uint32_t word, int by) { return word >> by | word << (32 - by); }

/// Returns the SHA-256 of bytes in hexadecimal (FIPS 180-4, section 6.2).
inline std::string sha256(uint8_t const* bytes, size_t count) {
  static constexpr uint32_t kRounds[64] = {
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
  std::array<uint32_t, 8> hash = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::vector<uint8_t> end(bytes + count / 64 * 64, bytes + count);  // and what FIPS 180-4 puts behind it
  end.push_back(0x80);
  while (end.size() % 64 != 56) end.push_back(0);
  for (int shift = 56; shift >= 0; shift -= 8) end.push_back(uint8_t(uint64_t(count) * 8 >> shift));

  auto const add = [&](uint8_t const* block) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 | uint32_t(block[4 * i + 2]) << 8 |
             block[4 * i + 3];
    }
    for (int i = 16; i < 64; ++i) {
      uint32_t const before = w[i - 15], later = w[i - 2];
      w[i] = w[i - 16] + (rotated(before, 7) ^ rotated(before, 18) ^ before >> 3) + w[i - 7] +
             (rotated(later, 17) ^ rotated(later, 19) ^ later >> 10);
    }
    auto [a, b, c, d, e, f, g, h] = hash;
    for (int i = 0; i < 64; ++i) {
      uint32_t const one =
          h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + ((e & f) ^ (~e & g)) + kRounds[i] + w[i];
      uint32_t const two = (rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + one, d = c, c = b, b = a, a = one + two;
    }
    uint32_t const made[] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) hash[i] += made[i];
  };
  for (size_t i = 0; i + 64 <= count; i += 64) add(bytes + i);
  for (size_t i = 0; i < end.size(); i += 64) add(end.data() + i);

  std::string text;
  for (uint32_t word : hash) {
    for (int shift = 28; shift >= 0; shift -= 4) text += "0123456789abcdef"[word >> shift & 15];
  }
  return text;
}

/// Opens a shared object that is in memory, or returns null and what is wrong; to be called by one thread at a time.
inline void* opened(uint8_t const* bytes, size_t count, std::string& wrong) {
  int const file = memfd_create("pycutlass_kernels", MFD_CLOEXEC);
  if (file < 0) return wrong = std::string("memfd_create: ") + std::strerror(errno), nullptr;
  for (size_t done = 0; done < count;) {
    ssize_t const written = write(file, bytes + done, count - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      wrong = std::string("write: ") + std::strerror(errno);
      close(file);
      return nullptr;
    }
    done += size_t(written);
  }
  // dlopen takes two files of one name for the same, and numbers of files come back, in this process or in one that was
  // forked: slashes, one more each time, make a name that nobody has had.
  static std::string slashes = "//";
  slashes += '/';
  void* const handle = dlopen(("/proc/self/fd" + slashes + std::to_string(file)).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) wrong = dlerror();
  close(file);  // whose pages stay mapped
  return handle;
}

}  // namespace embedded
