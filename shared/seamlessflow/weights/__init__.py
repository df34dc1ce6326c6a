"""Weights in the object store: full and delta versions, found by their manifests.

    cores       how many threads work on weights
    folders     files first, manifest last; a folder without a manifest does not exist
    tensorfile  safetensors files as bit patterns, no framework needed
    gaps, steps where values changed, and by how much, in few bits
    delta       one version from the one before it: encode, apply in place, the file
    manifests   what a version says about itself: its base, its files, the digest of each tensor
    routes      what to fetch to have a version, given what is here already; pure
    fetching    a version in a local file, every byte checked before anybody loads it

Of these only ``folders`` is imported here: whoever needs the model's folder alone loads no numpy.
"""

from .folders import (
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
