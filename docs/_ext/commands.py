"""The page of `tpl`'s commands, made from the command line's own definitions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cyclopts import App
from sphinx.application import Sphinx

PAGE = "reference/commands"


def commands(app: App, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], App]]:
    """Every command with the words that call it, those inside of others after them."""
    for name in app:
        if name.startswith("-"):
            continue
        command = app[name]
        yield (*path, name), command
        yield from commands(command, (*path, name))


def as_markdown(words: tuple[str, ...], command: App) -> str:
    """One command: a label, a heading, and what its help says."""
    text = command.generate_docs(output_format="markdown", recursive=False, usage_name=None)
    body = text.partition("\n")[2]  # without cyclopts's own heading
    body = body.partition("\n## ")[0]  # and a group without its commands, which have their own
    name = " ".join(("tpl", *words))
    # The words before the first argument depend on how this program was started.
    usage = r"^(```console\n).*?(?= (?:COMMAND|\[|--|[A-Z]{3})|$)"
    body = re.sub(usage, rf"\1{name}", body, count=1, flags=re.M)
    return f"({'-'.join(('tpl', *words))})=\n## `{name}`\n{body}\n"


def all_commands() -> list[tuple[tuple[str, ...], App]]:
    from tensorprojection.cli.main import command_line

    # Without a study, a command has the flags of all of the paper's.
    by_study = {(name,): command_line([name])[name] for name in ("run", "summary")}
    return [(words, by_study.get(words, app)) for words, app in commands(command_line([]))]


def write_page(app: Sphinx, docname: str, source: list[str]) -> None:
    if docname == PAGE:
        source[0] += "\n" + "\n".join(as_markdown(*found) for found in all_commands())


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("source-read", write_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
