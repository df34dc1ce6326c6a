"""Engines that sample tokens and can be interrupted at any of them, behind one Protocol."""
