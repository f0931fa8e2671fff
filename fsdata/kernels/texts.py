"""The FNV-1a hash of many texts (numba, nogil)."""

import numpy as np

from fsranks.libraries import kernel

_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)


@kernel(called_with="Array(int64, 1, 'C', True), Array(uint8, 1, 'C', True), uint64[::1]")
def fnv1a(offsets: np.ndarray, raw: np.ndarray, hashes: np.ndarray) -> None:
    """Writes hashes: uint64 [N]. raw: the bytes of all texts; offsets: int64 [N + 1], the start of each text in it."""
    for text in range(len(hashes)):
        value = _START
        for at in range(offsets[text], offsets[text + 1]):
            value = (value ^ np.uint64(raw[at])) * _PRIME  # modulo 2**64, as the hash is defined
        hashes[text] = value
