"""``python -m pycutlass``: the command line."""

from __future__ import annotations

from pycutlass.cli import main

if __name__ == "__main__":
    main()
