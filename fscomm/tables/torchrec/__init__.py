"""TorchRec and fbgemm, as fscomm uses them. Beside the extensions, no other folder imports them.

`installed` says whether they are there. `sharded` reaches the parts of a sharded module; `requirements` says what these
must have to be served. `bind` describes what is served by a `binding`, which replaces the forward of the module through
`module_view`; `features` are what the module gets.
"""
