//! A device that compiles and runs nothing, made up by Mesa's RADV.
//!
//! `RADV_FORCE_FAMILY` counts before the first device is opened, so that the test runs itself as a child with it.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::process::Command;

use tallow_codegen::compile_spirv;
use tallow_ir::caps::OptionalFeature;
use tallow_runtime::vulkan::{CompileOnly, Context, PipelineDesc};
use tallow_runtime::{Error, RuntimeOptions};

/// Set in the child.
const CHILD: &str = "TALLOW_COMPILE_ONLY_CHILD";
/// What the child says where there is no driver.
const NO_DRIVER: &str = "no RADV here";
/// What the child says at its end.
const DONE: &str = "the child is done";

const KERNEL: &str = "#version 460
layout(local_size_x = 64) in;
layout(set = 0, binding = 0) buffer Data { float data[]; };
shared float sums[64];
void main() {
    sums[gl_LocalInvocationIndex] = data[gl_GlobalInvocationID.x];
    barrier();
    data[gl_GlobalInvocationID.x] = sums[63u - gl_LocalInvocationIndex];
}
";

fn options() -> RuntimeOptions {
    RuntimeOptions { device: Some("Null hardware".into()), ..RuntimeOptions::default() }
}

#[test]
fn pipelines_compile_for_hardware_that_is_not_here() {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "child", "--nocapture"]).env(CHILD, "1").env("RADV_FORCE_FAMILY", "gfx1100");
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if text.contains(NO_DRIVER) || text.contains("Unknown family") {
        assert!(!std::env::var("REQUIRE_RADV").is_ok_and(|x| x == "1"), "REQUIRE_RADV=1, but: {text}");
        return eprintln!("skipped: {text}");
    }
    assert!(output.status.success() && text.contains(DONE), "{text}");
}

/// Run by the test above; by itself it does nothing.
#[test]
fn child() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let device = match CompileOnly::new(&options()) {
        Ok(device) => device,
        Err(error) => return eprintln!("{NO_DRIVER}: {error}"),
    };
    assert!(device.has_statistics(), "{device:?}");
    // It has no hardware to run anything.
    let refused = Context::new(&options()).unwrap_err();
    assert!(matches!(refused, Error::UnsuitableDevice { .. }), "{refused}");

    let (modules, _) = compile_spirv(&[("reverse", KERNEL)], None).unwrap();
    let desc = PipelineDesc {
        name: "reverse",
        spirv: &modules[0],
        bindings: 1,
        push_bytes: 0,
        required_subgroup_size: None,
    };
    let any = device.compile(&desc).unwrap();
    let found = any.resources;
    assert!(found.vgprs > Some(0) && found.sgprs > Some(0) && found.code_bytes > Some(0), "{any:?}");
    assert!(found.waves > Some(0) && found.shared_memory_bytes >= Some(64 * 4), "{any:?}");
    assert_eq!((found.spilled(), found.scratch_bytes), (0, Some(0)), "{any:?}");
    for lanes in [32, 64] {
        let sized = device.compile(&PipelineDesc { required_subgroup_size: Some(lanes), ..desc }).unwrap();
        assert_eq!(sized.resources.subgroup_size, Some(u64::from(lanes)), "{sized:?}");
    }
    let absent = device.compile(&PipelineDesc { required_subgroup_size: Some(128), ..desc });
    assert!(matches!(absent, Err(Error::BadPipeline { .. })), "{absent:?}");

    // What is taken away is not enabled either.
    let disable = vec![OptionalFeature::SubgroupSize];
    let less = CompileOnly::new(&RuntimeOptions { disable, ..options() }).unwrap();
    assert!(device.caps().subgroup_size_control && !less.caps().subgroup_size_control);
    let refused = less.compile(&PipelineDesc { required_subgroup_size: Some(32), ..desc });
    assert!(matches!(refused, Err(Error::BadPipeline { .. })), "{refused:?}");
    less.compile(&desc).unwrap();
    eprintln!("{DONE}");
}
