//! Prints the kernels of a graph in text form.
#![allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: glsl FILE.ir [PROFILE]")?;
    let profile = std::env::args().nth(2).unwrap_or_else(|| "lavapipe".into());
    let caps = tallow_ir::caps::profile(&profile).ok_or("unknown profile")?;
    let graph = tallow_ir::text::parse(&std::fs::read_to_string(path)?)?;
    let fused = tallow_ir::passes::run(&graph, &caps, &mut |_, _| {})?;
    let mut table = tallow_codegen::Table::default();
    for (_, node) in fused.graph().nodes() {
        if let tallow_ir::Op::Fusion(fusion) = &node.op {
            println!("{}", tallow_codegen::kernel(fusion, &caps, &mut table)?.glsl);
        }
    }
    Ok(())
}
