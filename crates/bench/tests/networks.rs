//! Networks of many seeds: they have types, and a device computes what the interpreter does.

use std::collections::BTreeSet;

use tallow_bench::networks::{
    FAMILIES, PROGRAMS, Scale, Source, describe, flops, generate, graph, parse_seeds,
};

#[test]
fn two_hundred_seeds_trace_at_either_scale() {
    let mut names = BTreeSet::new();
    for seed in 0..200 {
        for scale in [Scale::Full, Scale::Tiny] {
            let network = generate(seed, scale);
            let traced = graph(&network).unwrap_or_else(|error| panic!("{}: {error}", network.name));
            let bytes = |spec: &tallow_bench::networks::TensorSpec| {
                spec.shape.iter().product::<usize>() * spec.dtype.size().unwrap()
            };
            let inputs: usize = network.inputs.iter().map(bytes).sum();
            assert!(inputs < 1 << 30, "{} reads {inputs} bytes", network.name);
            assert!(flops(&traced) < 2_000_000_000_000, "{}: {} flops", network.name, flops(&traced));
            names.insert(network.name);
        }
    }
    assert_eq!(names.len(), 200);
    assert!(FAMILIES.len() >= 20);
}

#[test]
fn a_tiny_network_has_the_structure_of_the_full_one() {
    for seed in 0..100 {
        let [full, tiny] = [Scale::Full, Scale::Tiny].map(|scale| generate(seed, scale));
        let args = |network: &tallow_bench::networks::Network| {
            network.steps.iter().map(|step| step.args.clone()).collect::<Vec<_>>()
        };
        // Networks that are unrolled have fewer steps.
        let unrolled = ["lstm", "gru", "ssm"].iter().any(|family| full.name.contains(family));
        assert!(unrolled || args(&full) == args(&tiny), "{}", full.name);
    }
}

#[test]
fn programs_have_one_structure_at_either_scale() {
    let mut names = BTreeSet::new();
    for program in PROGRAMS {
        let [full, tiny] = [Scale::Full, Scale::Tiny].map(|scale| Source::Program(program).network(scale));
        graph(&full).unwrap_or_else(|error| panic!("{}: {error}", full.name));
        let args = |network: &tallow_bench::networks::Network| {
            network.steps.iter().map(|step| step.args.clone()).collect::<Vec<_>>()
        };
        assert_eq!(args(&full), args(&tiny), "{}", full.name);
        names.insert(full.name);
    }
    assert_eq!(names.len(), PROGRAMS.len());
}

#[test]
fn descriptions_have_attributes_by_name_and_results_at_the_tiny_scale() {
    let text = describe(&[Source::Seed(20)], Scale::Tiny).unwrap();
    let all: serde_json::Value = serde_json::from_str(&text).unwrap();
    let network = &all[0];
    assert_eq!(network["name"], "network/softmax-regression/20");
    assert_eq!(network["steps"][0], serde_json::json!({"op": "softmax", "axis": 1, "args": [1]}));
    assert_eq!(network["expected"].as_array().unwrap().len(), network["outputs"].as_array().unwrap().len());
    assert!(!describe(&[Source::Seed(20)], Scale::Full).unwrap().contains("expected"));
}

#[test]
fn seeds_are_numbers_and_ranges() {
    assert_eq!(parse_seeds("1,3..5, 9").unwrap(), [1, 3, 4, 5, 9]);
    for wrong in ["", "x", "1..", "5..1"] {
        assert!(parse_seeds(wrong).unwrap_err().to_string().contains("--seeds"), "{wrong}");
    }
}

#[cfg(feature = "vulkan")]
#[test]
fn a_device_computes_what_the_interpreter_does() {
    use tallow_runtime::RuntimeOptions;
    use tallow_runtime::vulkan::Context;

    let context = match RuntimeOptions::from_env().and_then(|options| Context::new(&options)) {
        Ok(context) => context,
        Err(error) => {
            let required = std::env::var("REQUIRE_VULKAN").is_ok_and(|value| value == "1");
            assert!(!required, "no Vulkan device: {error}");
            eprintln!("skipped: no Vulkan device ({error})");
            return;
        }
    };
    // Software takes seconds to compile the kernels of a network.
    let is_full = std::env::var("TALLOW_FULL").is_ok_and(|value| value == "1");
    let default = if context.caps().is_software() && !is_full { "0..19" } else { "0..39" };
    let seeds = std::env::var("TALLOW_SEEDS").unwrap_or_else(|_| default.into());
    let mut wrong = vec![];
    let seeds = parse_seeds(&seeds).unwrap().into_iter().map(Source::Seed);
    for source in seeds.chain(PROGRAMS.iter().map(Source::Program)) {
        let network = source.network(Scale::Tiny);
        match tallow_bench::networks::compare(&context, &network) {
            Ok(found) => assert!(found.elements > 0, "{}", network.name),
            Err(error) => wrong.push(format!("{}: {error}", network.name)),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
