//! Gradients of softmax attention.

use rayon::prelude::*;
use tallow_ir::{Attention, AttentionSide, DType};

use super::attention::{Bias, matrix};
use super::matmul::dot;
use crate::view::View;

/// The results of [`tallow_ir::Op::AttentionGrad`] for its operands. `dtypes` are those of the results.
pub fn attention_grad(
    attrs: &Attention,
    side: AttentionSide,
    dtypes: [DType; 2],
    operands: &[View],
) -> Vec<View> {
    let (main, bias) = operands.split_at(side.operands());
    let problem = Problem::of(attrs, main, bias.first());
    let (by_keys, width) = (main[1].shape(), main[2].shape()[2]);
    match side {
        AttentionSide::Queries => {
            let mut dq = vec![0.0; problem.heads * problem.queries * problem.depth];
            let mut sums = vec![0.0; problem.heads * problem.queries];
            let of_head = |(head, (dq, sums)): (usize, (&mut [f64], &mut [f64]))| {
                let rows = Head::of(&problem, main, head);
                for (i, (dq, sum)) in dq.chunks_mut(problem.depth.max(1)).zip(sums).enumerate() {
                    let scores = rows.scores(i);
                    *sum = log_sum_exp(scores.iter().map(|(_, x, _)| *x));
                    for (j, dx, _) in rows.gradients(i, *sum, &scores) {
                        add(dq, dx * attrs.scale.as_f64(), row(&rows.k, j, problem.depth));
                    }
                }
            };
            let per_head = problem.queries * problem.depth;
            if problem.queries > 0 && per_head > 0 {
                let heads = dq.par_chunks_mut(per_head).zip(sums.par_chunks_mut(problem.queries));
                heads.enumerate().for_each(of_head);
            }
            let shapes = [main[0].shape().to_vec(), vec![problem.heads, problem.queries]];
            vec![filled(dtypes[0], &shapes[0], &dq), filled(dtypes[1], &shapes[1], &sums)]
        }
        AttentionSide::Keys => {
            let mut dk = vec![0.0; by_keys.iter().product()];
            let mut dv = vec![0.0; main[2].shape().iter().product()];
            let sums = main[5].to_f64s();
            let of_key_head = |(g, (dk, dv)): (usize, (&mut [f64], &mut [f64]))| {
                for head in g * problem.group..(g + 1) * problem.group {
                    let rows = Head::of(&problem, main, head);
                    for i in 0..problem.queries {
                        let sum = sums[head * problem.queries + i];
                        for (j, dx, p) in rows.gradients(i, sum, &rows.scores(i)) {
                            let by_query = dx * attrs.scale.as_f64();
                            add(row_mut(dk, j, problem.depth), by_query, row(&rows.q, i, problem.depth));
                            add(row_mut(dv, j, width), p, row(&rows.g, i, width));
                        }
                    }
                }
            };
            let [of_dk, of_dv] = [problem.keys * problem.depth, problem.keys * width];
            if of_dk > 0 && of_dv > 0 {
                dk.par_chunks_mut(of_dk).zip(dv.par_chunks_mut(of_dv)).enumerate().for_each(of_key_head);
            }
            vec![filled(dtypes[0], by_keys, &dk), filled(dtypes[1], main[2].shape(), &dv)]
        }
    }
}

struct Problem<'a> {
    attrs: &'a Attention,
    heads: usize,
    queries: usize,
    depth: usize,
    keys: usize,
    /// Query heads that share a key head.
    group: usize,
    /// `[H, S]`.
    means: Vec<f64>,
    bias: Option<Bias>,
    /// What weights and the gradient of scores are rounded to.
    rounds: Option<DType>,
}

impl<'a> Problem<'a> {
    fn of(attrs: &'a Attention, main: &[View], bias: Option<&View>) -> Problem<'a> {
        let (q, k) = (main[0].shape(), main[1].shape());
        let dtype = main[3].dtype;
        Problem {
            attrs,
            heads: q[0],
            queries: q[1],
            depth: q[2],
            keys: k[1],
            group: q[0] / k[0].max(1),
            means: main[4].to_f64s(),
            bias: bias.map(Bias::of),
            rounds: matches!(dtype, DType::F16 | DType::BF16).then_some(dtype),
        }
    }
}

/// The operands of one query head.
struct Head<'a> {
    problem: &'a Problem<'a>,
    head: usize,
    q: Vec<f64>,
    k: Vec<f64>,
    v: Vec<f64>,
    g: Vec<f64>,
    width: usize,
}

impl<'a> Head<'a> {
    fn of(problem: &'a Problem<'a>, main: &[View], head: usize) -> Head<'a> {
        let shared = head / problem.group.max(1);
        Head {
            problem,
            head,
            q: matrix(&main[0], head),
            k: matrix(&main[1], shared),
            v: matrix(&main[2], shared),
            g: matrix(&main[3], head),
            width: main[2].shape()[2],
        }
    }

    /// The keys that query `i` sees, with their scores and the slope of the cap there.
    fn scores(&self, i: usize) -> Vec<(usize, f64, f64)> {
        let Problem { attrs, queries, keys, depth, bias, .. } = self.problem;
        let visible = (i + 1 + keys).saturating_sub(*queries);
        let end = if attrs.causal { visible } else { *keys };
        let start = attrs.window.map_or(0, |w| visible.saturating_sub(w as usize));
        let query = row(&self.q, i, *depth);
        let score = |j: usize| {
            let raw = attrs.scale.as_f64() * dot(query, row(&self.k, j, *depth));
            let (capped, slope) = attrs.softcap.map_or((raw, 1.0), |cap| {
                let tanh = (raw / cap.as_f64()).tanh();
                (cap.as_f64() * tanh, 1.0 - tanh * tanh)
            });
            (j, capped + bias.as_ref().map_or(0.0, |b| b.at(self.head, i, j)), slope)
        };
        (start..end).map(score).filter(|(_, x, _)| *x != f64::NEG_INFINITY).collect()
    }

    /// Of each of these keys the gradient of the product with query `i`, and the weight, both rounded.
    fn gradients(&self, i: usize, sum: f64, scores: &[(usize, f64, f64)]) -> Vec<(usize, f64, f64)> {
        let rounded = |x: f64| self.problem.rounds.map_or(x, |dtype| tallow_ir::round::float(dtype, x));
        let mean = self.problem.means[self.head * self.problem.queries + i];
        let g = row(&self.g, i, self.width);
        let gradient = |(j, x, slope): &(usize, f64, f64)| {
            let p = (x - sum).exp();
            let dp = dot(g, row(&self.v, *j, self.width));
            // What has no weight has no gradient, however steep.
            let dx = if p == 0.0 { 0.0 } else { p * (dp - mean) * slope };
            (*j, rounded(dx), rounded(p))
        };
        scores.iter().map(gradient).collect()
    }
}

/// The logarithm of the sum of exponentials; infinity of nothing.
fn log_sum_exp(scores: impl Iterator<Item = f64> + Clone) -> f64 {
    let largest = scores.clone().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.map(|x| (x - largest).exp()).sum();
    if total == 0.0 { f64::INFINITY } else { largest + total.ln() }
}

fn row(matrix: &[f64], i: usize, width: usize) -> &[f64] {
    &matrix[i * width..][..width]
}

fn row_mut(matrix: &mut [f64], i: usize, width: usize) -> &mut [f64] {
    &mut matrix[i * width..][..width]
}

fn add(to: &mut [f64], factor: f64, row: &[f64]) {
    to.iter_mut().zip(row).for_each(|(to, x)| *to += factor * x);
}

fn filled(dtype: DType, shape: &[usize], values: &[f64]) -> View {
    View::fill_f64(dtype, shape, |start, part| part.copy_from_slice(&values[start..start + part.len()]))
}
