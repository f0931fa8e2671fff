"""Notices that torch prints because of how TorchRec calls it, and about which a user can do nothing."""

import logging

import torch.fx._symbolic_trace as symbolic_trace

_BEGIN = "is_fx_tracing will return true"


def keep_fx_notice_away() -> None:
    """Keep torch's notice about `is_fx_tracing`, which TorchRec calls with the first batch, from the user's terminal.

    torch says it once in a process: here it says it to a logger that drops it. Other records pass, and the logger is
    left as it was found.
    """
    notice = getattr(symbolic_trace, "is_fx_tracing_warning", None)  # not in every torch
    if notice is None:
        return
    logger = logging.getLogger(symbolic_trace.__name__)
    logger.addFilter(_is_other)
    try:
        notice()
    finally:
        logger.removeFilter(_is_other)


def _is_other(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith(_BEGIN)
