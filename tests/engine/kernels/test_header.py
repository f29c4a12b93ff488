"""Python reads kernels.h as the compiler does, and refuses what it cannot read."""

import ctypes
import os
import re
import shlex
import subprocess
from ctypes import POINTER, c_double, c_int, c_int64, c_void_p

import pytest

from tensorprojection.engine.kernels import header
from tensorprojection.engine.kernels.header import (
    FUNCTIONS,
    LIMITS,
    STRUCTS,
    HeaderError,
    Plan,
    Step,
    read_functions,
    read_limits,
    read_structs,
)


@pytest.fixture
def by_the_compiler(compiler, tmp_path):
    """What C expressions are worth, as a program prints them that includes the header."""

    def values(expressions):
        lines = [f'printf("%.17g\\n", (double)({e}));' for e in expressions]
        source = tmp_path / "print.c"
        source.write_text(
            "#include <stddef.h>\n#include <stdio.h>\n#include <string.h>\n#include "
            f'"{header.HEADER}"\nint main(void) {{ {" ".join(lines)} return 0; }}\n'
        )
        program = tmp_path / "print"
        command = [*shlex.split(os.environ.get("CC", "cc")), "-std=gnu11", source, "-o", program]
        subprocess.run(command, check=True, capture_output=True)
        printed = subprocess.run([program], check=True, capture_output=True, text=True).stdout
        return dict(zip(expressions, map(float, printed.split()), strict=True))

    return values


def test_limits_are_those_of_the_compiler(by_the_compiler):
    assert len(LIMITS) > 5
    assert by_the_compiler([*LIMITS]) == LIMITS


def test_structs_lie_in_memory_as_the_compiler_has_them(by_the_compiler):
    here = {}
    for name, struct in STRUCTS.items():
        here[f"sizeof({name})"] = ctypes.sizeof(struct)
        for field, _ in struct._fields_:
            here[f"offsetof({name}, {field})"] = getattr(struct, field).offset
            here[f"sizeof((({name} *)0)->{field})"] = getattr(struct, field).size
    assert len(here) > 10
    assert by_the_compiler([*here]) == here


C_NAMES = {c_int64: "Index", c_int: "int", c_double: "double", POINTER(Plan): "const Plan *"}


def test_arguments_are_those_of_the_compiler(by_the_compiler):
    """A pointer to such a function can be assigned; other pointers are void * to Python."""
    headers = re.sub(r"/\*.*?\*/", "", header.HEADER.read_text(), flags=re.S)
    same = {}
    for name, types in FUNCTIONS.items():
        declared = re.search(rf"{name}\((.*?)\);", headers, re.S)[1].split(",")
        written = (
            [
                re.sub(r"\w+$", "", there.strip()) if kind is c_void_p else C_NAMES[kind]
                for kind, there in zip(types, declared, strict=True)
            ]
            if types
            else ["void"]
        )
        returned = "const char *" if name == "tp_digest" else "int"
        pointer = f"{returned} (*)({', '.join(written)})"
        same[f"__builtin_types_compatible_p(__typeof__(&{name}), {pointer})"] = 1.0
    assert len(same) == 7
    assert by_the_compiler([*same]) == same


def test_a_changed_limit_changes_python():
    changed = "#define MOST_AXES 5\n#define RATIO 2.5e3\n#define NAME(x) x\n"
    limits = read_limits(changed)
    assert limits == {"MOST_AXES": 5, "RATIO": 2500}
    structs = read_structs("typedef struct {\n    Index n;\n    Index a[MOST_AXES];\n} S;", limits)
    assert ctypes.sizeof(structs["S"]) == 6 * 8


@pytest.mark.parametrize(
    "line", ["Index a, b", "int n", "float *x", "Index a[2][3]", "Other x", "const Index n"]
)
def test_a_field_of_another_form_is_refused(line):
    with pytest.raises(HeaderError, match=re.escape(line)):
        read_structs(f"typedef struct {{ {line}; }} S;", {})


def test_an_argument_of_another_type_is_refused():
    with pytest.raises(HeaderError, match="tp_f has an argument of another type: long n"):
        read_functions("EXPORT int tp_f(Index a, long n);", {})


STEP = {"first": 0, "modes": 2, "order": (1, 0)}


def test_all_fields_are_given_and_no_others():
    assert list(Step(**STEP).order)[:2] == [1, 0]
    for wrong in ({**STEP, "last": 1}, {"first": 0, "modes": 2}, {}):
        with pytest.raises(TypeError, match=r"Step has the fields \['first', 'modes', 'order'\]"):
            Step(**wrong)
    with pytest.raises(AttributeError):
        Step(**STEP).frist = 1


def test_more_than_fits_is_refused():
    with pytest.raises((IndexError, RuntimeError, ValueError)):
        Step(first=0, modes=5, order=(0, 1, 2, 3, 4))


def test_a_function_takes_a_plan_and_nothing_else_in_its_place(kernels):
    numbers = (c_int64 * 100)()
    with pytest.raises(ctypes.ArgumentError):
        kernels.map(None, 1, numbers, None, 0, None, None)
