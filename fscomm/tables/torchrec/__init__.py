"""The only place that knows TorchRec and fbgemm.

`torchrec_library` is all of it that the rest of fscomm uses. `servable` finds sharded modules and says which can be
served; `bind` describes one; `binding`, `sequence_binding` and `pooled_binding` stand in for its forward; `codecs` are
those of quantised communication.
"""
