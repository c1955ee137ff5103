// What is known of files without reading them. A tree of headers is looked at for every kernel that comes from the
// cache, and calls of Python's own for each of two thousand files would take longer than all the rest. System calls are
// what it costs, up to 10 us each on some machines: so there are as few as can be, and several threads share them.
#include <dirent.h>
#include <fcntl.h>
#include <pybind11/typing.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bindings.h"
#include "driver.h"

namespace {

constexpr unsigned kThreads = 4;  // more of them gain less than it takes to start them

struct Unreadable {
  int error;
  std::string path;
};

class Descriptor {
 public:
  explicit Descriptor(std::string const& directory)
      : value_(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (value_ < 0) throw Unreadable{errno, directory};
  }
  Descriptor(Descriptor const&) = delete;
  Descriptor& operator=(Descriptor const&) = delete;
  ~Descriptor() { close(value_); }
  operator int() const { return value_; }

 private:
  int value_;
};

struct Entry {
  std::string name;
  unsigned char kind;  // DT_DIR and so on; DT_UNKNOWN where the file system does not say
};

// Returns what a directory holds, in the order of names. opendir and readdir would ask for more than its entries.
std::vector<Entry> entries_of(int directory, std::string const& path) {
  alignas(dirent64) char buffer[1 << 15];
  std::vector<Entry> entries;
  for (;;) {
    long const filled = syscall(SYS_getdents64, directory, buffer, sizeof(buffer));
    if (filled < 0) throw Unreadable{errno, path};
    if (filled == 0) break;
    for (long at = 0; at < filled;) {
      auto const* const entry = reinterpret_cast<dirent64 const*>(buffer + at);
      std::string name = entry->d_name;
      if (name != "." && name != "..") entries.push_back({std::move(name), entry->d_type});
      at += entry->d_reclen;
    }
  }
  std::sort(entries.begin(), entries.end(), [](Entry const& a, Entry const& b) { return a.name < b.name; });
  return entries;
}

void append(std::string& text, std::string const& name, std::initializer_list<std::int64_t> numbers) {
  text += name;
  text += '\0';
  for (std::int64_t number : numbers) text.append(reinterpret_cast<char const*>(&number), sizeof(number));
}

std::int64_t nanoseconds(timespec const& time) { return time.tv_sec * INT64_C(1'000'000'000) + time.tv_nsec; }

// What is kept of a file: all that no edit leaves as it is, since anyone can set a modification time, and nobody the
// time of the change.
void append_state(std::string& text, std::string const& name, struct stat const& status) {
  append(text, name,
         {status.st_size, nanoseconds(status.st_mtim), nanoseconds(status.st_ctim),
          static_cast<std::int64_t>(status.st_dev), static_cast<std::int64_t>(status.st_ino)});
}

// The states of files, and of all files below directories. Links are followed, those to directories once each, under
// the name of the directory that they lead to: so the text is the same whichever thread comes first.
class States {
 public:
  // Begins on other threads: what the caller does meanwhile costs no time.
  explicit States(std::vector<std::string> const& places) : places(places) {
    for (std::string const& place : places) waiting_.push_back({place, place, false});
    try {
      for (unsigned count = std::min(kThreads, std::thread::hardware_concurrency()); count > 1; --count) {
        helpers_.emplace_back(&States::work, this);
      }
    } catch (std::system_error const&) {  // there may be no more threads: fewer do it as well
    }
  }

  States(States const&) = delete;
  States& operator=(States const&) = delete;

  ~States() {
    {
      std::lock_guard const lock(mutex_);
      waiting_.clear();
    }
    join();
  }

  // Helps with what is left, waits for the others, and returns the text.
  std::string finish() {
    work();
    join();
    if (failure_) std::rethrow_exception(failure_);
    return text();
  }

  std::vector<std::string> const places;

 private:
  struct Place {
    std::string path;
    std::string name;   // in the text
    bool is_directory;  // or else that is not known yet
  };

  void join() {
    std::lock_guard const lock(joining_);  // a thread may be joined once, and `finish` be called by many
    for (std::thread& helper : helpers_) helper.join();
    helpers_.clear();
  }

  std::string text() const {
    std::string text;
    for (auto const& [name, states] : found_)
      append(text, name, {static_cast<std::int64_t>(states.size())}), text += states;
    return text;
  }

  // Takes places that wait until there are none, and nobody is left who could find more.
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !waiting_.empty() || !busy_; });
      if (waiting_.empty() || failure_) break;
      Place const place = std::move(waiting_.back());
      waiting_.pop_back();
      ++busy_;
      lock.unlock();
      std::exception_ptr failure;
      try {
        look_at(place);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      --busy_;
      if (failure) {
        failure_ = failure;
        waiting_.clear();
      }
      changed_.notify_all();
    }
  }

  void look_at(Place const& place) {
    std::string states;
    std::vector<Place> deeper;
    if (place.is_directory) {
      Descriptor const directory(place.path);
      for (Entry const& entry : entries_of(directory, place.path)) {
        Place const inner{place.path + "/" + entry.name, place.name + "/" + entry.name, entry.kind == DT_DIR};
        if (inner.is_directory) {
          deeper.push_back(inner);
        } else {
          look_at_entry(directory, entry.name, inner, false, states, deeper);
        }
      }
    } else {
      look_at_entry(AT_FDCWD, place.path, place, true, states, deeper);
    }
    std::lock_guard const lock(mutex_);
    found_[place.name] += states;
    waiting_.insert(waiting_.end(), deeper.begin(), deeper.end());
  }

  // Adds the state of a file to `states`, and a directory to those that are to be looked at.
  void look_at_entry(int parent, std::string const& entry, Place const& place, bool must_exist, std::string& states,
                     std::vector<Place>& deeper) {
    struct stat status;
    if (fstatat(parent, entry.c_str(), &status, AT_SYMLINK_NOFOLLOW)) throw Unreadable{errno, place.path};
    if (S_ISLNK(status.st_mode)) {
      if (fstatat(parent, entry.c_str(), &status, 0)) {  // leads to nothing, or to itself
        if (must_exist) throw Unreadable{errno, place.path};
        return;
      }
      if (S_ISDIR(status.st_mode)) return follow(entry, place, status, states, deeper);
    }
    if (S_ISDIR(status.st_mode)) deeper.push_back({place.path, place.name, true});
    if (S_ISREG(status.st_mode)) append_state(states, entry, status);
  }

  void follow(std::string const& entry, Place const& link, struct stat const& target, std::string& states,
              std::vector<Place>& deeper) {
    append(states, entry, {static_cast<std::int64_t>(target.st_dev), static_cast<std::int64_t>(target.st_ino)});
    std::lock_guard const lock(mutex_);
    if (!followed_.emplace(target.st_dev, target.st_ino).second) return;
    deeper.push_back({link.path, std::to_string(target.st_dev) + ":" + std::to_string(target.st_ino), true});
  }

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<Place> waiting_;
  unsigned busy_ = 0;
  std::map<std::string, std::string> found_;
  std::set<std::pair<dev_t, ino_t>> followed_;
  std::exception_ptr failure_;
  std::mutex joining_;
  std::vector<std::thread> helpers_;  // last: they use all of the above
};

// One look at one place, after which nothing about it that was asked for can change without changing the answer. The
// place begins with what is asked for.
std::string glance(std::string const& place) {
  char const question = place.empty() ? '\0' : place[0];
  std::string const path = place.substr(place.empty() ? 0 : 1);
  std::string answer;
  struct stat status;
  if (path.find('\0') != std::string::npos) return "-";  // which no file's name has
  if (question == 'k') {                                 // what kind of thing it is, and of a file its state
    if (stat(path.c_str(), &status)) return "-";
    if (!S_ISREG(status.st_mode)) return S_ISDIR(status.st_mode) ? "d" : "o";
    append_state(answer, "f", status);
  } else if (question == 'n') {  // the names in a directory, each with its kind
    try {
      Descriptor const directory(path);
      for (Entry const& entry : entries_of(directory, path)) {
        unsigned char kind = entry.kind;
        if (kind == DT_UNKNOWN && !fstatat(directory, entry.name.c_str(), &status, AT_SYMLINK_NOFOLLOW))
          kind = IFTODT(status.st_mode);
        append(answer, entry.name, {kind});
      }
    } catch (Unreadable const&) {
      return "-";
    }
  } else if (question == 'r') {  // where it leads
    std::unique_ptr<char, decltype(&std::free)> const real(realpath(path.c_str(), nullptr), &std::free);
    answer = real ? real.get() : "-";
  } else {
    throw py::value_error("a place begins with k, n or r");
  }
  return answer;
}

py::bytes glances(py::typing::List<py::bytes> const& places) {
  std::string text;
  for (py::handle place : places) {
    std::string const answer = glance(place.cast<std::string>());
    append(text, "", {static_cast<std::int64_t>(answer.size())});
    text += answer;
  }
  return text;
}

std::unique_ptr<States> begin(py::typing::List<py::bytes> const& places) {
  std::vector<std::string> paths;
  for (py::handle place : places) paths.push_back(place.cast<std::string>());
  return std::make_unique<States>(paths);
}

py::typing::List<py::bytes> places_of(States const& states) {
  py::typing::List<py::bytes> places;
  for (std::string const& place : states.places) places.append(py::bytes(place));
  return places;
}

py::bytes finish(States& states) {
  try {
    std::string text;
    {
      pycutlass::LockReleased const released;
      text = states.finish();
    }
    return text;
  } catch (Unreadable const& unreadable) {
    errno = unreadable.error;
    py::object const path = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeFSDefaultAndSize(unreadable.path.data(), static_cast<Py_ssize_t>(unreadable.path.size())));
    PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path.ptr());
    throw py::error_already_set();
  }
}

}  // namespace

void bind_files(py::module_& m) {
  m.def(
      "glances", &glances, py::arg("places"),
      "Return bytes that differ whenever what is asked for does: of ``k`` and a path the kind of thing there, with the "
      "state of a file; of ``n`` and a path the names in a directory; of ``r`` and a path where it leads.");
  py::class_<States>(
      m, "FileStates", py::is_final(),
      "The states of files, and of all files below directories, which other threads look at from now on. "
      "The places are paths as bytes.")
      .def(py::init(&begin), py::arg("places"))
      .def_property_readonly("places", &places_of)
      .def("finish", &finish,
           "Return bytes that differ whenever the size, a time of modification or of change, the device, the inode or "
           "the name of a file does. Raises OSError.");
}
