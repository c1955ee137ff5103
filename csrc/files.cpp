// What is known of files without reading them. A tree of headers is looked at for every kernel that comes from the
// cache, and calls of Python's own for each of two thousand files would take longer than all the rest.
#include <dirent.h>
#include <fcntl.h>
#include <pybind11/typing.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "bindings.h"

namespace {

struct Close {
  void operator()(DIR* directory) const { closedir(directory); }
};

struct Unreadable {
  int error;
  std::string path;
};

class Listing {
 public:
  // Adds a file, or all files below a directory; links are followed, those to directories once each.
  void add(int parent, std::string const& name, std::string const& path, bool must_exist) {
    struct stat status;
    if (fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW)) throw Unreadable{errno, path};
    if (S_ISLNK(status.st_mode)) {
      if (fstatat(parent, name.c_str(), &status, 0)) {  // leads to nothing, or to itself
        if (must_exist) throw Unreadable{errno, path};
        return;
      }
      if (S_ISDIR(status.st_mode) && !followed_.emplace(status.st_dev, status.st_ino).second) return;
    }
    if (S_ISREG(status.st_mode)) add_file(path, status);
    if (S_ISDIR(status.st_mode)) add_directory(parent, name, path);
  }

  std::string const& text() const { return text_; }

 private:
  // Says what no edit leaves as it is: anyone can set a modification time, and nobody the time of the change.
  void add_file(std::string const& path, struct stat const& status) {
    text_ += path;
    for (long long number :
         {static_cast<long long>(status.st_size), nanoseconds(status.st_mtim), nanoseconds(status.st_ctim),
          static_cast<long long>(status.st_dev), static_cast<long long>(status.st_ino)}) {
      text_ += '\0';
      text_ += std::to_string(number);
    }
    text_ += '\0';
  }

  static long long nanoseconds(timespec const& time) { return time.tv_sec * 1'000'000'000LL + time.tv_nsec; }

  void add_directory(int parent, std::string const& name, std::string const& path) {
    int const descriptor = openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    std::unique_ptr<DIR, Close> directory(descriptor < 0 ? nullptr : fdopendir(descriptor));
    if (!directory) {
      int const error = errno;
      if (descriptor >= 0) close(descriptor);
      throw Unreadable{error, path};
    }
    std::vector<std::string> names;
    errno = 0;
    while (dirent const* entry = readdir(directory.get())) {
      std::string const entered = entry->d_name;
      if (entered != "." && entered != "..") names.push_back(entered);
    }
    if (errno) throw Unreadable{errno, path};
    std::sort(names.begin(), names.end());  // a directory has no order of its own
    for (std::string const& each : names) add(descriptor, each, path + "/" + each, false);
  }

  std::string text_;
  std::set<std::pair<dev_t, ino_t>> followed_;
};

py::bytes file_states(py::typing::List<py::bytes> const& places) {
  std::vector<std::string> paths;
  for (py::handle place : places) paths.push_back(place.cast<std::string>());
  Listing listing;
  try {
    py::gil_scoped_release const unlocked;
    for (std::string const& path : paths) listing.add(AT_FDCWD, path, path, true);
  } catch (Unreadable const& unreadable) {
    errno = unreadable.error;
    py::object const path = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeFSDefaultAndSize(unreadable.path.data(), static_cast<Py_ssize_t>(unreadable.path.size())));
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw py::error_already_set();
  }
  return listing.text();
}

}  // namespace

void bind_files(py::module_& m) {
  m.def("file_states", &file_states, py::arg("places"),
        "Return path, size, times of modification and of change, device and inode of files, and of all files below "
        "directories. The places are paths as bytes. Raises OSError.");
}
