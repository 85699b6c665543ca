//! Tensors print as Candle prints them, character by character.

use candle_core as candle;
use tallow::{DType, Device, display};
use tallow_tests::rng::Rng;

use crate::inputs::{DTYPES, numbers, pair};

/// Values of every kind: small, whole, of very different sizes, special.
fn values(rng: &mut Rng, count: usize, kind: usize, dtype: DType) -> Vec<f64> {
    let mut all = numbers(rng, count, dtype);
    match kind {
        0 => all.iter_mut().for_each(|x| *x = (*x * 4.0).round()),
        1 => all.iter_mut().for_each(|x| *x *= 1.37),
        2 => all.iter_mut().enumerate().for_each(|(i, x)| *x *= 10f64.powi(i as i32 % 9 - 5)),
        3 => all.iter_mut().step_by(3).for_each(|x| *x = f64::NAN),
        4 => all.iter_mut().step_by(2).for_each(|x| *x = f64::INFINITY.copysign(*x)),
        5 => all.iter_mut().for_each(|x| *x *= 1e7),
        6 => all.fill(-0.0),
        _ => all.iter_mut().for_each(|x| *x *= 1e-6),
    }
    if dtype.is_int() {
        all.iter_mut().for_each(|x| *x = if x.is_finite() { *x } else { 0.0 });
    }
    all
}

const SHAPES: [&[usize]; 14] = [
    &[],
    &[1],
    &[0],
    &[5],
    &[10],
    &[40],
    &[2, 3],
    &[0, 3],
    &[3, 0],
    &[2, 2, 2],
    &[9, 25],
    &[1001],
    &[11, 3, 40],
    &[2, 600],
];

fn compare() {
    let rng = &mut Rng::new(7);
    let mut differences = vec![];
    for dtype in DTYPES {
        for dims in SHAPES {
            for kind in 0..8 {
                let values = values(rng, dims.iter().product(), kind, dtype);
                let (ours, theirs) = pair(&values, dims, dtype, &Device::Cpu);
                for (ours, theirs) in
                    [(format!("{ours}"), format!("{theirs}")), (format!("{ours:?}"), format!("{theirs:?}"))]
                {
                    if ours != theirs {
                        differences.push(format!("{dtype} {dims:?} {kind}:\n{ours}\nis not\n{theirs}"));
                    }
                }
            }
        }
    }
    let shown = differences.iter().take(4).cloned().collect::<Vec<_>>().join("\n");
    assert!(differences.is_empty(), "{} differences:\n{shown}", differences.len());
}

/// One test, as the options are those of the whole program.
#[test]
fn tensors_print_as_candle_prints_them() {
    compare();
    display::set_print_options_short();
    candle::display::set_print_options_short();
    compare();
    display::set_print_options_full();
    candle::display::set_print_options_full();
    compare();
    display::set_print_options_default();
    candle::display::set_print_options_default();
    for sci in [Some(true), Some(false), None] {
        display::set_sci_mode(sci);
        candle::display::set_sci_mode(sci);
        display::set_line_width(30);
        candle::display::set_line_width(30);
        display::set_precision(1);
        candle::display::set_precision(1);
        display::set_edge_items(1);
        candle::display::set_edge_items(1);
        display::set_threshold(20);
        candle::display::set_threshold(20);
        compare();
    }
    display::set_print_options(display::PrinterOptions::default());
    assert_eq!(*display::print_options().lock().unwrap(), display::PrinterOptions::default());
}
