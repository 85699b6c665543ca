//! Sums of products by index labels, lowered to views, sums and matrix products.

use std::collections::{BTreeMap, BTreeSet};

use tallow_ir::{Dim, Op, Shape};

use crate::error::{Error, Result};
use crate::tensor::Tensor;

/// An index of the equation. The axes of an ellipsis are counted from their last, as broadcasting aligns them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Rest(usize),
    Letter(char),
}

/// A tensor whose axes have distinct labels.
#[derive(Clone)]
struct Term {
    tensor: Tensor,
    labels: Vec<Label>,
}

/// Sums of products by the rule of Einstein: `einsum("bij,bjk->bik", &[&a, &b])` is a batched matrix product.
///
/// Each term names the axes of one tensor by letters. A label in several terms is one index; one that the output
/// lacks is summed over; one twice in a term takes the diagonal. `...` stands for any number of leading, middle or
/// last axes, which are broadcast against each other. Without `->` the output has the ellipsis and then, in
/// alphabetical order (capitals first), the labels that occur once. Blanks mean nothing.
///
/// Two operands with an index between them to sum over become one matrix product of permuted views; several are
/// multiplied pair by pair, the smallest result first.
///
/// ```
/// use tallow::{Device, Tensor, einsum};
/// let a = Tensor::new([[1f32, 2.0], [3.0, 4.0]], &Device::Cpu)?;
/// assert_eq!(einsum("ii->", &[&a])?.to_scalar::<f32>()?, 5.0);
/// assert_eq!(einsum("ij,kj->ik", &[&a, &a])?.to_vec2::<f32>()?, [[5.0, 11.0], [11.0, 25.0]]);
/// # Ok::<(), tallow::Error>(())
/// ```
///
/// # Errors
/// When the equation makes no sense or does not fit the shapes, and when element types or devices differ.
pub fn einsum<T: AsRef<Tensor>>(equation: &str, operands: &[T]) -> Result<Tensor> {
    let tensors: Vec<&Tensor> = operands.iter().map(AsRef::as_ref).collect();
    let Some(first) = tensors.first() else {
        return Err(Error::OpRequiresAtLeastOneTensor { op: "einsum" });
    };
    for other in &tensors[1..] {
        first.same_dtype("einsum", other)?;
    }
    let (terms, output) = read(equation, &tensors).map_err(|why| {
        let shapes: Vec<String> = tensors.iter().map(|t| t.sym_shape().to_string()).collect();
        let why = format!("{why} in {equation:?} of shapes {}", shapes.join(", "));
        Error::InvalidArgument { op: "einsum", why }
    })?;
    let mut factors = vec![];
    for (i, (tensor, labels)) in tensors.iter().zip(&terms).enumerate() {
        let term = diagonal((*tensor).clone(), labels.clone())?;
        let others = terms.iter().enumerate().filter(|(j, _)| *j != i).flat_map(|(_, labels)| labels);
        let needed: BTreeSet<Label> = others.chain(&output).copied().collect();
        factors.push(summed(term, &needed)?);
    }
    while factors.len() > 1 {
        let (i, j) = cheapest(&factors, &output);
        let right = factors.remove(j);
        let left = factors.remove(i);
        let needed = needed(&factors, &output);
        factors.insert(i, product(&left, &right, &needed)?);
    }
    let Term { tensor, labels } = factors.remove(0);
    let axis_of = |label: &Label| labels.iter().position(|l| l == label);
    tensor.permute(output.iter().filter_map(axis_of).collect::<Vec<_>>())
}

/// Labels of each operand's axes, and of the output's.
fn read(equation: &str, tensors: &[&Tensor]) -> Result<(Vec<Vec<Label>>, Vec<Label>), String> {
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = match text.split_once("->") {
        Some((inputs, output)) => (inputs, Some(output)),
        None => (text.as_str(), None),
    };
    let terms: Vec<&str> = inputs.split(',').collect();
    if terms.len() != tensors.len() {
        return Err(format!("{} terms for {} tensors", terms.len(), tensors.len()));
    }
    let mut rest = 0;
    let mut found = vec![];
    for (term, tensor) in terms.iter().zip(tensors) {
        let letters = term.replace("...", "").chars().count();
        let has_rest = term.contains("...");
        let more = tensor.rank().checked_sub(letters).filter(|more| has_rest || *more == 0);
        let more = more.ok_or_else(|| format!("{term:?} does not name {} axes", tensor.rank()))?;
        rest = rest.max(more);
        found.push(labels(term, more)?);
    }
    let mut extents: BTreeMap<Label, &Dim> = BTreeMap::new();
    for (term, tensor) in found.iter().zip(tensors) {
        for (label, extent) in term.iter().zip(tensor.sym_dims()) {
            let known = extents.entry(*label).or_insert(extent);
            let repeats = matches!(label, Label::Rest(_)) && (known.is(1) || extent.is(1));
            if *known != extent && !repeats {
                return Err(format!("{} is both {known} and {extent}", shown(*label)));
            }
            if known.is(1) {
                *known = extent;
            }
        }
    }
    let output = match output {
        Some(output) => labels(output, rest)?,
        None => {
            let once = |label: &Label| found.iter().flatten().filter(|l| *l == label).count() == 1;
            let rests = (0..rest).rev().map(Label::Rest);
            let letters = extents.keys().filter(|l| matches!(l, Label::Letter(_)) && once(l)).copied();
            rests.chain(letters).collect()
        }
    };
    if let Some(label) = output.iter().find(|l| !extents.contains_key(l)) {
        return Err(format!("{} is in the output alone", shown(*label)));
    }
    if let Some((i, label)) = output.iter().enumerate().find(|(i, l)| output[..*i].contains(l)) {
        return Err(format!("{} is in the output twice, at axis {i}", shown(*label)));
    }
    if rest > 0 && !output.contains(&Label::Rest(0)) {
        return Err("the output lacks the ellipsis".into());
    }
    Ok((found, output))
}

/// The labels of one term whose ellipsis stands for `rest` axes.
fn labels(term: &str, rest: usize) -> Result<Vec<Label>, String> {
    let mut found = vec![];
    for (i, letters) in term.split("...").enumerate() {
        match i {
            0 => {}
            1 => found.extend((0..rest).rev().map(Label::Rest)),
            _ => return Err(format!("{term:?} has two ellipses")),
        }
        for c in letters.chars() {
            if !c.is_ascii_alphabetic() {
                return Err(format!("{c:?} is no label"));
            }
            found.push(Label::Letter(c));
        }
    }
    Ok(found)
}

fn shown(label: Label) -> String {
    match label {
        Label::Letter(c) => format!("label '{c}'"),
        Label::Rest(i) => format!("axis {i} of the ellipsis, from its last,"),
    }
}

/// Axes of one label joined: of `n` by `n` elements one after the other, every `n + 1`st is on the diagonal, which
/// a window of one element finds without a copy.
fn diagonal(mut tensor: Tensor, mut labels: Vec<Label>) -> Result<Term> {
    let twice = |labels: &[Label]| {
        (0..labels.len()).find_map(|j| Some((labels[..j].iter().position(|l| *l == labels[j])?, j)))
    };
    while let Some((i, j)) = twice(&labels) {
        let n = tensor.const_dim(i)?;
        let mut order: Vec<usize> = (0..labels.len()).filter(|axis| *axis != i && *axis != j).collect();
        order.extend([i, j]);
        let mut dims: Vec<Dim> =
            order[..order.len() - 2].iter().map(|axis| tensor.sym_dims()[*axis].clone()).collect();
        let axis = dims.len();
        dims.push(&Dim::from(n) * &Dim::from(n));
        let flat = tensor.permute(order.clone())?.reshape(dims.clone())?;
        dims[axis] = n.into();
        tensor = if n == 0 {
            flat.reshape(dims)?
        } else {
            let stride = n.saturating_add(1);
            flat.unary(Op::Window { axis, size: 1, stride, dilation: 1 })?.reshape(dims)?
        };
        order.pop();
        labels = order.iter().map(|axis| labels[*axis]).collect();
    }
    Ok(Term { tensor, labels })
}

/// The term summed over what nothing else needs.
fn summed(term: Term, needed: &BTreeSet<Label>) -> Result<Term> {
    let is_summed = |label: &Label| !needed.contains(label);
    let axes: Vec<usize> = (0..term.labels.len()).filter(|axis| is_summed(&term.labels[*axis])).collect();
    if axes.is_empty() {
        return Ok(term);
    }
    let labels = term.labels.iter().copied().filter(|l| !is_summed(l)).collect();
    Ok(Term { tensor: term.tensor.sum(axes)?, labels })
}

/// What the remaining factors and the output need.
fn needed(factors: &[Term], output: &[Label]) -> BTreeSet<Label> {
    factors.iter().flat_map(|p| &p.labels).chain(output).copied().collect()
}

/// The pair with the smallest product.
fn cheapest(factors: &[Term], output: &[Label]) -> (usize, usize) {
    let size = |i: usize, j: usize| {
        let others: Vec<Term> =
            factors.iter().enumerate().filter(|(k, _)| *k != i && *k != j).map(|(_, p)| p.clone()).collect();
        let needed = needed(&others, output);
        let both = extents(&[&factors[i], &factors[j]]);
        let remaining = both.into_iter().filter(|(l, _)| needed.contains(l)).map(|(_, extent)| extent);
        remaining.collect::<Shape>().max_numel()
    };
    let pairs = (0..factors.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
    pairs.min_by_key(|(i, j)| size(*i, *j)).unwrap_or((0, 1))
}

/// The extent of each label, that of 1 only where no factor has another.
fn extents(factors: &[&Term]) -> BTreeMap<Label, Dim> {
    let mut all: BTreeMap<Label, Dim> = BTreeMap::new();
    for (label, extent) in factors.iter().flat_map(|p| p.labels.iter().zip(p.tensor.sym_dims())) {
        let known = all.entry(*label).or_insert_with(|| extent.clone());
        if known.is(1) {
            *known = extent.clone();
        }
    }
    all
}

/// The product of two terms, summed over what both have and nothing else needs.
fn product(a: &Term, b: &Term, needed: &BTreeSet<Label>) -> Result<Term> {
    let of = |term: &Term, test: &dyn Fn(&Label) -> bool| -> Vec<Label> {
        term.labels.iter().copied().filter(|l| test(l)).collect()
    };
    let both = |l: &Label| a.labels.contains(l) && b.labels.contains(l);
    let batch = of(a, &|l| both(l) && needed.contains(l));
    let inner = of(a, &|l| both(l) && !needed.contains(l));
    let (rows, columns) = (of(a, &|l| !both(l)), of(b, &|l| !both(l)));
    let all = extents(&[a, b]);
    let labels: Vec<Label> = [&batch[..], &rows, &columns].concat();
    if inner.is_empty() || (rows.is_empty() && columns.is_empty()) {
        // Nothing to sum, or no matrix to multiply: a product of elements, summed as rows are.
        let order = [&labels[..], &inner].concat();
        let product = spread(a, &order)?.broadcast_mul(&spread(b, &order)?)?;
        return summed(Term { tensor: product, labels: order }, needed);
    }
    let left = matrix(a, [&batch, &rows, &inner], &all)?;
    let right = matrix(b, [&batch, &inner, &columns], &all)?;
    let dims: Vec<Dim> = labels.iter().map(|l| all[l].clone()).collect();
    Ok(Term { tensor: left.matmul(&right)?.reshape(dims)?, labels })
}

/// The term's axes in the order of `labels`, with an axis of extent 1 for each that it lacks.
fn spread(term: &Term, labels: &[Label]) -> Result<Tensor> {
    let axis_of = |l: &Label| term.labels.iter().position(|label| label == l);
    let tensor = term.tensor.permute(labels.iter().filter_map(axis_of).collect::<Vec<_>>())?;
    let dims: Vec<Dim> = labels
        .iter()
        .map(|l| axis_of(l).map_or_else(Dim::one, |axis| term.tensor.sym_dims()[axis].clone()))
        .collect();
    tensor.reshape(dims)
}

/// The term as matrices: each group of labels becomes one axis; without a batch there is no axis for it.
fn matrix(term: &Term, groups: [&[Label]; 3], all: &BTreeMap<Label, Dim>) -> Result<Tensor> {
    let order = groups.concat();
    let dims: Vec<Dim> = order.iter().map(|l| all[l].clone()).collect();
    // Only axes of an ellipsis are repeated here; all others have their extent.
    let tensor = spread(term, &order)?.broadcast_as(dims)?;
    let joined = |labels: &[Label]| labels.iter().fold(Dim::one(), |n, l| &n * &all[l]);
    let axes = if groups[0].is_empty() { &groups[1..] } else { &groups[..] };
    tensor.reshape(axes.iter().map(|labels| joined(labels)).collect::<Vec<_>>())
}
