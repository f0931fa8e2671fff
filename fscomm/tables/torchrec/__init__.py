"""TorchRec and fbgemm, as fscomm uses them. Beside the extensions, no other folder imports them.

`sharded` reaches the parts of a sharded module; `requirements` says what these must have to be served. A `binding`
describes what is served, and replaces the forward of the module through `module_view`; `features` are what the module
gets.
"""


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
