//! Every file below `filetests/`, tested as its header says (see `tallow_tests::case`).
//!
//! Snapshots lie beside their file; after a change that is meant, `cargo insta review` accepts them.

use std::path::Path;
use std::sync::Arc;

use tallow_codegen::{
    Copies, Module, Options, Schedule, Schedules, compile_scheduled, compile_with, schedules,
};
use tallow_ir::text::parse;
use tallow_ir::{DeviceCaps, Fusion, Graph, Op, caps, gradient, passes, verify, weight_copies};
use tallow_reference::{Array, Env, evaluate};
use tallow_tests::{Case, Test, Tolerance, compare};

#[test]
fn filetests() {
    insta::glob!("../filetests", "**/*.ir", check);
}

fn check(path: &Path) {
    let case = Case::read(path);
    for test in &case.tests {
        match test {
            Test::Print => print(&case),
            Test::Verify => check_verifier(&case),
            Test::Run(tolerance) => run(&case, *tolerance),
            Test::Gradient { of, wrt, tolerance } => gradients(&case, of, wrt, *tolerance),
            Test::Pass { name, profile } => pass(&case, name, profile),
            Test::Fuse { profile } => fuse(&case, profile),
            Test::Plan { profile } => plan(&case, profile),
            Test::Copies { profile } => copies(&case, profile),
            Test::Remat { profile, budget } => remat(&case, profile, *budget),
            Test::Glsl { profile, choice } => glsl(&case, profile, *choice),
        }
    }
}

fn graph(case: &Case) -> Graph {
    case.parse().unwrap_or_else(|e| panic!("{}: {e}", case.path.display()))
}

fn profile(name: &str) -> DeviceCaps {
    caps::profile(name).unwrap_or_else(|| panic!("no profile is called '{name}'"))
}

/// Compares with `<file>.<kind>.snap` beside the file.
fn snapshot(case: &Case, kind: &str, text: &str) {
    let stem = case.path.file_stem().expect("a file").to_string_lossy();
    let name = format!("{stem}.{kind}");
    let folder = case.path.parent().expect("a file lies in a folder");
    insta::with_settings!({
        snapshot_path => folder,
        prepend_module_to_snapshot => false,
        snapshot_suffix => "",
        omit_expression => true,
    }, { insta::assert_snapshot!(name, text) });
}

/// Printing gives the text back, and parsing that gives the graph back.
fn print(case: &Case) {
    let graph = graph(case);
    assert_eq!(graph.to_string(), case.code());
    assert_eq!(parse(&graph.to_string()).as_ref(), Ok(&graph));
}

/// The errors found are those noted, each at its line.
fn check_verifier(case: &Case) {
    let found: Vec<(usize, String)> = match case.parse() {
        Err(e) => vec![(e.line, e.message)],
        Ok(graph) => match verify(graph) {
            Ok(_) => vec![],
            Err(all) => all.iter().map(|d| (line_of(case, &d.location), d.message.clone())).collect(),
        },
    };
    let matches = |(line, message): &(usize, String), noted: &tallow_tests::case::Expected| {
        *line == noted.line && message.contains(&noted.message)
    };
    for error in &found {
        assert!(case.errors.iter().any(|n| matches(error, n)), "not noted: line {}: {}", error.0, error.1);
    }
    for noted in &case.errors {
        assert!(found.iter().any(|f| matches(f, noted)), "not found: {noted:?}, but {found:?}");
    }
}

/// The line that defines the node at `%1` or `%1 body %2`.
fn line_of(case: &Case, location: &str) -> usize {
    let mut lines = (1..).zip(case.text.lines());
    let mut line = 0;
    // The body of a node follows the node, so each part is looked for below the one before.
    for part in location.split(" body ") {
        let found = lines.by_ref().find(|(_, text)| text.trim_start().starts_with(&format!("{part} = ")));
        line = found.unwrap_or_else(|| panic!("no line defines {location}")).0;
    }
    line
}

/// Outputs and states after a run are as expected; without expectations, the run succeeds.
fn run(case: &Case, tolerance: Tolerance) {
    let graph = graph(case);
    let mut env = case.inputs(&graph).env();
    let outputs = evaluate(&graph, &mut env).unwrap_or_else(|e| panic!("{e}"));
    expect(case, &outputs, &env, tolerance);
}

/// Outputs and states have the elements that the header expects.
fn expect(case: &Case, outputs: &[(String, Array)], env: &Env, tolerance: Tolerance) {
    for (name, values) in &case.expect {
        let got = outputs.iter().find(|(n, _)| n == name).map(|(_, a)| a).or(env.states.get(name));
        let got = got.unwrap_or_else(|| panic!("no output or state is called {name:?}"));
        let expected =
            Array::from_f64s(got.ty, &got.shape, values).unwrap_or_else(|e| panic!("{name:?}: {e}"));
        compare(&expected, got, tolerance).unwrap_or_else(|why| panic!("{name:?}: {why}"));
    }
}

/// The graph with gradients, as simple as the passes make it; with the expected values; and in f64 equal to differences,
/// at a random point. If an error is noted, differentiating gives it, and its path ends at that line.
fn gradients(case: &Case, of: &[String], wrt: &[String], tolerance: Tolerance) {
    let (graph, name) = (graph(case), case.path.display());
    let of: Vec<&str> = of.iter().map(String::as_str).collect();
    let wrt: Vec<&str> = wrt.iter().map(String::as_str).collect();
    let made = match (gradient(&graph, &of, &wrt), &case.errors[..]) {
        (Ok(made), []) => made,
        (Err(error), [noted]) => {
            let (error, is_at) = (error.to_string(), |id: &&str| line_of(case, id) == noted.line);
            let id = error.rsplit(' ').find(|word| word.starts_with('%'));
            assert!(error.contains(&noted.message) && id.as_ref().is_none_or(is_at), "{name}: {error}");
            return;
        }
        (Ok(_), noted) => panic!("{name}: has gradients, but {noted:?}"),
        (Err(error), _) => panic!("{name}: {error}"),
    };
    let made = verify(made).unwrap_or_else(|found| panic!("{name}: {found:?}")).into_graph();
    let env = case.inputs(&made).env();
    let run = |graph: &Graph| evaluate(graph, &mut env.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    let values = run(&made);
    expect(case, &values, &env, tolerance);
    let simple = ["dead_code", "fold_constants", "simplify", "dead_code"].iter().fold(made, |graph, pass| {
        let pass = passes::PASSES.iter().find(|p| p.name == *pass).expect("a pass");
        (pass.run)(&graph, &profile("minimum")).unwrap_or_else(|e| panic!("{name}: {e}"))
    });
    for ((output, want), (_, got)) in values.iter().zip(&run(&simple)) {
        compare(want, got, Tolerance::Bits)
            .unwrap_or_else(|why| panic!("{name}, simplified: {output}: {why}"));
    }
    tallow_tests::gradients::check(&graph, 0).unwrap_or_else(|why| panic!("{name}: {why}"));
    snapshot(case, "gradient", &simple.to_string());
}

/// The graph after one pass.
fn pass(case: &Case, name: &str, device: &str) {
    let pass = passes::PASSES.iter().find(|p| p.name == name);
    let pass = pass.unwrap_or_else(|| panic!("no pass is called '{name}'"));
    let after = (pass.run)(&graph(case), &profile(device)).unwrap_or_else(|e| panic!("{e}"));
    let after = verify(after).unwrap_or_else(|found| panic!("{found:?}"));
    let kind = if device == "minimum" { name.to_string() } else { format!("{name}.{device}") };
    snapshot(case, &kind, &after.graph().to_string());
}

fn compile(case: &Case, device: &str) -> Module {
    tallow_codegen::compile(&graph(case), &profile(device)).unwrap_or_else(|e| panic!("{e}"))
}

/// The graph after all passes, and what the fuser decided.
fn fuse(case: &Case, device: &str) {
    let module = compile(case, device);
    let decisions: String = module.decisions.iter().map(|d| format!("; {d}\n")).collect();
    snapshot(case, &format!("fuse.{device}"), &format!("{}{decisions}", module.graph.graph()));
}

/// Dispatches, barriers and offsets.
fn plan(case: &Case, device: &str) {
    let module = compile(case, device);
    snapshot(case, &format!("plan.{device}"), &module.plan.text(&module.program).to_string());
}

/// The graph whose copies of weights are made once, and the copies. Together they compute what the graph does.
fn copies(case: &Case, device: &str) {
    let (graph, choose) = (graph(case), &mut |_: &Graph| Schedules::default());
    let options = Options { copies: Copies::Once, budget: None };
    let module = compile_with(&graph, &profile(device), &options, choose, &mut |_, _| {});
    let module = module.unwrap_or_else(|e| panic!("{e}"));
    let mut env = case.inputs(&graph).env();
    let want = evaluate(&graph, &mut env.clone()).unwrap_or_else(|e| panic!("{e}"));
    let mut text = module.graph.graph().to_string();
    for copy in &module.weight_copies {
        let Some(source) = env.weights.get(&copy.source) else { panic!("no weight {:?}", copy.source) };
        let seen =
            copy.graph.nodes().find(|(_, node)| node.op.is_leaf()).map(|(_, node)| &node.types[0].shape);
        let extents = seen.and_then(|shape| shape.eval(&env.symbols)).expect("a constant shape");
        let source = Array { shape: extents, ..(**source).clone() };
        let mut alone = Env::default();
        alone.weights.insert(weight_copies::SOURCE.into(), Arc::new(source));
        let made = evaluate(&copy.graph, &mut alone).unwrap_or_else(|e| panic!("{e}"));
        env.weights.insert(copy.name.clone(), Arc::new(made[0].1.clone()));
        text += &format!(
            "\n; {:?} : {} is copied from {:?} once\n{}",
            copy.name, copy.ty, copy.source, copy.graph
        );
    }
    let got = evaluate(module.graph.graph(), &mut env).unwrap_or_else(|e| panic!("{e}"));
    for ((name, want), (_, got)) in want.iter().zip(&got) {
        compare(want, got, Tolerance::Values).unwrap_or_else(|why| panic!("{name:?}: {why}"));
    }
    snapshot(case, &format!("copies.{device}"), &text);
}

/// The graph whose kernels run again to fit a budget, with its levels. It computes what the graph does.
fn remat(case: &Case, device: &str, budget: u64) {
    let (graph, choose) = (graph(case), &mut |_: &Graph| Schedules::default());
    let options = Options { copies: Copies::EachRun, budget: Some(budget) };
    let module = compile_with(&graph, &profile(device), &options, choose, &mut |_, _| {});
    let module = module.unwrap_or_else(|e| panic!("{e}"));
    let inputs = case.inputs(&graph);
    let of = |graph: &Graph| evaluate(graph, &mut inputs.env()).unwrap_or_else(|e| panic!("{e}"));
    for ((name, want), (_, got)) in of(&graph).iter().zip(&of(module.graph.graph())) {
        compare(want, got, Tolerance::Bits).unwrap_or_else(|why| panic!("{name:?}: {why}"));
    }
    let remat = module.remat.unwrap_or_else(|| panic!("{} bytes suffice", module.plan.arena.bytes));
    let levels: Vec<String> = module.plan.levels.iter().map(|level| format!("{level:?}")).collect();
    let (bytes, levels) = (module.plan.arena.bytes, levels.join(" "));
    let line =
        format!("; {bytes} of {} bytes, {} kernels run again, levels {levels}\n", remat.bytes, remat.runs);
    snapshot(case, &format!("remat.{device}"), &format!("{}{line}", module.graph.graph()));
}

/// All distinct kernels, one after the other.
fn glsl(case: &Case, device: &str, choice: Option<usize>) {
    let Some(number) = choice else {
        let kernels = compile(case, device).kernels;
        let text: String = kernels.iter().map(|k| format!("// ==== {}\n{}\n", k.name, k.glsl)).collect();
        return snapshot(case, &format!("glsl.{device}"), &text);
    };
    let (caps, name) = (profile(device), case.path.display());
    let mut text = String::new();
    let mut choose = |fused: &Graph| {
        let fusions = fused.nodes().filter_map(|(_, node)| match &node.op {
            Op::Fusion(fusion) => Some((**fusion).clone()),
            _ => None,
        });
        let nth = |fusion: Fusion| {
            let all = schedules(&fusion, &caps).unwrap_or_else(|e| panic!("{name}: {e}"));
            Some((fusion, *all.get(number)?))
        };
        let chosen: Vec<(Fusion, Schedule)> = fusions.filter_map(nth).collect();
        text = chosen.iter().map(|(_, schedule)| format!("// ==== {schedule}\n")).collect();
        chosen.into_iter().collect()
    };
    let module = compile_scheduled(&graph(case), &caps, &mut choose, &mut |_, _| {});
    let module = module.unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(!text.is_empty(), "{name}: no choice {number}");
    let kernels: String =
        module.kernels.iter().map(|k| format!("// ==== {}\n{}\n", k.name, k.glsl)).collect();
    snapshot(case, &format!("glsl.{device}.choice{number}"), &(text + &kernels));
}
