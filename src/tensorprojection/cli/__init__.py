"""``tpl``: the command line, the only part of the package that prints and that names flags."""
