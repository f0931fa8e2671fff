"""Access to memory by address (numba, nogil). Addresses are int64 and trusted.

Numba has no pointers, unaligned loads, prefetches or nontemporal stores: these intrinsics emit the LLVM instructions.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def pointer(typing_context, address):
    """int64 address -> void pointer."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())

    return types.voidptr(types.int64), generate


@intrinsic
def word_at(typing_context, address):
    """The uint64 of the 8 bytes, little-endian, at any int64 address."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(64)
        # align=1: without it LLVM assumes an aligned address, and numba has no unaligned load.
        return builder.load(builder.inttoptr(arguments[0], word.as_pointer()), align=1)

    return types.uint64(types.int64), generate


@intrinsic
def prefetch_line(typing_context, address):
    """Prefetch the cache line of any int64 address. Only a hint: the address need not be valid."""

    def generate(context, builder, signature, arguments):
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # 0: for reading; 2: locality, into the second-level cache; 1: data, not instructions.
        builder.call(prefetch, [builder.inttoptr(arguments[0], byte), number(0), number(2), number(1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def stream(typing_context, address, value):
    """Write an int64 to an aligned address, past the cache: a line that is written completely is not read first."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(64)
        store = builder.store(arguments[1], builder.inttoptr(arguments[0], word.as_pointer()), align=8)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def write_sums(typing_context, address, number, word):
    """Write 8 uint32 to any int64 address: `number` plus each of the 8 bytes of `word`."""

    def generate(context, builder, signature, arguments):
        eight = ir.VectorType(ir.IntType(32), 8)
        # The number in all 8 lanes: put into the first one, then shuffled with the mask 0, 0, ...
        lanes = builder.insert_element(ir.Constant(eight, ir.Undefined), arguments[1], ir.IntType(32)(0))
        lanes = builder.shuffle_vector(lanes, ir.Constant(eight, ir.Undefined), ir.Constant(eight, None))
        addends = builder.zext(builder.bitcast(arguments[2], ir.VectorType(ir.IntType(8), 8)), eight)
        builder.store(builder.add(lanes, addends), builder.inttoptr(arguments[0], eight.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.int64, types.uint32, types.uint64), generate
