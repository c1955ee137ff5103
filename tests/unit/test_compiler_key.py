"""What makes another kernel makes another key: the host command, compilers and their environment, the headers."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

import pytest
from tool_trees import key_now, program, same_size_and_time, script
from trivial_kernels import Operation

from pycutlass import compiler, toolkit
from pycutlass.cache import KernelCache
from pycutlass.compiler import tools
from pycutlass.errors import ToolkitError
from pycutlass.source import KernelSource
from pycutlass.toolchain import HostCompiler, Nvcc, Processes
from pycutlass.toolkit import Toolkit
from pycutlass.toolkit.files import content_digest

pytestmark = pytest.mark.usefixtures("private_session")

# Each decides what g++, clang, nvcc or the linker makes, and none is part of a key.
STEERING = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH"),
    *("LD_RUN_PATH", "CCC_OVERRIDE_OPTIONS", "SOURCE_DATE_EPOCH", "DEPENDENCIES_OUTPUT", "CCACHE_COMPILER"),
    *("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "NVCC_CCBIN", "INCLUDES", "CUDAFE_FLAGS", "PTXAS_FLAGS"),
)


# The host command.


@pytest.mark.parametrize("words", ["-m32", "-DPACKED", "-O0 -g", "-fpack-struct=1"])
def test_the_words_of_the_host_command_are_in_the_key(monkeypatch, words):
    before = key_now()
    monkeypatch.setenv("CXX", f"g++ {words}")
    assert key_now() != before


def test_another_host_command_is_not_served_the_artifact_of_the_first(monkeypatch, builds):
    compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("CXX", "g++ -DANOTHER")
    compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("CXX", "g++")
    compiler.add_module([Operation("kernel_a")])
    assert builds == ["kernel_a", "kernel_a"]


def test_a_script_that_stands_for_the_compiler_is_in_the_key(monkeypatch, tmp_path):
    before = key_now()
    path = script(tmp_path / "g++", 'exec /usr/bin/g++ -DONE "$@"')
    monkeypatch.setenv("CXX", str(path))
    one = key_now()
    path = script(tmp_path / "g++", 'exec /usr/bin/g++ -DTWO "$@"')
    assert len({before, one, key_now()}) == 3


def test_a_launcher_before_the_compiler_is_in_the_key(monkeypatch, tmp_path):
    signatures = [HostCompiler(("/usr/bin/g++",), ()).signature()["host_compiler"]]
    for name, text in (("one", ""), ("two", ""), ("two", "# another")):
        launcher = script(tmp_path / name, f'exec "$@" {text}')
        signatures.append(HostCompiler((str(launcher), "g++"), ()).signature()["host_compiler"])
    signatures.append(HostCompiler(("/usr/bin/env", "g++"), ()).signature()["host_compiler"])
    assert len(set(signatures)) == len(signatures) and len({each.split(" one ")[0] for each in signatures[:2]}) == 1


def test_files_that_the_host_command_names_are_in_the_key(monkeypatch, tmp_path):
    (tmp_path / "words").write_text(f"-include {tmp_path / 'named'}")
    for words in (
        *("-include {}", "@{}", "-include{}", "-imacros{}", "--include={}", "-fplugin={}"),
        *("-Wp,-include,{}", "-Wa,@{}", "-Xpreprocessor -include -Xpreprocessor {}", f"@{tmp_path / 'words'}"),
    ):
        (tmp_path / "named").write_text("")
        monkeypatch.setenv("CXX", "g++ " + words.format(tmp_path / "named"))
        host = HostCompiler(toolkit.find_host_compiler(), ())
        program = script(tmp_path / "g++", 'case "$*" in *" -M "*) echo "null.o: /dev/null";; *) echo version;; esac')
        host = HostCompiler((str(program), *host._program[1:]), ())
        before = host.signature()
        (tmp_path / "named").write_text("// changed")
        assert host.signature() != before, words


OPTIONS_OF_DIRECTORIES = [
    *("-I/opt/include", "-isystem /opt/include", "-iquote/opt", "-idirafter /opt", "--sysroot=/opt", "--sysroot /opt"),
    *("-isysroot /opt", "-isysroot/opt", "-B/opt", "-B /opt", "-cxx-isystem /opt", "-Wp,-I/opt", "-Wp,-isystem,/opt"),
    *("-Xpreprocessor -I/opt", "-Wa,-I/opt", "--gcc-toolchain=/opt"),
]
OPTIONS_OF_LIBRARIES = [
    *("-L/opt", "-L /opt", "-Wl,-L/opt", "-Wl,--library-path=/opt", "--library-directory=/opt", "-lm", "-l m"),
    *("-Wl,-lm", "-Wl,--library=m"),
]


def test_directories_in_a_file_of_options_are_refused(monkeypatch, tmp_path):
    file = tmp_path / "words"
    monkeypatch.setenv("CXX", f"g++ @{file}")
    for words, refusal in (("-O1 -I/opt", "-I/opt adds a directory"), ("'", "cannot be read"), (f"@{file}", "itself")):
        file.write_text(words)
        with pytest.raises(ToolkitError, match=refusal):
            toolkit.find_host_compiler()
    for words in ("", "-O1 -DNAME=1 -Wl,-Bsymbolic,-z,now"):
        file.write_text(words)
        toolkit.find_host_compiler()


@pytest.mark.parametrize("option", OPTIONS_OF_DIRECTORIES)
def test_directories_of_the_host_command_are_refused(monkeypatch, option):
    monkeypatch.setenv("CXX", f"g++ {option}")
    with pytest.raises(
        ToolkitError,
        match=r"adds a directory of .* a kernel's cache key does not know.*Leave it out",
    ):
        toolkit.find_host_compiler()


@pytest.mark.parametrize("option", OPTIONS_OF_LIBRARIES)
def test_libraries_of_the_host_command_are_refused(monkeypatch, option):
    monkeypatch.setenv("CXX", f"g++ {option}")
    with pytest.raises(ToolkitError, match=r"names a library, .*does not know\. Leave it out: kernels need no library"):
        toolkit.find_host_compiler()
    monkeypatch.setenv("CXX", "g++")
    toolkit.find_host_compiler()


@pytest.mark.parametrize("option", ["-specs=/x", "--specs=/x", "--specs /x", "-wrapper /x,y", "@{}"])
def test_rules_of_the_host_command_are_refused(monkeypatch, tmp_path, option):
    (tmp_path / "words").write_text("-specs=/x")
    monkeypatch.setenv("CXX", f"g++ {option.format(tmp_path / 'words')}")
    with pytest.raises(ToolkitError, match=r"run programs and read files .* does not know\. Leave it out"):
        toolkit.find_host_compiler()


@pytest.mark.parametrize("option", ["-march=native", "-mtune=native", "-mcpu=native", "-Wa,-march=native"])
def test_the_processor_of_one_machine_is_refused(monkeypatch, option):
    """An imported kernel would be found under the same key, and end in an illegal instruction."""
    monkeypatch.setenv("CXX", f"g++ {option}")
    with pytest.raises(
        ToolkitError,
        match=r"what -m\w+=native means differs from one machine to the next.* -march=x86-64-v3",
    ):
        compiler.add_module([Operation("kernel_a")])
    monkeypatch.setenv("CXX", "g++ -march=x86-64")
    toolkit.find_host_compiler()


def test_nvcc_is_told_the_compiler_and_neither_its_launcher_nor_its_options(tmp_path):
    for command, compiler_proper in (
        (("/usr/bin/g++",), "g++"),
        (("/usr/bin/g++", "-m64"), "g++"),
        (("/usr/bin/env", "g++", "-m64"), "g++"),
    ):
        device = Nvcc(Toolkit(tmp_path, tmp_path, "13.0", "test", tmp_path / "nvcc", None), (), command)
        (told,) = [word for word in device.command(Path("a"), Path("b"), "sm_80") if word.startswith("-ccbin=")]
        assert Path(told.removeprefix("-ccbin=")).name == compiler_proper


# Versions.


def test_a_version_is_what_is_printed_and_not_what_is_complained_of(monkeypatch, tmp_path):
    before = key_now()
    monkeypatch.setenv("LD_PRELOAD", "/nowhere/library.so")  # ld.so complains of it on stderr, first of all
    assert key_now() == before
    noisy = script(tmp_path / "g++", "echo warning >&2; echo; echo 'g++ 99.1'; echo more")
    assert HostCompiler((str(noisy),), ()).signature()["host_compiler"].startswith("g++ 99.1 ")


def test_a_compiler_that_prints_nothing_is_refused_and_not_remembered(monkeypatch, tmp_path):
    path = script(tmp_path / "g++", "exit 0")
    monkeypatch.setenv("CXX", str(path))
    for _ in range(2):
        with pytest.raises(ToolkitError, match=r"g\+\+ --version prints nothing"):
            compiler.add_module([Operation("kernel_a")])
    finding = next(finding for finding in toolkit.findings() if finding.name == "host compiler")
    assert not finding.ok and "prints nothing" in finding.value
    script(tmp_path / "g++", 'exec /usr/bin/g++ "$@"')
    compiler.add_module([Operation("kernel_a")])


@pytest.mark.parametrize("says", ["", "Build", "\n \n"])
def test_a_cuda_compiler_without_a_release_is_refused(says):
    with pytest.raises(ToolkitError, match=r"must say its release, such as V13\.0\.88"):
        toolkit.cuda_release(says)


def test_a_variable_that_cxx_sets_is_refused(monkeypatch):
    for words in ("env CPATH=/x g++", "env -u HOME GCC_EXEC_PREFIX=/x/ g++ -m64"):
        monkeypatch.setenv("CXX", words)
        with pytest.raises(ToolkitError, match=r"sets a variable, .* cache key does not know\. Leave it out"):
            key_now()
    monkeypatch.setenv("CXX", "g++ -DNAME=value")
    key_now()


def test_a_further_link_to_a_directory_is_in_the_digest(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "header.h").write_text("one")
    tree = tmp_path / "tree"
    tree.mkdir()
    digests = [content_digest([tree])]
    for name, target in (("first", "real"), ("second", "real"), ("up", "tree"), ("nowhere", "none")):
        (tree / name).symlink_to(tmp_path / target)
        digests.append(content_digest([tree]))
    assert digests[-1] == digests[-2]  # nothing can be included through a link to nothing
    assert len(set(digests)) == len(digests) - 1
    (tree / "second").unlink()
    (tree / "second").symlink_to(tmp_path / "other")
    assert content_digest([tree]) not in digests


def test_only_the_version_of_a_compiler_itself_is_remembered(tmp_path):
    """The compiler behind a script or a launcher may change while these do not."""
    (tmp_path / "launcher").mkdir()
    program(tmp_path / "launcher" / "launch", "g++ 12")
    (tmp_path / "launcher" / "g++").symlink_to("launch")  # as ccache is installed
    asked: list[str] = []

    def memo(kind, subject, fingerprint, compute):
        if kind != "programs of compiler":  # by their content
            asked.append(subject)
        return compute()

    HostCompiler(("/usr/bin/g++",), (), memo).signature()
    assert asked == ["/usr/bin/g++"] * 2, "its version, and where its programs are"
    HostCompiler((str(tmp_path / "launcher" / "g++"),), (), memo).signature()
    HostCompiler((str(script(tmp_path / "g++", "echo 'g++ 12'")),), (), memo).signature()
    HostCompiler(("/usr/bin/env", "g++"), (), memo).signature()
    assert asked == ["/usr/bin/g++"] * 2


def test_a_script_is_asked_once_for_its_version_while_all_else_is_found(monkeypatch, tmp_path):
    runs = tmp_path / "runs"
    program = script(tmp_path / "g++", f'case "$*" in *--version) echo run >> {runs};; esac; echo "g++ 12"')
    monkeypatch.setenv("CXX", str(program))
    key = key_now()
    assert runs.read_text() == "run\n"
    assert key_now() == key
    unread = HostCompiler((str(program),), ())
    with unread.ask_ahead():  # as where something else is missing
        assert len(unread._answers) == 2
    ended = [answer._process.returncode for answer in unread._answers.values()]
    assert None not in ended  # and were waited for
    host = HostCompiler((str(script(tmp_path / "slow", "echo g++ 12; sleep 0.2; echo 'more'")),), ())
    with host.ask_ahead():
        assert host.signature()["host_compiler"].startswith("g++ 12 ")
    assert host.signature()["host_compiler"].startswith("g++ 12 ")  # asked again


def test_the_flags_that_nvcc_reads_from_its_profile_are_in_the_key(tmp_path):
    (tmp_path / "bin").mkdir()
    nvcc = script(tmp_path / "bin" / "nvcc", "echo 'release 13.0, V13.0.88'")
    device = Nvcc(Toolkit(tmp_path, tmp_path, "13.0", "test", nvcc, None), (), ("/usr/bin/g++",))
    signatures = [device.signature()]
    for flags in ("", "PTXAS_FLAGS += -O1\n", "PTXAS_FLAGS += -O2\n"):
        (tmp_path / "bin" / "nvcc.profile").write_text(flags)
        signatures.append(device.signature())
    assert len({tuple(sorted(signature.items())) for signature in signatures}) == 4


# The environment.


def test_a_compiler_sees_no_variable_that_steers_it(monkeypatch, tmp_path):
    for name in STEERING:
        monkeypatch.setenv(name, "/surprise")
    status, printed = Processes(1, 1).run(["/usr/bin/env"], tmp_path, memory=1, group="")
    seen = dict(line.partition("=")[::2] for line in printed.splitlines())
    assert status == 0 and seen["PATH"] == os.environ["PATH"]
    assert (seen["LC_ALL"], seen["TMPDIR"]) == ("C", str(tmp_path))
    assert "/surprise" not in seen.values()
    assert "/surprise" not in toolkit.run_quietly(["/usr/bin/env"])


def test_headers_of_the_environment_are_not_read(monkeypatch, tmp_path):
    (tmp_path / "headers").mkdir()
    (tmp_path / "headers" / "cstdint").write_text("#error a header of the environment\n")
    before = key_now()
    for name in ("CPATH", "CPLUS_INCLUDE_PATH", "C_INCLUDE_PATH"):
        monkeypatch.setenv(name, str(tmp_path / "headers"))
    assert key_now() == before
    source = KernelSource("kernel_a", "#include <cstdint>\nstd::int64_t number;\n", 80, native=False)
    host = tools.find_tools("nvrtc", toolkit.without_memo).host
    assert host.compile(source, "sm_80", Processes(1, 1)).binary.startswith(b"\x7fELF")


# CUTLASS's headers.


@pytest.fixture
def cutlass(monkeypatch, tmp_path) -> Path:
    """A small tree that stands for CUTLASS, and the variable that names it."""
    for folder in ("cutlass", "cute"):
        (tmp_path / "tree" / "include" / folder).mkdir(parents=True)
    (tmp_path / "tree" / "include" / "cutlass" / "cutlass.h").write_text("// one")
    (tmp_path / "tree" / "include" / "cutlass" / "version.h").write_text("#define CUTLASS_MAJOR 4\n")
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path / "tree"))
    return tmp_path / "tree"


def digest_now() -> str:
    """Return the digest of CUTLASS as the cache remembers it."""
    with contextlib.closing(KernelCache()) as cache:
        return toolkit.find_cutlass().digest(cache.memo)


def test_a_header_that_changed_within_its_size_and_time_is_found(cutlass):
    before = digest_now()
    same_size_and_time(cutlass / "include" / "cutlass" / "cutlass.h", "// two")
    assert digest_now() != before
    replacement = cutlass / "replacement"
    replacement.write_text("// six")
    shutil.copystat(cutlass / "include" / "cutlass" / "cutlass.h", replacement)
    between = digest_now()
    replacement.rename(cutlass / "include" / "cutlass" / "cutlass.h")
    assert digest_now() != between


def test_a_compiler_that_changed_within_its_size_and_time_is_found(tmp_path):
    path = tmp_path / "program"
    path.write_text("one")
    before = toolkit.file_fingerprint(path)
    same_size_and_time(path, "two")
    assert toolkit.file_fingerprint(path) != before


def test_every_header_on_the_path_is_in_the_digest(cutlass):
    assert toolkit.find_cutlass().includes == (cutlass / "include",)
    before = digest_now()
    (cutlass / "include" / "cuda.h").write_text("// comes before CUDA's own")
    assert digest_now() != before


def test_odd_files_among_the_headers_do_no_harm(cutlass):
    before = digest_now()
    os.mkfifo(cutlass / "include" / "cute" / "pipe")
    (cutlass / "include" / "cute" / "gone").symlink_to("/nowhere")
    (cutlass / "include" / "cute" / "itself").symlink_to("itself")
    (cutlass / "include" / "cute" / "up").symlink_to("..")
    (cutlass / "include" / "cute" / "top").symlink_to("../..")
    odd = digest_now()
    (cutlass / "include" / "cutlass" / "version.h").unlink()
    os.mkfifo(cutlass / "include" / "cutlass" / "version.h")
    assert toolkit.find_cutlass().version == "?.?.?"
    assert len({before, odd, digest_now()}) == 3


@pytest.mark.parametrize("lacks", ["include/cute", "include/cutlass/cutlass.h"])
def test_an_incomplete_cutlass_is_refused(cutlass, lacks):
    gone = cutlass / lacks
    gone.rename(cutlass / "gone")
    with pytest.raises(ToolkitError, match=f"CUTLASS_PATH is .*there is no {lacks} in it") as caught:
        compiler.add_module([Operation("kernel_a")])
    assert not caught.value.absent


def test_headers_in_a_place_that_is_no_utf_8(monkeypatch, tmp_path):
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    place.symlink_to(toolkit.find_cutlass().root)
    before = key_now()
    monkeypatch.setenv("CUTLASS_PATH", str(place))
    assert key_now() == before
    compiler.add_module([Operation("kernel_a", body="params.out[0] = 3;")])
