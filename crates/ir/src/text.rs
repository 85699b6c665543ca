//! The text form: `parse(print(g)) == g`.
//!
//! One node a line, `%N = op operands attributes : types`; the types are redundant and checked. Symbols are
//! declared with their range before the first node. A fusion prints its body like any graph.

mod parse;
mod print;

pub use parse::{ParseError, parse};

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn round_trip_and_errors() {
        let text = r#"graph "t" {
  symbol seq <= 8
  %0 = input "x" : f32[seq,4]
  %1 = weight "w" : q8_0[2,32]
  %2 = dequantize %1 : f32[2,32]
  %3 = const -1.5 : f32[]
  %4 = broadcast %3 : f32[seq,4]
  %5 = fusion map %0 %4 : f32[seq,4], f32[seq,4] {
    symbol seq <= 8
    %0 = param 0 : f32[seq,4]
    %1 = param 1 : f32[seq,4]
    %2 = add %0 %1 : f32[seq,4]
    %3 = mul %2 %2 : f32[seq,4]
    return %2
    return %3
  }
  %6 = add %5.0 %5.1 : f32[seq,4]
  return %6 as "y ; \"z\""
}
"#;
        let bounded = text.replace("symbol seq <= 8", "symbol 2 <= seq <= 8");
        assert_eq!(parse(&bounded).expect("valid").to_string(), bounded);
        let graph = parse(text).expect("valid");
        assert_eq!(graph.to_string(), text);
        assert_eq!(parse(&graph.to_string()).as_ref(), Ok(&graph));
        for (from, to, line) in [
            ("add %5.0 %5.1", "add %5.0 %5.2", 16),
            ("seq <= 8\n  %0", "seq <= x\n  %0", 2),
            ("seq <= 8\n  %0", "9 <= seq <= 8\n  %0", 2),
            ("%3 = const -1.5 : f32[]", "%3 = const -1.5 : f32[2]", 6),
            ("add %5.0 %5.1", "sparkle %5.0", 16),
            ("  return %6 as \"y ; \\\"z\\\"\"\n}", "", 16),
        ] {
            let broken = text.replacen(from, to, 1);
            assert_ne!(broken, text);
            assert!(parse(&broken).is_err_and(|e| e.line >= line), "{from} -> {to}: {:?}", parse(&broken));
        }
    }
}
