"""kernels.h as Python sees it: the limits, the plan's structs and the functions' argument types.

All of it is read from the header, so that nothing is written twice (Note [One header for both]
there). What cannot be read raises a HeaderError when the package is imported, not later.
"""

from __future__ import annotations

import re
from ctypes import POINTER, Structure, c_double, c_int, c_int64, c_void_p
from typing import Any

from .build import CSRC

HEADER = CSRC / "kernels.h"


class HeaderError(Exception):
    """A line that is not of the form that is read here."""


class Struct(Structure):
    """A struct of the header. All of its fields are given by name, or it is a TypeError."""

    __slots__ = ()

    def __init__(self, **values: object) -> None:
        names = [name for name, *_ in self._fields_]
        if values.keys() != set(names):
            raise TypeError(f"{type(self).__name__} has the fields {names}, got {[*values]}.")
        super().__init__(**values)


def read_limits(text: str) -> dict[str, float]:
    """The numbers of ``#define NAME number``."""
    return {name: float(n) for name, n in re.findall(r"^#define (\w+) ([\d.e]+)\s*$", text, re.M)}


def read_structs(text: str, limits: dict[str, float]) -> dict[str, type[Struct]]:
    """Their fields are numbers, structs from further up, or arrays of these."""
    structs: dict[str, type[Struct]] = {}
    for body, name in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, re.S):
        fields: list[tuple[str, Any]] = []
        for line in body.split(";")[:-1]:
            match = re.fullmatch(r"(\w+) (\w+)(?:\[(\w+)\])?", line.strip())
            if match is None or match[1] not in ("Index", *structs):
                raise HeaderError(f"Expected 'Index name' or 'Index name[LIMIT]', got: {line!r}.")
            kind: Any = structs.get(match[1], c_int64)
            fields.append((match[2], kind * int(limits[match[3]]) if match[3] else kind))
        # Without slots a misspelled field would be set, and never read.
        structs[name] = type(name, (Struct,), {"__slots__": (), "_fields_": fields})
    return structs


def read_functions(text: str, structs: dict[str, type[Struct]]) -> dict[str, list[Any]]:
    """The argument types of what is exported."""
    pointers = {f"const {name} *": POINTER(struct) for name, struct in structs.items()}
    numbers = {"Index ": c_int64, "int ": c_int, "double ": c_double, "Parallel ": c_void_p}
    functions: dict[str, list[Any]] = {}
    for name, arguments in re.findall(r"^EXPORT [\w *]+?(\w+)\((.*?)\);", text, re.S | re.M):
        functions[name] = []
        for argument in re.split(r",\s*", arguments.strip()) if arguments != "void" else ():
            kind = re.sub(r"\w+$", "", argument)  # all but its name
            if kind not in pointers | numbers and "*" not in kind:
                raise HeaderError(f"{name} has an argument of another type: {argument}.")
            functions[name].append((pointers | numbers).get(kind, c_void_p))
    return functions


_TEXT = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.S)
LIMITS = read_limits(_TEXT)
STRUCTS = read_structs(_TEXT, LIMITS)
FUNCTIONS = read_functions(_TEXT, STRUCTS)

# By name for type checkers, and so that one that is missing is missed at once.
MOST_AXES = int(LIMITS["MOST_AXES"])
TILE_MODES = int(LIMITS["TILE_MODES"])
TILE_NUMBERS = int(LIMITS["TILE_NUMBERS"])
TILE_ENTRIES = int(LIMITS["TILE_ENTRIES"])
MOST_COLUMNS = int(LIMITS["MOST_COLUMNS"])
ONE_THREAD = int(LIMITS["ONE_THREAD"])
GRAM_LIMIT = LIMITS["GRAM_LIMIT"]
FLOAT_LIMIT = LIMITS["FLOAT_LIMIT"]
FLOAT_SCALE = LIMITS["FLOAT_SCALE"]
Step, Plan = STRUCTS["Step"], STRUCTS["Plan"]
