"""The HTML page that a command writes beside its JSON document.

A command fills `blocks` with figures written by `numbers` and coloured by `theme`; `assemble` joins the parts
of a document and the terms of `glossary`, `page` makes HTML of them, `write` puts both files into the folder.
"""
