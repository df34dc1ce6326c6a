"""Weights in the object store: full and delta versions, found by their manifests.

    cores       how many threads work on weights
    folders     files first, manifest last; a folder without a manifest does not exist
    stored      a file as its writer saw it: length, digest, a digest for each range
    downloads   a file from the store, range by range, side by side, checked, taken up again
    partfile    the file on this machine that such ranges arrive in; linkfile: the store's own, where it is on the same disk
    tensorfile  safetensors files as bit patterns, no framework needed
    gaps, steps where values changed, and by how much, in few bits
    delta       one version from the one before it: encode, apply in place, the file
    hashing     by which algorithm a digest was made. digests: of each tensor
    manifests   what a version says about itself: its base, its files, the digest of each tensor
    routes      what to fetch to have a version, given what is here already; pure
    adapters    versions of LoRA runs: two small matrices for each layer instead of all tensors (pairing, merging, floats)
    adapted     such a version in a local file: merged into a copy of its base
    sources     the manifests and files of one fetch, each read once
    building    a version's file along one route
    fetching    a version in a local file, every byte checked before anybody loads it
    keeping     which versions stay in the store, and why; pure. collection: the others are removed
    readers     who reads which version now (leases), and who could not have one
    inventory   what is in the store, for people; verifying, exporting: every byte read, a folder for ``from_pretrained``

Of these only ``folders`` (and what it needs) is imported here: whoever needs the model's folder alone loads no numpy.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seamlessflow.store.manifest_folders import (
        MANIFEST,
        WEIGHTS_FILE,
        fetch_folder,
        folders_of_versions,
        model_path,
        publish_folder,
        remove_folder,
        weights_path,
    )

__all__ = [
    "MANIFEST",
    "WEIGHTS_FILE",
    "fetch_folder",
    "folders_of_versions",
    "model_path",
    "publish_folder",
    "remove_folder",
    "weights_path",
]


def __getattr__(name: str) -> object:
    """Folders are read when they are asked for: they need a module of this package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seamlessflow.store import manifest_folders

    return getattr(manifest_folders, name)
