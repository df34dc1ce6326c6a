"""``python -m seamlessflow.cli``: the command without its installed script."""

from . import main

main()
