//! Prints what is compiled of a graph in text form: kernels, plan, decisions, table; with a budget, in so many bytes of
//! intermediate values.
#![allow(clippy::print_stdout)]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: plan FILE.ir [PROFILE [BUDGET]]")?;
    let profile = std::env::args().nth(2).unwrap_or_else(|| "lavapipe".into());
    let caps = tallow_ir::caps::profile(&profile).ok_or("unknown profile")?;
    let graph = tallow_ir::text::parse(&std::fs::read_to_string(path)?)?;
    let budget = std::env::args().nth(3).map(|bytes| bytes.parse()).transpose()?;
    let options = tallow_codegen::Options { budget, ..Default::default() };
    let choose = &mut |_: &tallow_ir::Graph| tallow_codegen::Schedules::default();
    let module = tallow_codegen::compile_with(&graph, &caps, &options, choose, &mut |_, _| {})?;
    println!("{}", module.explain());
    for (i, entry) in module.table.entries().iter().enumerate() {
        println!("table[{i}] = {entry}");
    }
    Ok(())
}
