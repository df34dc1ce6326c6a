"""``python -m seamlessflow.models NAME``: have a model on this machine and print its folder; exit code 2 if it cannot be."""

from __future__ import annotations

import sys

from seamlessflow.errors import SeamlessFlowError
from seamlessflow.models.resolve import resolve_model
from seamlessflow.settings import Settings


def main(arguments: list[str]) -> int:
    """Resolve each name; the first that cannot be had ends it."""
    if not arguments:
        print("usage: python -m seamlessflow.models NAME [NAME ...]", file=sys.stderr)
        return 2
    for name in arguments:
        try:
            print(resolve_model(name, Settings().model_cache))
        except SeamlessFlowError as wrong:
            print(wrong, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
