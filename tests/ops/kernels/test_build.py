"""How the kernels are compiled, at installation and by hand, and what happens without them.

Nothing here writes into the package's own folder.
"""

import _ctypes
import os
import runpy
import shutil
import subprocess
import sys
import sysconfig
import types
from pathlib import Path

import pytest
import torch

import tensorprojection as tp
from tensorprojection.ops.kernels import build as building
from tensorprojection.ops.kernels import library
from tensorprojection.ops.kernels.build import BuildError, build, library_path, variants

HOOK = Path(__file__).parents[3] / "hatch_build.py"

# A compiler that writes what it was called with to where its result should be; it does not know
# the processors that are named in $UNKNOWN.
STAND_IN = """#!/bin/sh
for word; do
    if [ -n "$UNKNOWN" ] && [ "$word" = "-march=$UNKNOWN" ]; then
        echo "unknown processor" >&2
        exit 1
    fi
    last=$word
done
echo "$@" > "$last"
"""


@pytest.fixture
def stand_in(tmp_path_factory, monkeypatch):
    """A compiler that takes no time, and is called with an option of its own."""
    path = tmp_path_factory.mktemp("bin") / "stand-in"
    path.write_text(STAND_IN)
    path.chmod(0o755)
    monkeypatch.setenv("CC", f"'{path}' --option")


@pytest.fixture
def copy(tmp_path):
    """A copy of the package's folder, without its libraries, that knows nothing of the package."""
    folder = tmp_path / "src" / "tensorprojection" / "ops" / "kernels"
    shutil.copytree(building.HERE, folder, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    shutil.copy(building.LIMITS, folder.parent)
    for package in (folder.parent, folder.parents[1]):
        (package / "__init__.py").touch()
    return folder


def libraries_in(folder):
    return sorted(path.name for path in folder.glob("*.so"))


# Compiling


@pytest.mark.parametrize("name", ["no-such-compiler", "", "  "])
def test_a_missing_compiler_is_reported(name, monkeypatch, tmp_path):
    monkeypatch.setenv("CC", name)
    with pytest.raises(BuildError, match=r"install one .* name yours in \$CC"):
        build("DEFAULT", tmp_path)


def test_a_compiler_that_fails_is_shown_with_its_command_and_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("CC", "false --option")
    with pytest.raises(BuildError, match=r"^false --option .*steps\.c.* failed:"):
        build("DEFAULT", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_compilers_message_is_shown(compiler, tmp_path):
    with pytest.raises(BuildError, match=r"failed:\n.*no-such-option"):
        build("DEFAULT", tmp_path, ("-no-such-option",))
    assert list(tmp_path.iterdir()) == []


def test_a_failed_build_leaves_the_library_that_was_there(monkeypatch, tmp_path):
    library_path("DEFAULT", tmp_path).write_text("the one before")
    monkeypatch.setenv("CC", "false")
    with pytest.raises(BuildError):
        build("DEFAULT", tmp_path)
    assert library_path("DEFAULT", tmp_path).read_text() == "the one before"


def test_the_command(stand_in, tmp_path):
    path = build(variants()[0], tmp_path, ("-DWIDTH=4",))
    assert list(tmp_path.iterdir()) == [path]
    words = path.read_text().split()
    assert words[0] == "--option"
    assert {*building.FLAGS, *building.VARIANTS[variants()[0]], "-DWIDTH=4"} <= {*words}
    assert {str(building.CSRC / name) for name in building.SOURCES} <= {*words}
    assert "-Werror" not in words  # a warning of a user's compiler is no reason to fail


def test_every_c_file_is_compiled():
    assert {path.name for path in building.CSRC.glob("*.c")} == {*building.SOURCES}


def test_the_digest_is_that_of_every_c_file(copy):
    digest = runpy.run_path(str(copy / "build.py"))["digest"]
    digests = {digest(), building.digest()}
    assert len(digests) == 1
    files = [*(copy / "csrc").glob("*.[ch]"), copy.parent / "limits.py"]
    for path in files:
        path.write_text(path.read_text() + "\n")
        digests.add(digest())
    assert len(digests) == 1 + len(files)


# By hand


def run_by_hand(copy, **environment):
    return subprocess.run(
        [sys.executable, "-m", "tensorprojection.ops.kernels.build"],
        cwd=copy.parents[2],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_by_hand(stand_in, copy):
    run = run_by_hand(copy)
    assert (run.returncode, run.stderr) == (0, "")
    printed = [Path(line) for line in run.stdout.splitlines()]
    assert printed == [library_path(variant, copy) for variant in variants()]
    assert all(path.exists() for path in printed)


def test_by_hand_without_a_compiler(copy):
    run = run_by_hand(copy, CC="no-such-compiler")
    assert run.returncode == 1
    assert run.stderr.startswith("No C compiler found")
    assert "Traceback" not in run.stderr
    assert libraries_in(copy) == []


def test_a_processor_that_the_compiler_does_not_know_is_left_out(stand_in, copy):
    if "AVX512" not in variants():
        pytest.skip("only one kind of processor here")
    run = run_by_hand(copy, UNKNOWN="x86-64-v4")
    assert run.returncode == 0
    assert libraries_in(copy) == ["kernels-avx2.so", "kernels-default.so"]


def test_a_compiler_that_knows_no_processor_is_an_error(copy):
    run = run_by_hand(copy, CC="false")
    assert run.returncode == 1
    assert run.stderr.startswith("false ")
    assert libraries_in(copy) == []


# Loading, and what `tp.kernels` says about it

NOT_IN_USE = "Compiled kernels not in use: "


def one_line(kernels):
    text = str(kernels)
    assert "\n" not in text
    assert text.endswith(".")
    return text


@pytest.fixture
def load_anew(monkeypatch):
    """`load` without what it remembers."""
    monkeypatch.delenv(library.SWITCH, raising=False)
    library.search.cache_clear()
    library.load.cache_clear()
    yield library.load
    library.search.cache_clear()
    library.load.cache_clear()


@pytest.fixture
def stale(compiler, monkeypatch, tmp_path):
    """A library of other sources."""
    with monkeypatch.context() as other:
        other.setattr(building, "SOURCES", ("digest.c",))
        other.setattr(building, "digest", lambda: "of other sources")
        return build("DEFAULT", tmp_path)


def test_a_library_of_other_sources_is_left_aside(stale, monkeypatch, load_anew):
    monkeypatch.setattr(library, "library_path", lambda variant: stale)
    with pytest.warns(UserWarning, match=r"not used.*tensorprojection\.ops\.kernels\.build"):
        assert load_anew() is None
    assert not tp.kernels()
    assert one_line(tp.kernels()).startswith(NOT_IN_USE + "compiled from other sources")
    layer, x = tp.TensorProjection((6, 5), (3, 2)), torch.randn(4, 6, 5)
    assert not tp.explain(layer, x).compiled


def test_a_file_that_is_no_library_is_left_aside(monkeypatch, tmp_path, load_anew):
    path = tmp_path / "kernels-avx2.so"
    path.write_bytes(b"garbage")
    monkeypatch.setattr(library, "library_path", lambda variant: path)
    with pytest.warns(UserWarning, match="another system, or damaged"):
        assert load_anew() is None
    assert "compiled for another system, or damaged" in one_line(tp.kernels())


def test_a_library_of_something_else_is_left_aside(monkeypatch, load_anew):
    other = Path(_ctypes.__file__)
    monkeypatch.setattr(library, "library_path", lambda variant: other)
    with pytest.warns(UserWarning, match="has no kernels in it"):
        assert load_anew() is None
    assert f"{other.name} has no kernels in it" in one_line(tp.kernels())


def test_no_library(monkeypatch, tmp_path, load_anew, reference):
    monkeypatch.setattr(library, "library_path", lambda variant: library_path(variant, tmp_path))
    assert load_anew() is None
    assert not tp.kernels()
    assert one_line(tp.kernels()).startswith(NOT_IN_USE + "not built; where there is a C compiler")
    layer, x = tp.TensorProjection((6, 5), (3, 2)), torch.randn(4, 6, 5)
    assert "torch's operations" in str(tp.explain(layer, x))
    torch.testing.assert_close(layer(x).double(), reference(layer, x), rtol=1e-5, atol=1e-6)


def test_the_processor_that_torch_sees_decides(monkeypatch, tmp_path, load_anew):
    for variant in building.VARIANTS:
        library_path(variant, tmp_path).touch()
    monkeypatch.setattr(library, "library_path", lambda variant: library_path(variant, tmp_path))
    monkeypatch.setattr(library, "open_library", lambda path: path.name)
    chosen, variants_named = {}, []
    for capability in ("AVX512", "AVX2", "DEFAULT", "SVE256"):
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda c=capability: c)
        library.search.cache_clear()
        library.load.cache_clear()
        chosen[capability] = load_anew()
        variants_named.append(tp.kernels().variant)
    assert chosen == {
        "AVX512": "kernels-avx512.so",
        "AVX2": "kernels-avx2.so",
        "DEFAULT": "kernels-default.so",
        "SVE256": "kernels-default.so",
    }
    assert variants_named == ["AVX512", "AVX2", "DEFAULT", "DEFAULT"]


def test_a_library_for_other_processors_alone(monkeypatch, tmp_path, load_anew):
    library_path("AVX2", tmp_path).touch()
    monkeypatch.setattr(library, "library_path", lambda variant: library_path(variant, tmp_path))
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    assert load_anew() is None
    assert "not built (this processor has AVX-512, built is AVX2)" in one_line(tp.kernels())


def test_in_use(kernels, load_anew):
    assert load_anew() is not None
    assert tp.kernels()
    assert tp.kernels().variant == library_path_in_use()
    assert one_line(tp.kernels()).startswith("Compiled kernels in use: ")


def library_path_in_use():
    """By what the process has loaded, as the system tells."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("the system does not tell what a process has loaded")
    loaded = [v for v in building.VARIANTS if str(library_path(v)) in maps.read_text()]
    assert len(loaded) == 1
    return loaded[0]


def test_without_torchs_threads_there_are_no_kernels(kernels, monkeypatch, load_anew):
    monkeypatch.setattr(library, "_parallel", lambda: None)
    assert load_anew() is None
    assert not tp.kernels()
    assert "torch has no OpenMP" in one_line(tp.kernels())


SWITCHED_OFF = """
import torch, tensorprojection as tp
layer, x = tp.TensorProjection((32, 12, 12), (20, 6, 6)), torch.randn(3, 32, 12, 12)
exact = tp.TensorProjection((32, 12, 12), (20, 6, 6)).double()
exact.load_state_dict(layer.state_dict())
results = []
for l, t in ((layer, x), (exact, x.double())):
    l(t).square().sum().backward()
    results.append([l(t), *(W.grad for W in l.parameters())])
for a, b in zip(*results):
    assert (a - b).norm() <= 1e-5 * b.norm()
print(tp.explain(layer, x))
print(tp.kernels(), bool(tp.kernels()))
"""


def test_switched_off_by_the_environment():
    run = subprocess.run(
        [sys.executable, "-c", SWITCHED_OFF],
        env={**os.environ, library.SWITCH: "0"},
        capture_output=True,
        text=True,
    )
    assert (run.returncode, run.stderr) == (0, "")
    assert "; torch's operations" in run.stdout
    reason = f"switched off by {library.SWITCH}=0 in the environment"
    assert run.stdout.endswith(f"{NOT_IN_USE}{reason}. False\n")
    assert library.SWITCH == "TENSORPROJECTION_COMPILED"


# At installation


class FakeHook:
    """What hatchling gives a hook."""

    def __init__(self, root, target_name):
        self.root, self.target_name, self.warnings = str(root), target_name, []
        self.app = types.SimpleNamespace(display_warning=self.warnings.append)


@pytest.fixture
def install(copy, monkeypatch):
    """``install("wheel")``: what a copy of the project tells hatchling, and its warnings."""
    if not HOOK.is_file():
        pytest.skip("hatch_build.py comes with a clone of the project, not with the package")
    pytest.importorskip("elftools", reason="the hook needs pyelftools")
    name = "hatchling.builders.hooks.plugin.interface"
    interface = types.ModuleType(name)
    interface.BuildHookInterface = FakeHook
    monkeypatch.setitem(sys.modules, name, interface)

    def run(target):
        hook = runpy.run_path(str(HOOK))["KernelHook"](copy.parents[3], target)
        data = {"artifacts": [], "pure_python": True}
        hook.initialize("standard", data)
        return data, hook.warnings

    return run


def test_a_wheel_carries_the_libraries_and_names_its_platform(stand_in, install, copy):
    data, warnings = install("wheel")
    names = [f"kernels-{variant.lower()}.so" for variant in variants()]
    assert data["artifacts"] == [f"src/tensorprojection/ops/kernels/{name}" for name in names]
    assert libraries_in(copy) == sorted(names)
    assert data["pure_python"] is False
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert data["tag"] == f"py3-none-{platform}"
    assert warnings == []


def test_a_source_distribution_is_left_as_it_is(stand_in, install, copy):
    assert install("sdist") == ({"artifacts": [], "pure_python": True}, [])
    assert libraries_in(copy) == []


@pytest.mark.parametrize("command", ["no-such-compiler", "false"])
def test_installing_without_a_compiler_only_warns(command, install, copy, monkeypatch):
    monkeypatch.setenv("CC", command)
    data, (warning,) = install("wheel")
    assert data == {"artifacts": [], "pure_python": True}
    assert "Without compiled kernels" in warning
    assert libraries_in(copy) == []
