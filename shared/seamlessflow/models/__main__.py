"""``python -m seamlessflow.models NAME``: have a usable model on this machine and print its folder.

Exit code 2, and why on standard error, when it cannot be had, or has no chat template or an architecture nobody serves.
"""

from __future__ import annotations

import sys

from seamlessflow.config.settings import Settings
from seamlessflow.errors import SeamlessFlowError

from .model_folder import check_model
from .resolve import MADE_HERE, resolve_model


def main(arguments: list[str]) -> int:
    """Resolve and check each name; the first that cannot be used ends it."""
    if not arguments:
        print("usage: python -m seamlessflow.models NAME [NAME ...]", file=sys.stderr)
        return 2
    for name in arguments:
        try:
            folder = resolve_model(name, Settings().model_cache)
            if name not in MADE_HERE:
                check_model(folder, name)
            print(folder)
        except SeamlessFlowError as wrong:
            print(wrong, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
