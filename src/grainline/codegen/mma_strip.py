"""The strip epilogue: row-wise code over the finished rows of a strip, by the emitter of row programs.

The product becomes a load from the strip in scratch, and what is left is an ordinary program of one row at a time.
"""

from __future__ import annotations

from grainline.base.dtypes import I64
from grainline.codegen.emit import Reg
from grainline.codegen.evaluate import Evaluator
from grainline.codegen.mma_text import KernelText
from grainline.codegen.rows import RowBody
from grainline.plan.mma import Realisation, epilogue_program, row_mapping, scratch_layout
from grainline.plan.row_schedule import schedule_rows


def rows_function(kernel: KernelText, plan: Realisation) -> None:
    """`i32 @rows(args, scratch, strip, first, count, batch coordinates...)`: the epilogue of `count` rows."""
    product = plan.product
    fixed = [("ptr", "scratch"), ("ptr", "strip"), ("i64", "first"), ("i64", "count")]
    w = kernel.internal("rows", [*fixed, *(("i64", f"x{i}") for i in range(len(product.batch)))], "i32")
    scratch = scratch_layout(plan)
    program, strip, row = epilogue_program(product, scratch.strip_row)
    w.arguments.bind(strip, "%strip")
    mapping = row_mapping(product.n)
    evaluator = Evaluator(w.function, program, w.arguments)
    evaluator.enter({axis: Reg(f"%x{i}", I64) for i, axis in enumerate(product.batch)})
    spills = w.at("%scratch", w.extent(scratch.spills))
    body = RowBody(evaluator, schedule_rows(program, product.n), mapping.width, mapping.unroll, spills)
    body.prepare()

    def one(index: str) -> None:
        evaluator.enter({row: Reg(index, I64), product.m: Reg(w.add("%first", index), I64)})
        body.emit()
        evaluator.leave()

    w.loop("0", "%count", 1, one)
    w.function.do("ret i32 0")
