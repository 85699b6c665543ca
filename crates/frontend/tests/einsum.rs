//! `einsum` against nested loops, over random equations.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use tallow::{DType, Device, Result, Symbol, Tensor, einsum};

const CPU: Device = Device::Cpu;

/// A linear congruential generator (constants of Knuth's MMIX), high bits.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// Row-major elements.
struct Naive {
    labels: Vec<char>,
    dims: Vec<usize>,
    values: Vec<f64>,
}

impl Naive {
    fn at(&self, index: &BTreeMap<char, usize>) -> f64 {
        // An extent of 1 repeats.
        let place = self.labels.iter().zip(&self.dims);
        self.values[place.fold(0, |n, (l, d)| n * d + if *d == 1 { 0 } else { index[l] })]
    }
}

/// All values of the labels in `extents`, the last fastest.
fn indices(extents: &[(char, usize)]) -> Vec<BTreeMap<char, usize>> {
    let mut all = vec![BTreeMap::new()];
    for (label, extent) in extents {
        all = all
            .into_iter()
            .flat_map(|index| {
                (0..*extent).map(move |i| {
                    let mut index = index.clone();
                    index.insert(*label, i);
                    index
                })
            })
            .collect();
    }
    all
}

fn naive(operands: &[Naive], output: &[char], extents: &BTreeMap<char, usize>) -> Vec<f64> {
    let of = |keep: bool| -> Vec<(char, usize)> {
        extents.iter().map(|(l, d)| (*l, *d)).filter(|(l, _)| output.contains(l) == keep).collect()
    };
    let out: Vec<(char, usize)> = output.iter().map(|l| (*l, extents[l])).collect();
    let inner = indices(&of(false));
    let term = |index: &BTreeMap<char, usize>| operands.iter().map(|o| o.at(index)).product::<f64>();
    let element = |at: BTreeMap<char, usize>| {
        inner.iter().map(|more| term(&at.iter().chain(more).map(|(l, i)| (*l, *i)).collect())).sum()
    };
    indices(&out).into_iter().map(element).collect()
}

fn tensor(naive: &Naive) -> Result<Tensor> {
    let values = naive.values.iter().map(|x| *x as f32).collect::<Vec<_>>();
    Tensor::from_vec(values, naive.dims.clone(), &CPU)
}

/// Labels P and Q are the axes of the ellipsis. Values are so small that every sum is exact.
#[test]
fn random_equations() -> Result<()> {
    let mut rng = Rng(1);
    for case in 0..600 {
        let mut extents: BTreeMap<char, usize> = BTreeMap::new();
        for label in "PQabcde".chars() {
            extents.insert(label, if case % 25 == 0 { rng.below(3) } else { 1 + rng.below(3) });
        }
        let (mut terms, mut operands) = (vec![], vec![]);
        for _ in 0..1 + rng.below(4) {
            let letters: Vec<char> =
                (0..rng.below(4)).map(|_| ['a', 'b', 'c', 'd', 'e'][rng.below(5)]).collect();
            let rest: &[char] = [&['P', 'Q'][..], &['Q'], &[], &[]][rng.below(4)];
            let cut = rng.below(letters.len() + 1);
            let dots = if rest.is_empty() { "" } else { "..." };
            let text = |part: &[char]| part.iter().collect::<String>();
            terms.push(format!("{}{dots}{}", text(&letters[..cut]), text(&letters[cut..])));
            let labels = [&letters[..cut], rest, &letters[cut..]].concat();
            // An axis of the ellipsis may be 1 where another operand has more.
            let dim = |l: &char| if l.is_uppercase() && rng.below(4) == 0 { 1 } else { extents[l] };
            let dims: Vec<usize> = labels.iter().map(dim).collect();
            let values = (0..dims.iter().product()).map(|_| rng.below(5) as f64 - 2.0).collect();
            operands.push(Naive { labels, dims, values });
        }
        // What the operands make of the ellipsis.
        for label in ['P', 'Q'] {
            let found =
                operands.iter().flat_map(|o| o.labels.iter().zip(&o.dims)).filter(|(l, _)| **l == label);
            let found: Vec<usize> = found.map(|(_, d)| *d).collect();
            extents.insert(label, found.iter().copied().find(|d| *d != 1).unwrap_or(1));
        }
        let used: Vec<char> =
            extents.keys().copied().filter(|l| operands.iter().any(|o| o.labels.contains(l))).collect();
        extents.retain(|l, _| used.contains(l));
        let rest: Vec<char> = used.iter().copied().filter(|l| l.is_uppercase()).collect();
        let (mut equation, mut output) = (terms.join(","), rest.clone());
        if rng.below(3) > 0 {
            let mut letters: Vec<char> = used.iter().copied().filter(|l| l.is_lowercase()).collect();
            letters.retain(|_| rng.below(2) == 0);
            if rng.below(2) == 0 {
                letters.reverse();
            }
            let dots = if rest.is_empty() { "" } else { "..." };
            equation += &format!("->{dots}{}", letters.iter().collect::<String>());
            output.extend(letters);
        } else {
            let count = |l: &char| operands.iter().flat_map(|o| &o.labels).filter(|x| *x == l).count();
            output.extend(used.iter().filter(|l| l.is_lowercase() && count(l) == 1));
        }
        let tensors = operands.iter().map(tensor).collect::<Result<Vec<_>>>()?;
        let got = einsum(&equation, &tensors)?;
        let dims: Vec<usize> = output.iter().map(|l| extents[l]).collect();
        let shapes: Vec<&[usize]> = operands.iter().map(|o| o.dims.as_slice()).collect();
        let what = format!("case {case}: {equation} of {shapes:?}");
        assert_eq!(got.dims(), dims, "{what}");
        let got: Vec<f64> = got.flatten_all()?.to_dtype(DType::F64)?.to_vec1()?;
        assert_eq!(got, naive(&operands, &output, &extents), "{what}");
    }
    Ok(())
}

/// The expression has so many nodes of these kinds.
fn counts(t: &Tensor, op: &str) -> usize {
    t.explain().unwrap().lines().filter(|line| line.contains(&format!("= {op} "))).count()
}

#[test]
fn contractions_are_one_product() -> Result<()> {
    let of = |dims: &[usize]| Tensor::ones(dims, DType::F32, &CPU)?.affine(0.5, 0.25);
    let cases: [(&str, &[usize], &[usize]); 7] = [
        ("ij,jk->ik", &[3, 4], &[4, 5]),
        ("bij,bjk", &[2, 3, 4], &[2, 4, 5]),
        ("ik,jk->ji", &[3, 4], &[5, 4]),
        ("bqhd,bkhd->bhqk", &[2, 7, 3, 4], &[2, 6, 3, 4]),
        ("...ij,jk->...ik", &[2, 3, 4, 5], &[5, 2]),
        ("abcd,cdef->fabe", &[2, 3, 4, 5], &[4, 5, 2, 3]),
        ("i,ij->j", &[3], &[3, 4]),
    ];
    for (equation, a, b) in cases {
        let y = einsum(equation, &[of(a)?, of(b)?])?;
        assert_eq!((counts(&y, "matmul"), counts(&y, "reduce_sum")), (1, 0), "{equation}");
        assert_eq!(counts(&y, "mul"), 2, "{equation}: the factors of the operands, and nothing else");
    }
    // Three matrices: the small product comes first.
    let (a, b, c) = (of(&[50, 2])?, of(&[2, 60])?, of(&[60, 1])?);
    let y = einsum("ij,jk,kl->il", &[&a, &b, &c])?;
    assert_eq!(counts(&y, "matmul"), 2);
    assert!(!y.explain()?.contains("[50,60]"), "{}", y.explain()?);
    Ok(())
}

#[cfg(feature = "vulkan")]
#[test]
fn views_are_read_in_place() -> Result<()> {
    let Ok(device) = Device::best_vulkan() else { return Ok(()) };
    let of = |dims: &[usize]| Tensor::from_vec(vec![0.5f32; dims.iter().product()], dims, &device);
    for (equation, a, b) in [
        ("bqhd,bkhd->bhqk", [2, 37, 3, 16], [2, 41, 3, 16]),
        ("abcd,cdef->abef", [2, 13, 4, 5], [4, 5, 2, 13]),
    ] {
        let text = einsum(equation, &[of(&a)?, of(&b)?])?.explain()?;
        assert!(text.contains("plan: 1 dispatch,"), "{equation}: {text}");
    }
    Ok(())
}

#[test]
fn symbols() -> Result<()> {
    let n = Symbol::new("n", 8);
    let input = tallow::Input::new("x", DType::F32, (2, n, 3));
    let f = tallow::compile(&CPU, &[input], |x| Ok(vec![einsum("bnd,bmd->bnm", &[&x[0], &x[0]])?]))?;
    let x = Tensor::arange(0f32, 24.0, &CPU)?.reshape((2, 4, 3))?;
    let want = x.matmul(&x.t()?)?.to_vec3::<f32>()?;
    assert_eq!(f.run(&[&x])?[0].to_vec3::<f32>()?, want);
    Ok(())
}

#[test]
fn errors_name_equation_and_shapes() -> Result<()> {
    let a = Tensor::ones((2, 3), DType::F32, &CPU)?;
    let why = |equation: &str, operands: &[&Tensor]| einsum(equation, operands).unwrap_err().to_string();
    for (equation, operands, part) in [
        ("ij", &[&a, &a][..], "1 terms for 2 tensors"),
        ("ijk->i", &[&a], "\"ijk\" does not name 2 axes"),
        ("ij,jk->ik", &[&a, &a], "label 'j' is both 3 and 2"),
        ("ij->ik", &[&a], "label 'k' is in the output alone"),
        ("ij->ii", &[&a], "label 'i' is in the output twice"),
        ("i1->i", &[&a], "'1' is no label"),
        ("......->", &[&a], "has two ellipses"),
        ("...j->j", &[&a], "the output lacks the ellipsis"),
        ("ii->i", &[&a], "label 'i' is both 2 and 3"),
    ] {
        let message = why(equation, operands);
        assert!(message.contains(part) && message.contains("[2,3]"), "{message}");
        assert!(message.contains(&format!("{equation:?}")), "{message}");
    }
    assert!(why("ij,ij", &[&a, &a.to_dtype(DType::F16)?]).contains("dtype mismatch in einsum"));
    assert!(einsum::<Tensor>("", &[]).is_err());
    Ok(())
}
