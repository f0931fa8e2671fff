"""The schema of the reference set: 16 keys, 10 dense columns, a list of labels."""

from freescale_tools.write.synth.presets import ReferenceColumns
from fsdata import Schema, Sequence


def reference_schema() -> Schema:
    names = ReferenceColumns()
    return Schema(
        sequences=(Sequence("uih", fields=names.sequence),),
        candidates=Sequence("candidates", fields=names.candidates),
        context=names.context,
        dense=names.dense,
        labels=(names.label,),
    )
