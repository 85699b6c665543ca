//! Which operands of a kernel its results may overwrite.
#![allow(clippy::unwrap_used)]

use tallow_ir::donation::in_place;
use tallow_ir::{Op, caps, passes, text};

/// `result <- operand` by the names of outputs and inputs, over all kernels of the graph.
fn pairs(body: &str) -> Vec<String> {
    let graph = text::parse(&format!("graph \"g\" {{\n{body}\n}}")).unwrap();
    let fused = passes::run(&graph, &caps::profile("lavapipe").unwrap(), &mut |_, _| {}).unwrap();
    let fused = fused.graph();
    let mut found = vec![];
    for (id, node) in fused.nodes() {
        let Op::Fusion(fusion) = &node.op else { continue };
        for (result, operand) in in_place(fusion) {
            let output = fused.outputs().iter().find(|o| o.value.node == id && o.value.result == result);
            let input = fused.op(node.operands[operand as usize]);
            if let (Some(output), Op::Input { name, .. }) = (output, input) {
                found.push(format!("{} <- {name}", output.name));
            }
        }
    }
    found.sort();
    found
}

#[test]
fn elementwise_results_may_overwrite_what_they_are_made_of() {
    let chain = "%0 = input \"x\" : f32[8,6]\n %1 = input \"q\" : f32[8,6]\n %2 = mul %0 %1 : f32[8,6]
        %3 = tanh %2 : f32[8,6]\n return %3 as \"y\"";
    assert_eq!(pairs(chain), ["y <- q", "y <- x"]);
    // The same elements in another shape.
    let reshaped = "%0 = input \"x\" : f32[8,6]\n %1 = reshape %0 : f32[48]\n %2 = neg %1 : f32[48]\n return %2 as \"y\"";
    assert_eq!(pairs(reshaped), ["y <- x"]);
}

#[test]
fn what_other_invocations_read_stays() {
    let bias = "%0 = input \"x\" : f32[8,6]\n %1 = input \"b\" : f32[6]\n %2 = broadcast %1 : f32[8,6]
        %3 = add %0 %2 : f32[8,6]\n return %3 as \"y\"";
    assert_eq!(pairs(bias), ["y <- x"]);
    let both_ways = "%0 = input \"x\" : f32[8,6]\n %1 = flip %0 axis=0 : f32[8,6]\n %2 = add %0 %1 : f32[8,6]
        return %2 as \"y\"";
    assert_eq!(pairs(both_ways), [""; 0]);
    let turned = "%0 = input \"x\" : f32[6,6]\n %1 = permute %0 [1,0] : f32[6,6]\n %2 = neg %1 : f32[6,6]
        return %2 as \"y\"";
    assert_eq!(pairs(turned), [""; 0]);
    let rows =
        "%0 = input \"x\" : f32[8,6]\n %1 = reduce_sum %0 axes=[1] : f32[8]\n %2 = reshape %1 : f32[8,1]
        %3 = broadcast %2 : f32[8,6]\n %4 = sub %0 %3 : f32[8,6]\n return %4 as \"y\"";
    assert_eq!(pairs(rows), [""; 0]);
}

#[test]
fn another_width_is_another_place() {
    let narrow = "%0 = input \"x\" : f32[8]\n %1 = cast %0 : f16[8]\n return %1 as \"y\"";
    assert_eq!(pairs(narrow), [""; 0]);
    let same = "%0 = input \"x\" : f32[8]\n %1 = cast %0 : u32[8]\n return %1 as \"y\"";
    assert_eq!(pairs(same), ["y <- x"]);
}

/// Results of one kernel are written in order, so what a later one reads must not be overwritten before.
#[test]
fn the_last_result_that_reads_it_overwrites() {
    let two = "%0 = input \"x\" : f32[8]\n %1 = input \"q\" : f32[8]\n %2 = mul %0 %1 : f32[8]\n %3 = neg %0 : f32[8]
        return %2 as \"first\"\n return %3 as \"last\"";
    assert_eq!(pairs(two), ["first <- q", "last <- x"]);
}

/// An index that says where a row is written is read, too, and after the results before.
#[test]
fn what_chooses_rows_is_read() {
    let graph = text::parse(
        "graph \"g\" {
  %0 = input \"at\" : u32[4]
  %1 = input \"rows\" : f32[4,1]
  %2 = state \"s\" : f32[8,1]
  %3 = fusion map %0 %1 %2 : u32[4], f32[8,1] {
    %0 = param 0 : u32[4]
    %1 = param 1 : f32[4,1]
    %2 = param 2 : f32[8,1]
    %3 = bit_not %0 : u32[4]
    %4 = state_update_rows %2 %1 %0 axis=0 at=[0,0] : f32[8,1]
    return %3
    return %4
  }
  return %3.0 as \"y\"
  return %3.1 as \"s\"
}",
    )
    .unwrap();
    let Some(Op::Fusion(fusion)) = graph.nodes().map(|(_, n)| &n.op).next_back() else { panic!("no fusion") };
    assert_eq!(in_place(fusion), []);
}

/// A row kernel reduces each row before it writes the elements, so a result may overwrite what was reduced.
#[test]
fn a_row_overwrites_what_it_reduces() {
    let rows = |n: usize, last: &str| {
        pairs(&format!(
            "%0 = input \"x\" : f32[8,{n}]\n %1 = reduce_max %0 axes=[1] : f32[8]\n %2 = reshape %1 : f32[8,1]
            %3 = broadcast %2 : f32[8,{n}]\n %4 = sub %0 %3 : f32[8,{n}]\n %5 = exp %4 : f32[8,{n}]\n {last}"
        ))
    };
    assert_eq!(rows(64, "return %5 as \"y\""), ["y <- x"]);
    // Two rows lie in one vector of 16 bytes.
    assert_eq!(rows(63, "return %5 as \"y\""), [""; 0]);
    // The one that reads it last.
    let two =
        "%6 = neg %0 : f32[8,64]\n %7 = mul %6 %3 : f32[8,64]\n return %5 as \"y\"\n return %7 as \"z\"";
    assert_eq!(rows(64, two), ["z <- x"]);
    // Another invocation may have written what an element reads of its row.
    let elsewhere = "%6 = input \"at\" : u32[64]\n %7 = gather %0 %6 axis=1 : f32[8,64]
        %8 = mul %5 %7 : f32[8,64]\n return %8 as \"y\"";
    assert_eq!(rows(64, elsewhere), [""; 0]);
    // A result per row, computed after the elements are written.
    let per_row =
        "%6 = input \"at\" : u32[1]\n %7 = gather %0 %6 axis=1 : f32[8,1]\n %8 = mul %7 %2 : f32[8,1]
        return %5 as \"y\"\n return %8 as \"z\"";
    assert_eq!(rows(64, per_row), [""; 0]);
}
