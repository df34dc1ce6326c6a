"""Keys for a deployment with permissions: ``python -m seamlessflow.contracts.export.nkeys deploy/.env``.

Writes, for each service, the public key that the server's permissions name and the secret seed that the service starts
with. Keys that the file holds already are never replaced.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nkeys

from seamlessflow.contracts.base import Service

from .permissions import key_variable


def seed_variable(service: Service) -> str:
    """Environment variable with the secret seed of a service's user, as deploy/compose.yaml reads it."""
    return f"SEAMLESSFLOW_SEED_{service.name}"


def new_pair() -> tuple[str, str]:
    """Public key and secret seed of a new user."""
    seed = nkeys.encode_seed(os.urandom(32), nkeys.PREFIX_BYTE_USER)
    return nkeys.from_seed(bytearray(seed)).public_key.decode(), bytes(seed).decode()


def key_lines() -> list[str]:
    """New keys for everybody, as lines of an environment file."""
    lines = []
    for service in Service:
        public, seed = new_pair()
        lines += [f"{key_variable(service)}={public}", f"{seed_variable(service)}={seed}"]
    return lines


def main(path: Path) -> int:
    """Returns the exit code."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        print(f"{path} exists; nothing was changed. Delete it to make new keys (and restart server and services).")
        return 0
    with os.fdopen(descriptor, "w") as file:
        file.write("\n".join(key_lines()) + "\n")
    print(f"{path}: keys of {len(Service)} users. It is secret: keep it out of git.")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "deploy/.env")))
