"""Whether torchrec is installed, and which."""


def torchrec_version() -> str:
    """Of the installed torchrec.

    Raises:
        ModuleNotFoundError: there is none; the error says how to install it.
    """
    try:
        import torchrec
    except ModuleNotFoundError as error:
        if error.name != "torchrec":
            raise
        raise ModuleNotFoundError(
            "fscomm.enable serves modules of torchrec, which is not installed: see Installing in the README",
            name="torchrec",
        ) from error
    return getattr(torchrec, "__version__", "of an unknown version")
