"""The schema of the reference set: 16 keys, 10 dense columns, a list of labels."""

from freescale_tools.write.synth.presets import reference_columns
from fsdata import Schema, Sequence


def reference_schema() -> Schema:
    names = reference_columns()
    return Schema(
        sequences=(Sequence("uih", fields=names.sequence),),
        candidates=Sequence("candidates", fields=names.candidates),
        context=names.context,
        dense=names.dense,
        labels=(names.label,),
    )
