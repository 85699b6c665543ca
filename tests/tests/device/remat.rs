//! Kernels that run again to fit a budget for intermediate values.

use tallow::nn::optim::{AdamW, Optimizer, ParamsAdamW};
use tallow::nn::{loss::mse, ops::softmax};
use tallow::{DType, Device, Input, Remat, Result, Tensor, TrainOptions, TrainStep, Var, train_step};
use tallow_codegen::{Options, Schedules, compile, compile_with};
use tallow_runtime::executable::Compiled;
use tallow_tests::random_inputs;
use tallow_tests::training::training_step;

use crate::choices::{context, run_compiled};
use crate::differential::Expected;
use crate::harness::device;

/// Random steps that fit a budget.
const GRAPHS: usize = 6;

/// Training steps of random layers, within the least of some budgets that they fit.
#[test]
fn random_steps_within_a_budget_give_what_the_interpreter_gives() {
    let Some(context) = context(false, None) else { return };
    let mut fitted = 0;
    for seed in 500..700 {
        let graph = training_step(seed).unwrap();
        let inputs = random_inputs(&graph, seed);
        let bytes = compile(&graph, context.caps()).unwrap().plan.arena.bytes;
        // Budgets are tried without shaders first.
        let fits = |budget: &u64| {
            let options = Options { budget: Some(*budget), ..Options::default() };
            compile_with(&graph, context.caps(), &options, &mut |_| Schedules::new(), &mut |_, _| {}).is_ok()
        };
        let Some(budget) = [bytes / 2, bytes * 3 / 4, bytes * 9 / 10].into_iter().find(fits) else {
            continue;
        };
        let compiled = Compiled::within(&context, &graph, Some(budget)).unwrap();
        if compiled.module().remat.is_none() {
            continue;
        }
        let got = run_compiled(&context, &compiled, &graph, &inputs).unwrap();
        let wrong = Expected::of(&graph, &inputs).differences(&got);
        assert!(wrong.is_empty(), "seed {seed}:\n{}\n{}", wrong.join("\n"), compiled.module().graph.graph());
        fitted += 1;
        if fitted == GRAPHS {
            return;
        }
    }
    panic!("{fitted} graphs fitted a budget");
}

const WIDTH: usize = 48;
const ROWS: usize = 200;

/// A network of layers with a second result each, whose steps are compiled with `remat`.
struct Net {
    vars: Vec<Var>,
    step: TrainStep,
}

impl Net {
    fn new(device: &Device, remat: Remat) -> Result<Net> {
        let matrix = |layer: usize| {
            let at = |i: usize| (((i * 37 + layer * 11) % 101) as f32 / 101.0 - 0.5) * 0.3;
            Var::from_vec((0..WIDTH * WIDTH).map(at).collect::<Vec<_>>(), (WIDTH, WIDTH), device)
        };
        let vars: Vec<Var> = (0..6).map(matrix).collect::<Result<_>>()?;
        let mut adam = AdamW::new(vars.clone(), ParamsAdamW::default())?;
        let input = |name: &str| Input::new(name, DType::F32, (ROWS, WIDTH));
        let options = TrainOptions::default().clip_norm(1.0).remat(remat);
        let step = train_step(device, &[input("x"), input("y")], &vars, &mut adam, options, |batch| {
            let mut x = batch[0].clone();
            for (layer, w) in vars.iter().enumerate() {
                let y = x.matmul(w)?;
                let y = if layer % 3 == 2 { softmax(&y, 1)? } else { y.gelu()? };
                x = x.add(&y)?;
            }
            mse(&x, &batch[1])
        })?;
        Ok(Net { vars, step })
    }

    /// Losses of some steps, then all parameters.
    fn train(&self, device: &Device) -> Result<Vec<Vec<f32>>> {
        let at = |i: usize| ((i * 7919) % 1000) as f32 / 1000.0;
        let x = Tensor::from_vec((0..ROWS * WIDTH).map(at).collect::<Vec<_>>(), (ROWS, WIDTH), device)?;
        let y = x.affine(-0.5, 0.25)?;
        let losses = (0..4).map(|_| self.step.run(&[&x, &y])?.loss.to_scalar());
        let mut all = vec![losses.collect::<Result<Vec<f32>>>()?];
        for var in &self.vars {
            all.push(var.flatten_all()?.to_vec1()?);
        }
        Ok(all)
    }

    /// Bytes of intermediate values, as the explanation of the step says.
    fn arena(&self) -> Result<u64> {
        let text = self.step.function().explain()?;
        let line = text.lines().find_map(|line| line.strip_prefix("arena: "));
        let bytes = line.and_then(|line| line.split(' ').next()).and_then(|bytes| bytes.parse().ok());
        Ok(bytes.unwrap_or_else(|| panic!("no arena in\n{text}")))
    }
}

/// A budget changes neither losses nor parameters where whole kernels run again, or parts of them that round nothing.
#[test]
fn a_step_within_a_budget_trains_the_same() {
    let Some(device) = device() else { return };
    let once = Net::new(&device, Remat::Off).unwrap();
    let (want, bytes) = (once.train(&device).unwrap(), once.arena().unwrap());
    for budget in [bytes * 9 / 10, bytes * 4 / 5] {
        let net = Net::new(&device, Remat::Budget(budget)).unwrap();
        assert!(net.arena().unwrap() <= budget, "{} of {budget} bytes", net.arena().unwrap());
        let text = net.step.function().explain().unwrap();
        let line = format!("B instead of {bytes} B, for a budget of {budget} B: ");
        assert!(text.contains(&line) && text.contains(" kernels run again"), "{line}\n{text}");
        assert_eq!(net.train(&device).unwrap(), want, "{budget} of {bytes} bytes");
    }
    // The device has more than that.
    let net = Net::new(&device, Remat::Auto).unwrap();
    assert_eq!(net.arena().unwrap(), bytes);
    assert_eq!(net.train(&device).unwrap(), want);
}

/// What does not fit says how much it takes at least.
#[test]
fn a_budget_that_is_too_small_is_an_error() {
    let Some(device) = device() else { return };
    let error = Net::new(&device, Remat::Budget(1000)).err().unwrap().to_string();
    assert!(error.contains("more than the budget of 1000"), "{error}");
}
