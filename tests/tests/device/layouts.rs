//! Products of f16 whose operands lie in many ways: transposed, cut out, repeated, computed, with scales of all elements.

use tallow_ir::Graph;
use tallow_ir::text::parse;

/// Rows, columns and inner extents fill no tile. What is to be loaded as it lies has rows of whole vectors, of eight elements.
const PRODUCTS: &[&str] = &[
    // The left operand along its rows, and a scale of all results.
    r#"graph "turned_left" {
  %0 = input "x" : f16[72,136]
  %1 = cast %0 : f32[72,136]
  %2 = permute %1 [1,0] : f32[136,72]
  %3 = input "w" : f16[72,264]
  %4 = cast %3 : f32[72,264]
  %5 = matmul %2 %4 : f32[136,264]
  %6 = input "scale" : f32[1,1]
  %7 = broadcast %6 : f32[136,264]
  %8 = mul %5 %7 : f32[136,264]
  return %8 as "y"
}
"#,
    // Both turned, in batches, with a scale of each.
    r#"graph "turned_both" {
  %0 = input "x" : f16[3,72,136]
  %1 = cast %0 : f32[3,72,136]
  %2 = permute %1 [0,2,1] : f32[3,136,72]
  %3 = input "w" : f16[3,104,72]
  %4 = cast %3 : f32[3,104,72]
  %5 = permute %4 [0,2,1] : f32[3,72,104]
  %6 = matmul %2 %5 : f32[3,136,104]
  %7 = input "scale" : f32[3,1,1]
  %8 = broadcast %7 : f32[3,136,104]
  %9 = mul %6 %8 : f32[3,136,104]
  return %9 as "y"
}
"#,
    // Parts of larger matrices that begin at whole vectors.
    r#"graph "aligned_parts" {
  %0 = input "x" : f16[150,104]
  %1 = slice %0 axis=1 start=16 len=72 : f16[150,72]
  %2 = slice %1 axis=0 start=5 len=140 : f16[140,72]
  %3 = cast %2 : f32[140,72]
  %4 = input "w" : f16[90,200]
  %5 = slice %4 axis=1 start=24 len=136 : f16[90,136]
  %6 = slice %5 axis=0 start=11 len=72 : f16[72,136]
  %7 = cast %6 : f32[72,136]
  %8 = matmul %3 %7 : f32[140,136]
  return %8 as "y"
}
"#,
    // And parts that do not.
    r#"graph "other_parts" {
  %0 = input "x" : f16[150,104]
  %1 = slice %0 axis=1 start=3 len=72 : f16[150,72]
  %2 = cast %1 : f32[150,72]
  %3 = input "w" : f16[72,201]
  %4 = slice %3 axis=1 start=1 len=136 : f16[72,136]
  %5 = cast %4 : f32[72,136]
  %6 = matmul %2 %5 : f32[150,136]
  return %6 as "y"
}
"#,
    // One right operand for all batches, of which the left one is read in another order.
    r#"graph "repeated" {
  %0 = input "x" : f16[100,3,72]
  %1 = cast %0 : f32[100,3,72]
  %2 = permute %1 [1,0,2] : f32[3,100,72]
  %3 = input "w" : f16[1,72,104]
  %4 = cast %3 : f32[1,72,104]
  %5 = broadcast %4 : f32[3,72,104]
  %6 = matmul %2 %5 : f32[3,100,104]
  return %6 as "y"
}
"#,
    // A left operand that no memory has, and a right one chosen by row.
    r#"graph "computed" {
  %0 = iota : f32[67]
  %1 = cos %0 : f32[67]
  %2 = cast %1 : f16[67]
  %3 = cast %2 : f32[67]
  %4 = reshape %3 : f32[1,67]
  %5 = broadcast %4 : f32[131,67]
  %6 = input "table" : f16[9,104]
  %7 = input "rows" : u32[67]
  %8 = gather %6 %7 axis=0 : f16[67,104]
  %9 = cast %8 : f32[67,104]
  %10 = matmul %5 %9 : f32[131,104]
  return %10 as "y"
}
"#,
];

/// The graphs.
pub fn products() -> Vec<Graph> {
    PRODUCTS.iter().map(|text| parse(text).unwrap_or_else(|e| panic!("{e}\n{text}"))).collect()
}
