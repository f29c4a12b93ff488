"""The structs and argument types in library.py are those of kernels.h."""

import ctypes
import os
import re
import shlex
import subprocess
from ctypes import POINTER, c_double, c_int, c_int64, c_void_p

import pytest

from tensorprojection.ops.kernels import library
from tensorprojection.ops.kernels.build import CSRC, limits
from tensorprojection.ops.kernels.library import PlanStruct, StepStruct

HEADER = CSRC / "kernels.h"


@pytest.fixture
def by_the_compiler(compiler, tmp_path):
    """``by_the_compiler(expressions)``: their values in a C program that includes the header."""

    def values(expressions):
        lines = [f'printf("%.17g\\n", (double)({e}));' for e in expressions]
        source, program = tmp_path / "print.c", tmp_path / "print"
        source.write_text(
            "#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n#include "
            f'"{HEADER}"\nint main(void) {{ {" ".join(lines)} return 0; }}\n'
        )
        command = [*shlex.split(os.environ.get("CC", "cc")), "-std=gnu11"]
        command += [*(f"-D{name}={n}" for name, n in limits().items()), source, "-o", program]
        subprocess.run(command, check=True, capture_output=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        return dict(zip(expressions, map(float, printed.split()), strict=True))

    return values


def test_structs_lie_in_memory_as_the_compiler_has_them(by_the_compiler):
    here = {}
    for name, struct in (("Plan", PlanStruct), ("Step", StepStruct)):
        here[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, _ in struct._fields_:
            here[f"offsetof({name}, {field})"] = getattr(struct, field).offset
            here[f"sizeof((({name} *)0)->{field})"] = getattr(struct, field).size
    assert len(here) > 10
    assert by_the_compiler([*here]) == here


C_NAMES = {c_int64: "Index", c_int: "int", c_double: "double", POINTER(PlanStruct): "const Plan *"}


def test_arguments_are_those_of_the_compiler(by_the_compiler):
    """A pointer to such a function can be assigned; other pointers are void * to Python."""
    header = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)
    same = {}
    for name, types in library._ARGUMENTS.items():
        declared = re.search(rf"{name}\((.*?)\);", header, re.S)[1].split(",")
        written = [
            re.sub(r"\w+$", "", there.strip()) if kind is c_void_p else C_NAMES[kind]
            for kind, there in zip((c_void_p, c_int64, *types), declared, strict=True)
        ]
        pointer = f"int (*)({', '.join(written)})"
        same[f"__builtin_types_compatible_p(__typeof__(&{name}), {pointer})"] = 1.0
    assert len(same) == len(re.findall(r"EXPORT int ", header))
    assert by_the_compiler([*same]) == same


def test_a_function_takes_a_plan_and_nothing_else_in_its_place(kernels):
    numbers = (c_int64 * 100)()
    with pytest.raises(ctypes.ArgumentError):
        kernels.map(None, 1, numbers, None, 0, None, None)
