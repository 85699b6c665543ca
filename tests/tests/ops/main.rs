//! Every op in every element type and class of layout: the interpreter against `candle_core` on the CPU, and a Vulkan
//! device against the interpreter. `docs/ops.md` is written from the results.
//!
//! `TALLOW_FULL=1` compares the whole product on the device (`make test-full`); without it a seeded cover, in which
//! every pair of op and element type, op and class, element type and class occurs. `TALLOW_SEED` draws another cover,
//! `TALLOW_OPS=name` takes all of the rows whose name starts so.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod candle_side;
mod case;
mod class;
mod cover;
#[cfg(feature = "vulkan")]
mod kernels;
#[cfg(feature = "vulkan")]
mod large;
mod layout;
#[cfg(feature = "vulkan")]
mod many;
mod page;
mod product;
mod row;
mod table;

/// The interpreter against Candle, over the whole product, and the page that says so.
#[test]
fn page_of_all_ops_against_candle() {
    let rows = table::all();
    let mut wrong = vec![];
    let cells: page::Table<'_> = rows.iter().map(|row| (row, product::cells(row, &mut wrong))).collect();
    let count = |of: fn(&product::Cell) -> usize| cells.iter().flat_map(|(_, c)| c).map(of).sum::<usize>();
    println!(
        "{} rows: {} computed, {} compared with Candle, {} refused",
        rows.len(),
        count(|c| c.computed.len()),
        count(|c| c.compared.len()),
        count(|c| c.refused.len())
    );
    let shown = wrong.iter().take(60).cloned().collect::<Vec<_>>().join("\n");
    assert!(wrong.is_empty(), "{} wrong:\n{shown}", wrong.len());
    page::check(&page::text(&cells));
}

/// Cases that are checked together, and whose results are held at once.
#[cfg(feature = "vulkan")]
fn batch_size(class: class::Class) -> usize {
    use class::Class;
    match class {
        Class::Many => 8,
        Class::Contiguous
        | Class::Strided
        | Class::Broadcast
        | Class::Sliced
        | Class::Scalar
        | Class::Empty
        | Class::One
        | Class::Odd
        | Class::Windows => 150,
    }
}

/// The device against the interpreter.
#[cfg(feature = "vulkan")]
#[test]
fn kernels_match_the_interpreter() {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use class::Class;

    let Some(device) = kernels::device() else { return };
    let rows = table::all();
    let mut cells: Vec<cover::Cell> = vec![];
    for (i, row) in rows.iter().enumerate() {
        for dtype in tallow_ir::DType::SCALARS {
            let built = |class: &Class| case::Case::new(row, dtype, *class).graph().is_ok();
            cells.extend(Class::ALL.into_iter().filter(built).map(|class| (i, dtype, class)));
        }
    }
    let only = std::env::var("TALLOW_OPS").ok();
    if let Some(name) = &only {
        cells.retain(|(row, ..)| rows[*row].name.starts_with(name.as_str()));
        assert!(!cells.is_empty(), "no row is called {name}");
    }
    let full = only.is_some() || std::env::var("TALLOW_FULL").is_ok_and(|v| v == "1");
    let seed = std::env::var("TALLOW_SEED").ok().and_then(|v| v.parse().ok()).unwrap_or(1);
    // So many workgroups take a software device seconds. Of rows that differ in one expression of one kernel, each seed has
    // another quarter.
    const ELEMENTWISE: [&str; 3] = ["Elementwise", "Casts", "Activations"];
    let is_alike = |row: &row::Row| {
        ELEMENTWISE.contains(&row.part)
            || ["quantize ", "dequantize "].iter().any(|op| row.name.starts_with(op))
    };
    let is_spared = |(row, _, class): &cover::Cell| {
        *class == Class::Many && is_alike(&rows[*row]) && !(*row as u64 + seed).is_multiple_of(4)
    };
    if !full && kernels::is_software(&device) {
        cells.retain(|cell| !is_spared(cell));
    }
    let chosen = if full { cells.clone() } else { cover::pairs(&cells, seed) };
    // By class, so that what is large comes alone, and few cases are held at once; of a software device on all cores.
    let of_class = |class: Class| {
        chosen.iter().filter(move |(.., c)| *c == class).copied().collect::<Vec<cover::Cell>>()
    };
    let parts: Vec<Vec<cover::Cell>> = Class::ALL
        .into_iter()
        .flat_map(|class| of_class(class).chunks(batch_size(class)).map(<[_]>::to_vec).collect::<Vec<_>>())
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    // Four at most: a case of many workgroups takes up to a gigabyte.
    let threads = if kernels::is_software(&device) { cores.min(4) } else { 1 };
    let (next, all) = (AtomicUsize::new(0), Mutex::new(kernels::Outcome::default()));
    let work = || {
        let (device, rows) = (kernels::device().unwrap(), table::all());
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let started = std::time::Instant::now();
            let case = |(row, dtype, class): &cover::Cell| case::Case::new(&rows[*row], *dtype, *class);
            let outcome = kernels::check(&device, &part.iter().map(case).collect::<Vec<_>>());
            // A long run tells at once.
            println!("{}: {} cases in {:.1} s", part[0].2, part.len(), started.elapsed().as_secs_f64());
            outcome.wrong.iter().for_each(|why| println!("{why}"));
            all.lock().unwrap().add(outcome);
        }
    };
    // Joined, since a scope ends with its threads' closures: a thread closes its device behind that, and a process that
    // ends meanwhile takes the driver away beneath it.
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        running.into_iter().for_each(|thread| thread.join().unwrap());
    });
    let all = all.into_inner().unwrap();
    println!(
        "{device}: {} of {} cells, {} results, {} refused by name",
        chosen.len(),
        cells.len(),
        all.compared,
        all.refused
    );
    let shown = all.wrong.iter().take(60).cloned().collect::<Vec<_>>().join("\n");
    assert!(all.wrong.is_empty(), "seed {seed}: {} wrong:\n{shown}", all.wrong.len());
}
