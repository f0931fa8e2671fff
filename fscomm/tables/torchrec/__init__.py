"""TorchRec and fbgemm, as fscomm uses them. Beside the extensions, no other folder imports them.

`installed` says whether they are there. `sharded` reaches the parts of a sharded module; `requirements` says what these
must have to be served. A `binding` describes what is served, and replaces the forward of the module through
`module_view`; `features` are what the module gets.
"""
