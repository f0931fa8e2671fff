"""Where the id exchange looks for records, until it asks `ForwardGuard` for them."""

from fscomm.managed.record import Record

__all__ = ["Record"]
