"""The only place that knows TorchRec and fbgemm.

`binding` finds sharded modules and says which can be served; `shadow_kernels` and `plain_kernels` reach their tables;
`gradient_tap` gets the gradients of looked-up rows; `state_hooks` completes updates before anybody looks.
"""
