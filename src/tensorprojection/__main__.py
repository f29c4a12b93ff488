"""``python -m tensorprojection`` is ``tpl``."""

from .cli import main

if __name__ == "__main__":
    main()
