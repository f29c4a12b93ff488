"""Who looks on is asked in one file; the others ask that one, by the name of what they want."""

import ast
from pathlib import Path

import tensorprojection

SOURCES = Path(tensorprojection.__file__).parent

# Of torch.compiler, and of torch_private.py, where the private ones stand.
QUESTIONS = {
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "is_tracing",
    "in_jit_trace",
    "in_tracing_mode",
    "in_dispatch_mode",
    "in_functorch",
    "in_forward_mode",
    "jvp_levels",
    "is_legacy_batched",
}
OWNERS = {"torch.compiler", "torch.jit", "torch_private"}


def questions(source):
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in QUESTIONS:
            if ast.unparse(node.value) in OWNERS:
                yield ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").endswith(
            ("torch.compiler", "torch_private", "torch.jit")
        ):
            yield from (alias.name for alias in node.names if alias.name in QUESTIONS)


def test_a_question_is_found():
    assert list(questions("if torch.compiler.is_compiling(): pass"))
    assert list(questions("from .torch_private import in_functorch"))
    assert not list(questions("from .tracing import in_jit_trace"))


def test_one_file_asks():
    asking = {
        str(path.relative_to(SOURCES))
        for path in SOURCES.rglob("*.py")
        if list(questions(path.read_text("utf-8")))
    }
    assert asking == {"engine/tracing.py", "engine/torch_private.py"}
