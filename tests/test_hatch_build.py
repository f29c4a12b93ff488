"""A wheel's tag names the glibc that its libraries need."""

import json
import os
import platform
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOOK = ROOT / "hatch_build.py"


@pytest.fixture(scope="module")
def platform_tag():
    """The hook's function, free of a build."""
    pytest.importorskip("hatchling")
    pytest.importorskip("elftools")
    return runpy.run_path(str(HOOK))["platform_tag"]


@pytest.fixture(scope="module")
def cc():
    """``cc(*arguments)``: a C compiler for Linux."""
    command = shlex.split(os.environ.get("CC", "cc"))
    if not sys.platform.startswith("linux") or not command or shutil.which(command[0]) is None:
        pytest.skip("no C compiler, or not on Linux")

    def run(*arguments):
        subprocess.run([*command, "-shared", "-fPIC", *map(str, arguments)], check=True)

    return run


@pytest.fixture
def library(cc, tmp_path):
    """``library("libc.so.6", "GLIBC_2.99")``: one that takes a symbol of this version from there.

    The other library is made for it, so the version is not the system's.
    """

    def make(soname, version):
        folder = tmp_path / f"{soname}-{version}"
        folder.mkdir()
        other, user = folder / "other.c", folder / "user.c"
        other.write_text("int other(void) { return 1; }\n")
        user.write_text("int other(void); int user(void) { return other(); }\n")
        script, linked = folder / "versions", folder / "libother.so"
        script.write_text(f"{version} {{ global: other; }};\n")
        cc(
            "-nostdlib",
            f"-Wl,-soname,{soname}",
            f"-Wl,--version-script={script}",
            other,
            "-o",
            linked,
        )
        cc("-nostdlib", user, linked, "-o", folder / "user.so")
        return folder / "user.so"

    return make


def test_the_newest_symbol_of_all_libraries_decides(platform_tag, library):
    newer = library("libm.so.6", "GLIBC_2.101")
    newest = library("libc.so.6", "GLIBC_3.4.5")
    old = library("libc.so.6", "GLIBC_2.99")
    assert platform_tag("linux_x86_64", [old]) == "manylinux_2_99_x86_64"
    assert platform_tag("linux_x86_64", [newer, old]) == "manylinux_2_101_x86_64"
    assert platform_tag("linux_aarch64", [old, newest, newer]) == "manylinux_3_4_aarch64"


def test_no_tag_is_older_than_what_tools_build_for(platform_tag, library):
    assert platform_tag("linux_x86_64", [library("libc.so.6", "GLIBC_2.2.5")]) == (
        "manylinux_2_17_x86_64"
    )


@pytest.mark.parametrize(
    ("soname", "version"),
    [
        ("libgomp.so.1", "GLIBC_2.17"),  # not in every system
        ("libc.musl-x86_64.so.1", "GLIBC_2.17"),
        ("libc.so.6", "GLIBC_PRIVATE"),
        ("libc.so.6", "OTHER_2.17"),
    ],
)
def test_what_needs_more_than_a_released_glibc_keeps_the_plain_tag(
    soname, version, platform_tag, library
):
    good = library("libc.so.6", "GLIBC_2.30")
    assert platform_tag("linux_x86_64", [good, library(soname, version)]) == "linux_x86_64"


def test_other_systems_and_files_keep_the_plain_tag(platform_tag, tmp_path):
    path = tmp_path / "kernels.so"
    for content in (b"", b"garbage", b"\x7fELF"):
        path.write_bytes(content)
        assert platform_tag("linux_x86_64", [path]) == "linux_x86_64"
    assert platform_tag("macosx_11_0_arm64", [path]) == "macosx_11_0_arm64"


@pytest.fixture(scope="module")
def wheel(cc, platform_tag, tmp_path_factory):
    """A wheel of this project, made from its source distribution as pip does."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder), "--target"]
    subprocess.run([*command, "sdist"], cwd=ROOT, check=True, capture_output=True)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(folder, filter="data")
    source = folder / archive.name.removesuffix(".tar.gz")
    subprocess.run([*command, "wheel"], cwd=source, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.heavy  # compiles all kernels
def test_a_wheel_is_one_that_an_index_takes(wheel):
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("the system has another C library than glibc")
    machine = sysconfig.get_platform().removeprefix("linux-")
    assert re.search(rf"-py3-none-manylinux_2_\d+_{machine}\.whl$", wheel.name)


@pytest.mark.heavy  # compiles all kernels
def test_auditwheel_agrees_with_the_tag(wheel):
    pytest.importorskip("auditwheel", reason="auditwheel is not installed")
    show = [sys.executable, "-m", "auditwheel", "show", "--json", str(wheel)]
    done = subprocess.run(show, capture_output=True, text=True, check=True)
    seen = json.loads(done.stdout)
    assert seen["overall_tag"].startswith("manylinux_")
    assert (seen["external_libs"], seen["unsupported_isa"]) == ({}, False)
    symbols = [name for names in seen["versioned_symbols"].values() for name in names]
    needed = max(tuple(map(int, re.findall(r"\d+", name)[:2])) for name in symbols)
    tag = tuple(map(int, re.search(r"manylinux_(\d+)_(\d+)_", wheel.name).groups()))
    assert tag == max(needed, (2, 17))
