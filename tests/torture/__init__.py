"""Kills, signals, failing writes, flipped bits, mutated documents, hostile pickles and images: `make torture`."""
