//! Symbolic extents under Candle's signatures: reading one as a number makes the compilation fail, whatever the function
//! does with the number or with its own errors.

#![allow(clippy::unwrap_used)]

use std::sync::{Mutex, mpsc};

use tallow::{D, DType, Device, Error, Function, Input, Result, Symbol, Tensor, compile};

const CPU: Device = Device::Cpu;

/// What is done to a tensor of shape `[rows, 2]`, or to one made of it.
type Read = fn(&Tensor);

/// Methods that read a symbolic extent, and the name and axis that the error must have.
const READS: &[(Read, &str, usize)] = &[
    (|x| assert_eq!(x.dims(), [8, 2]), "dims", 0),
    (|x| assert_eq!(x.dim(0).ok(), Some(8)), "dim", 0),
    (|x| assert_eq!(x.dim(D::Minus2).ok(), Some(8)), "dim", 0),
    (|x| assert_eq!(x.elem_count(), 16), "elem_count", 0),
    (|x| assert_eq!(x.stride(), [2, 1]), "stride", 0),
    (|x| assert_eq!(x.dims2().ok(), Some((8, 2))), "dims2", 0),
    (|x| assert_eq!(x.shape().dims(), [8, 2]), "dims", 0),
    (|x| assert_eq!(x.shape().dims2().ok(), Some((8, 2))), "dims2", 0),
    (|x| assert_eq!(x.shape().clone().elem_count(), 16), "elem_count", 0),
    (|x| assert_eq!(x.shape().clone().into_dims(), [8, 2]), "into_dims", 0),
    (|x| assert_eq!(x.shape().clone().extend(&[3]).dims(), [8, 2, 3]), "dims", 0),
    (|x| assert!(x.shape().is_contiguous(&[2, 1])), "is_contiguous", 0),
    (|x| assert_eq!(x.t().map(|t| t.dims().to_vec()).ok(), Some(vec![2, 8])), "dims", 1),
    (|x| assert_eq!(x.flatten_all().and_then(|t| t.dims1()).ok(), Some(16)), "dims1", 0),
    (|x| assert_eq!(x.unsqueeze(0).and_then(|t| t.dim(1)).ok(), Some(8)), "dim", 1),
    (|x| assert_eq!(x.sum(1).and_then(|t| t.relu()).map(|t| t.elem_count()).ok(), Some(8)), "elem_count", 0),
    (|x| assert_eq!(Tensor::cat(&[x, x], 0).and_then(|t| t.dim(0)).ok(), Some(16)), "dim", 0),
];

/// Methods that may be called on a tensor of shape `[rows, 2]`.
const HARMLESS: &[Read] = &[
    |x| assert_eq!(x.dim(1).ok(), Some(2)),
    |x| assert_eq!(x.rank(), 2),
    |x| assert_eq!(x.sym_dims()[1].as_const(), Some(2)),
    |x| assert_eq!(x.shape().sym_dims(), x.sym_dims()),
    |x| assert_eq!(x.shape().numel().to_string(), "2*rows"),
    |x| assert_eq!(x.shape(), x.relu().unwrap().shape()),
    |x| assert_eq!(&x.shape().broadcast_shape_binary_op(&2.into(), "add").unwrap(), x.shape()),
    |x| assert_eq!(format!("{} {:?}", x.shape(), x.shape()), "[rows,2] [rows,2]"),
    |x| assert!(format!("{x:?}").contains("rows") && format!("{x}").contains("rows")),
    |x| assert!(x.is_contiguous()),
    |x| assert!(x.dims3().is_err() && x.dim(2).is_err()),
    |x| assert_eq!(x.sum(0).unwrap().dims(), [2]),
    |x| assert!(Tensor::zeros(x.shape(), DType::F32, &CPU).and_then(|z| x.add(&z)).is_ok()),
    |x| {
        let at = Tensor::zeros(1, DType::U32, &CPU)
            .and_then(|zero| zero.broadcast_as(&x.sym_dims()[..1]))
            .unwrap();
        let sums = Tensor::zeros((3, 2), DType::F32, &CPU).and_then(|zeros| zeros.index_add(&at, x, 0));
        assert_eq!(sums.unwrap().dims(), [3, 2]);
    },
    // Not possible, and errors that the function may handle.
    |x| assert!(matches!(x.chunk(2, 0), Err(Error::SymbolicShape { .. }))),
    |x| assert!(matches!(x.roll(1, 0), Err(Error::SymbolicShape { .. }))),
    |x| assert!(matches!(x.gather(x, 0), Err(Error::SymbolicShape { .. }))),
    |x| assert!(matches!(x.mean(0), Err(Error::SymbolicShape { .. }))),
    |x| assert!(matches!(x.to_vec2::<f32>(), Err(Error::SymbolicShape { .. }))),
];

fn inputs() -> [Input; 1] {
    [Input::new("x", DType::F32, (Symbol::new("rows", 8), 2))]
}

/// Checks that a compilation failed since `method` read `axis`.
fn expect(result: Result<Function>, method: &str, axis: usize) {
    let error = result.err().unwrap_or_else(|| panic!("{method} of axis {axis} went unnoticed"));
    assert!(
        matches!(error, Error::SymbolicExtent { method: m, axis: a, .. } if (m, a) == (method, axis)),
        "{error}, not {method} of axis {axis}"
    );
    let text = error.to_string();
    let parts = [format!("{method}()"), format!("axis {axis} of shape"), "sym_dims()".to_string()];
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn a_symbolic_extent_read_as_a_number_fails_whatever_the_function_returns() {
    for (read, method, axis) in READS {
        let same = compile(&CPU, &inputs(), |x| {
            read(&x[0]);
            Ok(vec![x[0].clone()])
        });
        expect(same, method, *axis);
        let nothing_of_it = compile(&CPU, &inputs(), |x| {
            read(&x[0]);
            Ok(vec![Tensor::zeros(8, DType::F32, &CPU)?])
        });
        expect(nothing_of_it, method, *axis);
        let method_error = compile(&CPU, &inputs(), |x| {
            read(&x[0]);
            Err(Error::msg("its own"))
        });
        expect(method_error, method, *axis);
    }
}

#[test]
fn expressions_and_known_extents_may_be_read() {
    for (i, read) in HARMLESS.iter().enumerate() {
        let compiled = compile(&CPU, &inputs(), |x| {
            read(&x[0]);
            Ok(vec![x[0].clone()])
        });
        assert!(compiled.is_ok(), "{i}: {compiled:?}");
    }
}

#[test]
fn what_is_made_of_symbols_belongs_to_the_function_too() {
    let rows = Symbol::new("rows", 8);
    let made: [fn(&Symbol) -> Result<Tensor>; 4] = [
        |rows| Tensor::zeros((rows, 2), DType::F32, &CPU),
        |rows| Tensor::full(1f32, rows.clone(), &CPU),
        |rows| Tensor::ones((rows, 3), DType::U8, &CPU),
        |rows| Tensor::new(1f32, &CPU)?.broadcast_as((rows, 2)),
    ];
    for make in made {
        let function = compile(&CPU, &inputs(), |x| {
            let n = make(&rows)?.dims()[0];
            Ok(vec![x[0].narrow(0, 0, n)?])
        });
        expect(function, "dims", 0);
        // Elsewhere there is no function that could be warned, and no value.
        assert!(matches!(make(&rows), Err(Error::SymbolicShape { .. })));
    }
}

#[test]
fn functions_compiled_inside_of_others_are_told_apart() -> Result<()> {
    let inner = [Input::new("y", DType::F32, Symbol::new("length", 5))];
    // The inner function reads its own: the outer one does not depend on it.
    let outer = compile(&CPU, &inputs(), |x| {
        expect(compile(&CPU, &inner, |y| Ok(vec![y[0].narrow(0, 0, y[0].dims()[0])?])), "dims", 0);
        Ok(vec![x[0].relu()?])
    });
    assert!(outer.is_ok(), "{outer:?}");
    // The inner function reads an extent of the outer one: the number is in both.
    let outer = compile(&CPU, &inputs(), |x| {
        expect(compile(&CPU, &inner, |y| Ok(vec![y[0].affine(x[0].dim(0)? as f64, 0.0)?])), "dim", 0);
        Ok(vec![x[0].relu()?])
    });
    expect(outer, "dim", 0);
    // The outer function reads its own after an inner one has ended, however that ended.
    let outer = compile(&CPU, &inputs(), |x| {
        compile(&CPU, &inner, |y| Ok(vec![y[0].relu()?]))?;
        let panicked = std::panic::catch_unwind(|| compile(&CPU, &inner, |_| panic!("of the test")));
        assert!(panicked.is_err());
        Ok(vec![Tensor::zeros(x[0].elem_count(), DType::F32, &CPU)?])
    });
    expect(outer, "elem_count", 0);
    // A tensor that outlives its function: read in another one, it makes that fail.
    let mut captured = vec![];
    compile(&CPU, &inputs(), |x| {
        captured = x.to_vec();
        Ok(x.to_vec())
    })?;
    let later = compile(&CPU, &inner, |y| Ok(vec![y[0].affine(captured[0].dims()[0] as f64, 0.0)?]));
    expect(later, "dims", 0);
    Ok(())
}

#[test]
fn threads_do_not_disturb_each_other() {
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                for turn in 0..50 {
                    let reads = (thread + turn) % 2 == 0;
                    let function = compile(&CPU, &inputs(), |x| {
                        if reads {
                            x[0].elem_count();
                        }
                        Ok(vec![x[0].relu()?])
                    });
                    match reads {
                        true => expect(function, "elem_count", 0),
                        false => assert!(function.is_ok(), "{function:?}"),
                    }
                }
            });
        }
    });
}

#[test]
fn another_thread_may_read_for_the_function() {
    let function = compile(&CPU, &inputs(), |x| {
        let rows = Mutex::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| *rows.lock().unwrap() = x[0].dims()[0]);
        });
        Ok(vec![x[0].affine(*rows.lock().unwrap() as f64, 0.0)?])
    });
    expect(function, "dims", 0);
    // A thread that compiles a function of its own meanwhile: both have the number.
    let (send, receive) = mpsc::channel::<Tensor>();
    let other = std::thread::spawn(move || {
        let inner = [Input::new("y", DType::F32, 3)];
        compile(&CPU, &inner, |y| Ok(vec![y[0].affine(receive.recv().unwrap().elem_count() as f64, 0.0)?]))
    });
    let function = compile(&CPU, &inputs(), |x| {
        send.send(x[0].clone()).unwrap();
        expect(other.join().unwrap(), "elem_count", 0);
        Ok(vec![x[0].relu()?])
    });
    expect(function, "elem_count", 0);
}
