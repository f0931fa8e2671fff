"""Composes the core with its extensions: the only folder that knows which argument needs which extension.

Each extension is imported when an argument asks for it. `reading` composes what reads rows, `batching` what makes
batches, and `stepping`, above the nodes, what makes steps.
"""

from importlib.util import find_spec


def installed(extension: str) -> bool:
    """Whether the folder of an extension is installed. The core works without any of them."""
    return find_spec(f"fsdata.{extension}") is not None
