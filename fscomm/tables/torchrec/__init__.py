"""The only place that knows TorchRec and fbgemm.

`torchrec_library` is all of it that the rest of fscomm uses; it gets it from `installed`. `structure` reaches the parts
of a sharded module, and lists what is relied on; `servable` says what can be served; `throwaway` makes the modules of a
trial. The `binding` of a module stands in for its forward by way of `own_forward`; `codecs` are those of quantised
communication.
"""
