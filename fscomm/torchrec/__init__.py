"""The only place that knows TorchRec and fbgemm.

`servable` finds sharded modules and says which can be served; `bind` describes one; `binding`, `sequence_binding` and
`pooled_binding` stand in for its forward; `shadow_kernels`, `pooled_tables` and `plain_kernels` reach its tables;
`codecs` encode what travels; `gradient_tap` gets the gradients of looked-up rows; `state_hooks` completes updates
before anybody looks.
"""
