"""The errors of fscomm; those that concern several ranks are fsranks'."""

from fsranks.errors import FreeScaleError, MismatchError, PeerError

__all__ = ["AnnouncementError", "FreeScaleError", "MismatchError", "NotServedError", "PeerError"]

INSTEAD = "In the place of a train pipeline use TrainPipelineFreeScale"


class AnnouncementError(FreeScaleError, ValueError):
    """A module got other features than `features=` had announced for it."""


class NotServedError(FreeScaleError, ValueError):
    """With `strict=True`: a module would run plainly; the message says which and why."""
