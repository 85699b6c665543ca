//! The planner against exhaustive search on small programs.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, with measured figures in their output")]

mod schedule_support;

use schedule_support::{ROOMY, Random, Style, buffer, dispatch, random_program};
use tallow_ir::schedule::{Access, BufferKind, Limits, Program, barriers_lower_bound, check, plan};

fn conflict(p: &Program, a: usize, b: usize) -> bool {
    let conflict = |x: &Access, y: &Access| {
        x.buffer == y.buffer && (x.start..x.end).any(|byte| (y.start..y.end).contains(&byte))
    };
    let (a, b) = (&p.dispatches[a], &p.dispatches[b]);
    let pairs = |x: &[Access], y: &[Access]| x.iter().any(|x| y.iter().any(|y| conflict(x, y)));
    pairs(&a.writes, &b.writes) || pairs(&a.writes, &b.reads) || pairs(&a.reads, &b.writes)
}

fn conflicts(p: &Program) -> Vec<Vec<bool>> {
    let count = p.dispatches.len();
    (0..count).map(|a| (0..count).map(|b| a < b && conflict(p, a, b)).collect()).collect()
}

/// Calls `visit` with every assignment of `depth` levels that keeps conflicting pairs rising.
fn assignments(
    conflicts: &[Vec<bool>],
    depth: usize,
    chosen: &mut Vec<usize>,
    visit: &mut dyn FnMut(&[usize]),
) {
    let next = chosen.len();
    if next == conflicts.len() {
        visit(chosen);
        return;
    }
    for level in 0..depth {
        if (0..next).all(|earlier| !conflicts[earlier][next] || chosen[earlier] < level) {
            chosen.push(level);
            assignments(conflicts, depth, chosen, visit);
            chosen.pop();
        }
    }
}

/// The fewest levels that any assignment has, by trying depth after depth.
fn fewest_levels(conflicts: &[Vec<bool>]) -> usize {
    (0..=conflicts.len())
        .find(|&depth| {
            let mut found = false;
            assignments(conflicts, depth, &mut Vec::new(), &mut |_| found = true);
            found
        })
        .unwrap()
}

/// The peak of live arena bytes under an assignment.
fn peak(p: &Program, level: &[usize], depth: usize) -> u64 {
    let mut live = vec![0; depth];
    for (index, buffer) in p.buffers.iter().enumerate() {
        let used = |d: &usize| {
            let dispatch = &p.dispatches[*d];
            dispatch.reads.iter().chain(&dispatch.writes).any(|access| access.buffer == index)
        };
        let levels: Vec<usize> = (0..level.len()).filter(used).map(|d| level[d]).collect();
        let (Some(&first), Some(&last)) = (levels.iter().min(), levels.iter().max()) else { continue };
        let range = match buffer.kind {
            BufferKind::Arena => first..=last,
            BufferKind::Scratch { .. } => 0..=depth - 1,
            _ => continue,
        };
        live[range].iter_mut().for_each(|live| *live += buffer.bytes);
    }
    live.into_iter().max().unwrap_or(0)
}

#[test]
fn barriers_are_the_fewest() {
    for seed in 0..1500 {
        let mut random = Random(seed);
        let count = 1 + random.below(7);
        let p = random_program(&mut random, count, Style::Free);
        let fewest = fewest_levels(&conflicts(&p)) - 1;
        let plan = plan(&p, &ROOMY).unwrap();
        assert_eq!(plan.barriers(), fewest, "seed {seed}\n{}", plan.text(&p));
        assert_eq!(barriers_lower_bound(&p), fewest, "seed {seed}");
        assert_eq!(check(&p, &plan, &ROOMY), Ok(()), "seed {seed}");
    }
}

/// Level assignments on small programs: the local search reaches the least peak almost always.
#[test]
fn peak_of_live_bytes_is_near_the_least() {
    let (mut optimal, mut total, mut worst) = (0, 0, 1.0f64);
    for seed in 0..1500 {
        let mut random = Random(seed ^ 0xabcd);
        let count = 2 + random.below(6);
        let p = random_program(&mut random, count, Style::Free);
        let conflicts = conflicts(&p);
        let depth = fewest_levels(&conflicts);
        let mut least = u64::MAX;
        assignments(&conflicts, depth, &mut Vec::new(), &mut |level| {
            least = least.min(peak(&p, level, depth))
        });
        let found = plan(&p, &ROOMY).unwrap().arena.lower_bound_bytes;
        assert!(found >= least, "seed {seed}");
        total += 1;
        optimal += usize::from(found == least);
        worst = worst.max(found as f64 / least.max(1) as f64);
    }
    println!("least peak in {optimal} of {total} programs, worst ratio {worst:.3}");
    assert!(optimal * 1000 >= total * 995, "{optimal} of {total}");
    assert!(worst <= 1.10, "{worst}");
}

/// A program whose arena buffers live on exactly the given levels: a chain of dispatches through states,
/// each of which writes the buffers that begin and reads those that go on.
fn with_lifetimes(lifetimes: &[(u64, usize, usize)], depth: usize) -> Program {
    let mut p = Program::default();
    let state = buffer(&mut p, "chain", 4, BufferKind::State(0));
    for (index, &(bytes, _, _)) in lifetimes.iter().enumerate() {
        buffer(&mut p, format!("a{index}"), bytes, BufferKind::Arena);
    }
    for level in 0..depth {
        let (mut reads, mut writes) = (vec![state], vec![state]);
        for (index, &(_, first, last)) in lifetimes.iter().enumerate() {
            if first == level {
                writes.push(index + 1);
            } else if first < level && level <= last {
                reads.push(index + 1);
            }
        }
        dispatch(&mut p, format!("d{level}"), &reads, &writes);
    }
    p
}

/// The least arena in one window: every order of placing at the lowest free aligned offset, which reaches
/// an optimal packing for some order.
fn least_arena(lifetimes: &[(u64, usize, usize)], alignment: u64) -> u64 {
    fn go(items: &[(u64, usize, usize)], alignment: u64, placed: &mut Vec<(usize, u64)>, best: &mut u64) {
        let height = placed.iter().map(|&(item, offset)| offset + items[item].0).max().unwrap_or(0);
        if height >= *best {
            return;
        }
        if placed.len() == items.len() {
            *best = height;
            return;
        }
        for item in 0..items.len() {
            if placed.iter().any(|&(other, _)| other == item) {
                continue;
            }
            let (bytes, first, last) = items[item];
            let blockers: Vec<(u64, u64)> = placed
                .iter()
                .filter(|&&(other, _)| items[other].1 <= last && first <= items[other].2)
                .map(|&(other, offset)| (offset, offset + items[other].0))
                .collect();
            let mut offsets: Vec<u64> =
                blockers.iter().map(|b| b.1.div_ceil(alignment) * alignment).collect();
            offsets.push(0);
            let fits = |o: &u64| blockers.iter().all(|b| o + bytes <= b.0 || b.1 <= *o);
            let offset = offsets.into_iter().filter(fits).min().unwrap();
            placed.push((item, offset));
            go(items, alignment, placed, best);
            placed.pop();
        }
    }
    let mut best = u64::MAX;
    go(lifetimes, alignment, &mut Vec::new(), &mut best);
    best
}

fn random_lifetimes(random: &mut Random, most: usize) -> (Vec<(u64, usize, usize)>, usize) {
    let depth = 2 + random.below(6);
    let mut lifetimes = Vec::new();
    for _ in 0..1 + random.below(most) {
        let (a, b) = (random.below(depth), random.below(depth));
        lifetimes.push((1 + random.below(40) as u64, a.min(b), a.max(b)));
    }
    (lifetimes, depth)
}

#[test]
fn arena_is_within_five_percent_of_the_optimum() {
    let (mut optimal, mut total, mut worst) = (0, 0, 1.0f64);
    for seed in 0..4000 {
        let mut random = Random(seed);
        let (lifetimes, depth) = random_lifetimes(&mut random, 6);
        let alignment = [1, 4, 16][random.below(3)];
        let p = with_lifetimes(&lifetimes, depth);
        let limits = Limits { alignment, max_buffer_bytes: u64::MAX };
        let plan = plan(&p, &limits).unwrap();
        assert_eq!(check(&p, &plan, &limits), Ok(()), "seed {seed}");
        let least = least_arena(&lifetimes, alignment);
        assert!(plan.arena.bytes >= least, "seed {seed}: {} < {least}\n{}", plan.arena.bytes, plan.text(&p));
        let ratio = plan.arena.bytes as f64 / least as f64;
        assert!(ratio <= 1.05, "seed {seed}: {} of {least}\n{}", plan.arena.bytes, plan.text(&p));
        total += 1;
        optimal += usize::from(plan.arena.bytes == least);
        worst = worst.max(ratio);
    }
    println!("optimal arena in {optimal} of {total} programs, worst ratio {worst:.3}");
}

/// Larger sets, where only the lower bound is known: random lifetimes are harder than any model.
#[test]
fn large_arenas_are_near_the_lower_bound() {
    let (mut worst, mut sum, mut total) = (1.0f64, 0.0, 0);
    for seed in 0..60 {
        let mut random = Random(seed ^ 0x55);
        let depth = 10 + random.below(40);
        let mut lifetimes = Vec::new();
        for _ in 0..60 {
            let first = random.below(depth);
            let longest = 1 + random.below(depth);
            let last = (first + random.below(longest)).min(depth - 1);
            lifetimes.push((16 * (1 + random.below(400) as u64), first, last));
        }
        let p = with_lifetimes(&lifetimes, depth);
        let limits = Limits { alignment: 16, max_buffer_bytes: u64::MAX };
        let plan = plan(&p, &limits).unwrap();
        assert_eq!(check(&p, &plan, &limits), Ok(()), "seed {seed}");
        let ratio = plan.arena.bytes as f64 / plan.arena.lower_bound_bytes as f64;
        worst = worst.max(ratio);
        sum += ratio;
        total += 1;
    }
    let mean = sum / f64::from(total);
    println!("arena over live bytes: mean {mean:.4}, worst {worst:.4}");
    assert!(mean <= 1.02 && worst <= 1.05, "mean {mean}, worst {worst}");
}

/// The same with windows: as many as needed, none too large, little lost.
#[test]
fn windows_respect_the_limit() {
    let mut worst = 1.0f64;
    for seed in 0..300 {
        let mut random = Random(seed ^ 0x77);
        let (lifetimes, depth) = random_lifetimes(&mut random, 12);
        let p = with_lifetimes(&lifetimes, depth);
        let limits = Limits { alignment: 4, max_buffer_bytes: 48 };
        let plan = plan(&p, &limits).unwrap();
        assert_eq!(check(&p, &plan, &limits), Ok(()), "seed {seed}");
        assert!(plan.arena.windows.iter().all(|&bytes| bytes <= 48));
        worst = worst.max(plan.arena.bytes as f64 / plan.arena.lower_bound_bytes as f64);
    }
    println!("windows of 48 bytes: worst arena over live bytes {worst:.3}");
}
