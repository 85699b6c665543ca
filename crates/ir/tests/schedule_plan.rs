//! Plans as text, what programs are refused, and plans of the size of real models.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, with measured figures in their output")]

mod schedule_support;

use std::time::Instant;

use insta::assert_snapshot;
use schedule_support::{ROOMY, Random, Style, buffer, decoder, dispatch, part, random_program};
use tallow_ir::schedule::{
    BufferKind, Dispatch, Limits, Program, ScheduleError, barriers_lower_bound, check, plan,
};

const DEVICE: Limits = Limits { alignment: 16, max_buffer_bytes: 128 << 20 };

#[test]
fn one_layer_of_decoding() {
    let p = decoder(1, 64, 256, 1);
    let plan = plan(&p, &DEVICE).unwrap();
    assert_eq!(check(&p, &plan, &DEVICE), Ok(()));
    assert_snapshot!(plan.text(&p));
}

/// An update in place is ordered after its readers; halves of one buffer are written side by side; a value
/// is overwritten; scratch keeps its bytes; the symbol table is filled on the device.
#[test]
fn every_hazard() {
    let mut p = Program::default();
    let x = buffer(&mut p, "x", 64, BufferKind::Input(0));
    let symbols = buffer(&mut p, "symbols", 16, BufferKind::Symbols);
    let cache = buffer(&mut p, "cache", 256, BufferKind::State(0));
    let counter = buffer(&mut p, "counter", 4, BufferKind::Scratch { fill: 0 });
    let t = buffer(&mut p, "t", 128, BufferKind::Arena);
    let y = buffer(&mut p, "y", 64, BufferKind::Output(0));
    dispatch(&mut p, "advance", &[symbols], &[symbols]);
    dispatch(&mut p, "old", &[cache], &[y]);
    for (name, start) in [("low", 0), ("high", 64)] {
        p.dispatches.push(Dispatch {
            name: name.into(),
            reads: vec![part(x, 0, 64), part(symbols, 0, 16)],
            writes: vec![part(t, start, start + 64)],
        });
    }
    p.dispatches.push(Dispatch {
        name: "append".into(),
        reads: vec![part(t, 0, 64)],
        writes: vec![part(cache, 64, 128)],
    });
    dispatch(&mut p, "count", &[t, counter], &[counter]);
    dispatch(&mut p, "again", &[x], &[t]);
    dispatch(&mut p, "end", &[t, cache], &[y]);
    let plan = plan(&p, &DEVICE).unwrap();
    assert_eq!(check(&p, &plan, &DEVICE), Ok(()));
    assert_snapshot!(plan.text(&p));
}

#[test]
fn several_windows() {
    let mut p = Program::default();
    let x = buffer(&mut p, "x", 16, BufferKind::Input(0));
    let parts: Vec<usize> =
        (0..3).map(|i| buffer(&mut p, format!("part{i}"), 600 << 10, BufferKind::Arena)).collect();
    let small = buffer(&mut p, "small", 300 << 10, BufferKind::Arena);
    let y = buffer(&mut p, "y", 16, BufferKind::Output(0));
    dispatch(&mut p, "spread", &[x], &parts);
    dispatch(&mut p, "narrow", &parts, &[small]);
    dispatch(&mut p, "end", &[small], &[y]);
    let limits = Limits { alignment: 256, max_buffer_bytes: 1 << 20 };
    let plan = plan(&p, &limits).unwrap();
    assert_eq!(check(&p, &plan, &limits), Ok(()));
    assert_snapshot!(plan.text(&p));
}

#[test]
fn nothing_to_do() {
    let p = Program::default();
    let plan = plan(&p, &ROOMY).unwrap();
    assert_eq!(check(&p, &plan, &ROOMY), Ok(()));
    assert_snapshot!(plan.text(&p), @r"
    plan: 0 dispatches, 0 levels, 0 barriers (at least 0)
    arena: 0 bytes in 0 windows, 0 live at most (1.000)
    ");
}

/// Moving a dispatch later within its slack saves its result from living long, at no level.
#[test]
fn slack_lowers_the_peak() {
    let mut p = Program::default();
    let x = buffer(&mut p, "x", 4, BufferKind::Input(0));
    let big = buffer(&mut p, "big", 4096, BufferKind::Arena);
    dispatch(&mut p, "expand", &[x], &[big]);
    let mut last = x;
    for step in 0..4 {
        let next = buffer(&mut p, format!("s{step}"), 2048, BufferKind::Arena);
        dispatch(&mut p, format!("step{step}"), &[last], &[next]);
        last = next;
    }
    let y = buffer(&mut p, "y", 4, BufferKind::Output(0));
    dispatch(&mut p, "join", &[big, last], &[y]);
    let plan = plan(&p, &ROOMY).unwrap();
    assert_eq!(check(&p, &plan, &ROOMY), Ok(()));
    assert_eq!(plan.barriers(), 4);
    assert_eq!(plan.arena.bytes, 4096 + 2048 + 2048, "big is born beside step3\n{}", plan.text(&p));
    assert!(plan.levels[3].contains(&0));
}

#[test]
fn an_empty_range_orders_nothing() {
    let mut p = Program::default();
    let s = buffer(&mut p, "s", 8, BufferKind::State(0));
    let y = buffer(&mut p, "y", 8, BufferKind::Output(0));
    let empty = buffer(&mut p, "empty", 0, BufferKind::Arena);
    dispatch(&mut p, "update", &[], &[s, empty]);
    p.dispatches.push(Dispatch {
        name: "look".into(),
        reads: vec![part(s, 4, 4), part(empty, 0, 0)],
        writes: vec![part(y, 0, 8)],
    });
    let plan = plan(&p, &ROOMY).unwrap();
    assert_eq!(plan.barriers(), 0);
    assert_eq!(check(&p, &plan, &ROOMY), Ok(()));
}

fn refused(limits: &Limits, build: impl FnOnce(&mut Program)) -> String {
    let mut p = Program::default();
    build(&mut p);
    let error = plan(&p, limits).unwrap_err();
    assert_eq!(p.validate(limits), Err::<(), ScheduleError>(error.clone()));
    error.to_string()
}

#[test]
fn invalid_programs_are_refused_by_name() {
    let no_alignment = Limits { alignment: 0, ..ROOMY };
    assert_snapshot!(refused(&no_alignment, |_| {}), @"the arena alignment is 0, it must be at least 1");
    assert_snapshot!(refused(&ROOMY, |p| {
        p.dispatches.push(Dispatch { name: "k".into(), reads: vec![part(3, 0, 4)], writes: vec![] });
    }), @"dispatch k accesses buffer 3 of 0");
    assert_snapshot!(refused(&ROOMY, |p| {
        buffer(p, "x", 8, BufferKind::Input(0));
        p.dispatches.push(Dispatch { name: "k".into(), reads: vec![part(0, 4, 12)], writes: vec![] });
    }), @"dispatch k accesses bytes 4..12 of x, which has 8");
    assert_snapshot!(refused(&ROOMY, |p| {
        buffer(p, "x", 8, BufferKind::Input(0));
        p.dispatches.push(Dispatch { name: "k".into(), reads: vec![part(0, 6, 4)], writes: vec![] });
    }), @"dispatch k accesses bytes 6..4 of x, which has 8");
    assert_snapshot!(refused(&ROOMY, |p| {
        buffer(p, "k_cache", 8, BufferKind::State(2));
        buffer(p, "k_cache_new", 8, BufferKind::State(2));
    }), @"buffers k_cache and k_cache_new are both State(2)");
    assert_snapshot!(refused(&ROOMY, |p| {
        let w = buffer(p, "w", 8, BufferKind::Weight(1));
        dispatch(p, "k", &[], &[w]);
    }), @"dispatch k writes w, which is read only (Weight(1))");
    assert_snapshot!(refused(&ROOMY, |p| {
        let t = buffer(p, "t", 8, BufferKind::Arena);
        p.dispatches.push(Dispatch { name: "a".into(), reads: vec![], writes: vec![part(t, 0, 4)] });
        dispatch(p, "b", &[t], &[]);
    }), @"dispatch b reads bytes 0..8 of t before they are written");
    assert_snapshot!(refused(&Limits { alignment: 16, max_buffer_bytes: 1 << 20 }, |p| {
        buffer(p, "logits", (1 << 20) + 1, BufferKind::Arena);
    }), @"buffer logits has 1048577 bytes, the device binds at most 1048576");
    assert_snapshot!(refused(&ROOMY, |p| {
        buffer(p, "a", u64::MAX, BufferKind::Arena);
        buffer(p, "b", 1, BufferKind::Arena);
    }), @"the arena buffers together exceed 2^64 bytes");
    assert_snapshot!(refused(&Limits { alignment: 16, ..ROOMY }, |p| {
        buffer(p, "a", u64::MAX, BufferKind::Arena);
    }), @"the arena buffers together exceed 2^64 bytes");
}

/// The shape of an 8B model's steps: barriers at the bound, the arena at most 1.05 of the live bytes.
#[test]
fn decoders_are_planned_tightly() {
    let five_percent =
        [(1, u64::MAX, 1.05), (512, u64::MAX, 1.05), (512, 64 << 20, 1.05), (2048, 1 << 28, 1.05)];
    // Here one buffer fills a window, and the largest of the next level leaves no room beside it in that
    // window for what lives across both: 7/6 of the live bytes is the least that windows of 128 MiB allow.
    let windows_bind = [(2048, 128 << 20, 7.001 / 6.0)];
    for (rows, limit, most) in five_percent.into_iter().chain(windows_bind) {
        let p = decoder(32, 4096, 14336, rows);
        let limits = Limits { alignment: 16, max_buffer_bytes: limit };
        let plan = plan(&p, &limits).unwrap();
        assert_eq!(check(&p, &plan, &limits), Ok(()));
        assert_eq!(plan.barriers(), barriers_lower_bound(&p));
        assert_eq!(plan.levels.len(), 1 + 32 * 6 + 2);
        let ratio = plan.arena.bytes as f64 / plan.arena.lower_bound_bytes as f64;
        println!("{rows} rows, windows {limit}: {} bytes, {ratio:.4}", plan.arena.bytes);
        assert!(ratio <= most, "{rows} rows, windows {limit}: {ratio}");
    }
}

/// Thousands of dispatches. The time is printed and only a runaway fails, because tests share machines.
#[test]
fn large_programs_are_planned_fast() {
    let mut programs = vec![("decoder of 430 layers", decoder(430, 512, 2048, 1))];
    for (name, seed, style) in [("random", 1, Style::Free), ("every byte", 2, Style::EveryByteMatters)] {
        programs.push((name, random_program(&mut Random(seed), 3000, style)));
    }
    // No hazards but the join: all levels equal, every buffer alive with every other.
    let mut wide = Program::default();
    let x = buffer(&mut wide, "x", 4, BufferKind::Input(0));
    let all: Vec<usize> =
        (0..3000).map(|i| buffer(&mut wide, format!("t{i}"), 16 * (1 + i % 97), BufferKind::Arena)).collect();
    for &t in &all {
        dispatch(&mut wide, "make", &[x], &[t]);
    }
    let y = buffer(&mut wide, "y", 4, BufferKind::Output(0));
    dispatch(&mut wide, "join", &all, &[y]);
    programs.push(("wide", wide));
    // A long chain beside many dispatches that may go anywhere.
    let mut slack = Program::default();
    let x = buffer(&mut slack, "x", 4, BufferKind::Input(0));
    let mut last = x;
    let mut ends = Vec::new();
    for step in 0..1500u64 {
        let next = buffer(&mut slack, format!("c{step}"), 64, BufferKind::Arena);
        dispatch(&mut slack, "chain", &[last], &[next]);
        let side = buffer(&mut slack, format!("s{step}"), 16 * (1 + step % 31), BufferKind::Arena);
        dispatch(&mut slack, "side", &[x], &[side]);
        ends.push(side);
        last = next;
    }
    ends.push(last);
    let y = buffer(&mut slack, "y", 4, BufferKind::Output(0));
    dispatch(&mut slack, "join", &ends, &[y]);
    programs.push(("slack", slack));
    // Random sizes are multiples of four: a coarser alignment would only measure its own padding.
    let limits = Limits { alignment: 4, ..DEVICE };
    for (name, p) in programs {
        let start = Instant::now();
        let plan = plan(&p, &limits).unwrap();
        let planned = start.elapsed();
        let start = Instant::now();
        assert_eq!(check(&p, &plan, &limits), Ok(()));
        println!(
            "{name}: {} dispatches, {} buffers, {} levels, arena ratio {:.4}: planned in {planned:.0?}, checked in {:.0?}",
            p.dispatches.len(),
            p.buffers.len(),
            plan.levels.len(),
            plan.arena.bytes as f64 / plan.arena.lower_bound_bytes as f64,
            start.elapsed(),
        );
        assert!(planned.as_secs() < 10, "{name} took {planned:?}");
    }
}

#[test]
fn planning_is_deterministic() {
    for seed in 0..20 {
        let p = random_program(&mut Random(seed), 40, Style::Free);
        assert_eq!(plan(&p, &DEVICE), plan(&p, &DEVICE));
    }
}
