"""Loops of the packing methods."""
