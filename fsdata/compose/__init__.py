"""Extensions and what they extend, put together: the one folder that knows which argument needs which extension.

Each extension is imported when an argument asks for it. `reading` is what rows are read with, `batching` what batches
are made with; `stepping`, above the nodes, is what makes steps.
"""

from importlib.util import find_spec


def is_there(extension: str) -> bool:
    """Whether the folder of an extension is installed."""
    return find_spec(f"fsdata.{extension}") is not None
