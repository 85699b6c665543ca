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

/// The device against the interpreter.
#[cfg(feature = "vulkan")]
#[test]
fn kernels_match_the_interpreter() {
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
    let chosen = if full { cells.clone() } else { cover::pairs(&cells, seed) };
    // By class, so that what is large comes alone, and few cases are held at once.
    let mut all = kernels::Outcome::default();
    for class in Class::ALL {
        let started = std::time::Instant::now();
        let of_class: Vec<_> = chosen.iter().filter(|(.., c)| *c == class).collect();
        for part in of_class.chunks(300) {
            let cases: Vec<_> =
                part.iter().map(|(row, dtype, _)| case::Case::new(&rows[*row], *dtype, class)).collect();
            let outcome = kernels::check(&device, &cases);
            all.compared += outcome.compared;
            all.refused += outcome.refused;
            // A long run tells at once.
            outcome.wrong.iter().for_each(|why| println!("{why}"));
            all.wrong.extend(outcome.wrong);
        }
        println!("{class}: {} cases in {:.1} s", of_class.len(), started.elapsed().as_secs_f64());
    }
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
