//! Products of packed weights with several rows of activations. An invocation unpacks the weights of several columns,
//! and then multiplies each row with all of them, so that it reads its part of a row from shared memory once for them.

use minijinja::{Value as Hole, context};
use tallow_ir::dot::Packing;
use tallow_ir::form::Segment;

use super::columns::ColumnLoop;
use super::items::read_blocks;
use super::parts::Part;
use super::plan::Matvec;
use super::weights::{prefetch_next, unpack};
use crate::emit::Emitter;
use crate::error::CodegenError;
use crate::lines::{block, unrolled};

/// For each part of the weights, the template's holes: declarations of the unpacked weights of all columns, lines that
/// unpack one column, and lines that multiply them with all rows.
pub(crate) fn packed_columns(
    e: &mut Emitter<'_>,
    mv: &Matvec<'_>,
    segment: &Segment,
    (column_loop, parts): &(ColumnLoop, Vec<Part>),
    last: &str,
) -> Result<Vec<Hole>, CodegenError> {
    let mixed = parts.iter().any(|part| part.packing != Packing::Quarters);
    let (accs, columns) = (segment.anchors.len() as u32 * mv.m, column_loop.at_once);
    let at = column_loop.index().unwrap_or("0");
    let mut holes = vec![];
    for part in parts {
        let (ty, quads) = (part.scales(), part.packing.elements() / 16);
        let weights = [
            format!("// %{} = {}", part.anchor.0, e.body.node_text(part.anchor)),
            format!("ivec4 bytes[{columns}][{quads}];"),
            format!("{ty} scales[{columns}];"),
        ];
        let next = prefetch_next(e, mv, (column_loop, part), last)?;
        let unpack = unpack(e, mv, part, &part.buffer(column_loop.counter(), column_loop.slots))?;
        let loads =
            if column_loop.depth < column_loop.slots { [next, unpack] } else { [unpack, next] }.concat();
        let k0 = vec![format!("const uint k0 = {};", part.k0)];
        let keep = vec![format!("bytes[{at}] = q;"), format!("scales[{at}] = w;")];
        let of_column =
            vec![format!("const ivec4 q[{quads}] = bytes[{at}];"), format!("const {ty} w = scales[{at}];")];
        let product = [of_column, part.product(&column_loop.acc(accs, mv.m, part.number), mixed)].concat();
        let product = match column_loop.index() {
            Some(index) => block(&unrolled(index, columns), product),
            None => product,
        };
        let products = block(&unrolled("m", mv.m), [read_blocks(mv, column_loop, parts), product].concat());
        holes.push(context! {
            weights => weights.join("\n"),
            unpack => block("", [k0, loads, keep].concat()).join("\n"),
            products => column_loop.within_row(products).join("\n"),
        });
    }
    Ok(holes)
}
