"""Algorithms: how rewards become gradients. One file each, pure."""
