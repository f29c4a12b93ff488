"""What the tests of the command line share."""

import sys

import pytest

from tensorprojection.cli import main as cli


@pytest.fixture
def tpl(monkeypatch, capsys):
    """``tpl("run", "oct")``: exit code, what was printed, and what to stderr."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["tpl", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = ended.code or 0
        return code, *capsys.readouterr()

    return call
