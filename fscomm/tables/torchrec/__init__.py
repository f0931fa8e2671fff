"""The only place that knows TorchRec and fbgemm.

`torchrec_library` is all of it that the rest of fscomm uses; it gets it from `installed`. `structure` reaches the parts
of a sharded module, and lists what is relied on; `servable` says what can be served; `throwaway` makes the modules of a
trial. The `binding` of a module stands in for its forward through `module_view`; `codecs` are those of quantised
communication. Of managed collision, `managed` is the binding, `maps` remap ids ahead, and `cpu_kernels` train it on the
CPU.
"""
