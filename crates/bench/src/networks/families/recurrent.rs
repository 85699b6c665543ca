//! Recurrent networks, unrolled.

use super::super::builder::{Builder, Var};
use super::super::{Call, Unary};

/// Extents of a recurrent layer.
struct Extents {
    steps: usize,
    batch: usize,
    hidden: usize,
}

fn extents(b: &mut Builder) -> Extents {
    let steps = b.draw.pick(&[8, 12, 16, 24, 32]);
    let steps = b.either(steps, 3);
    let batch = b.draw.extent(&[1, 8, 32, 64, 128], 32);
    let hidden = b.draw.extent(&[128, 256, 512, 1024], 16);
    Extents { steps, batch, hidden }
}

/// The products of all inputs with the input weights, `[steps, batch, gates * hidden]`.
fn projected(b: &mut Builder, e: &Extents, gates: usize) -> Var {
    let inner = b.draw.extent(&[64, 128, 256, 512], 16);
    let x = b.input("x", &[e.steps, e.batch, inner]);
    b.linear(x, inner, gates * e.hidden)
}

/// The part of one gate.
fn gate(b: &mut Builder, gates: Var, number: usize, hidden: usize, function: Option<Unary>) -> Var {
    let part = b.slice(gates, 1, number * hidden, hidden);
    function.map_or(part, |function| b.unary(function, part))
}

/// The projected input of one step, `[batch, width]`.
fn at(b: &mut Builder, projected: Var, e: &Extents, step: usize, width: usize) -> Var {
    let one = b.slice(projected, 0, step, 1);
    b.reshape(one, &[e.batch, width])
}

/// The states of all steps, `[steps, batch, hidden]`.
fn stacked(b: &mut Builder, e: &Extents, states: &[Var]) -> Var {
    let each: Vec<Var> = states.iter().map(|h| b.reshape(*h, &[1, e.batch, e.hidden])).collect();
    b.concat(&each, 0)
}

/// An LSTM layer.
pub fn lstm(b: &mut Builder) -> Vec<Var> {
    let e = extents(b);
    let inputs = projected(b, &e, 4);
    let weight = b.matrix(e.hidden, 4 * e.hidden);
    let [mut h, mut c] = ["h", "c"].map(|name| b.input(name, &[e.batch, e.hidden]));
    let mut states = vec![];
    for step in 0..e.steps {
        let x = at(b, inputs, &e, step, 4 * e.hidden);
        let product = b.call(Call::Linear, &[h, weight]);
        let gates = b.add(x, product);
        let input = gate(b, gates, 0, e.hidden, Some(Unary::Sigmoid));
        let forget = gate(b, gates, 1, e.hidden, Some(Unary::Sigmoid));
        let cell = gate(b, gates, 2, e.hidden, Some(Unary::Tanh));
        let output = gate(b, gates, 3, e.hidden, Some(Unary::Sigmoid));
        let remaining = b.mul(forget, c);
        let new = b.mul(input, cell);
        c = b.add(remaining, new);
        let squashed = b.unary(Unary::Tanh, c);
        h = b.mul(output, squashed);
        states.push(h);
    }
    vec![stacked(b, &e, &states), c]
}

/// A GRU layer.
pub fn gru(b: &mut Builder) -> Vec<Var> {
    let e = extents(b);
    let inputs = projected(b, &e, 3);
    let weight = b.matrix(e.hidden, 3 * e.hidden);
    let bias = b.weight("bias", &[3 * e.hidden], 0.1);
    let mut h = b.input("h", &[e.batch, e.hidden]);
    let mut states = vec![];
    for step in 0..e.steps {
        let x = at(b, inputs, &e, step, 3 * e.hidden);
        let product = b.call(Call::Linear, &[h, weight, bias]);
        let [reset, update] = [0, 1].map(|number| {
            let of_input = gate(b, x, number, e.hidden, None);
            let of_state = gate(b, product, number, e.hidden, None);
            let sum = b.add(of_input, of_state);
            b.unary(Unary::Sigmoid, sum)
        });
        let of_input = gate(b, x, 2, e.hidden, None);
        let of_state = gate(b, product, 2, e.hidden, None);
        let of_state = b.mul(reset, of_state);
        let sum = b.add(of_input, of_state);
        let new = b.unary(Unary::Tanh, sum);
        // (1 - z) n + z h = n + z (h - n)
        let difference = b.sub(h, new);
        let weighted = b.mul(update, difference);
        h = b.add(new, weighted);
        states.push(h);
    }
    vec![stacked(b, &e, &states)]
}
