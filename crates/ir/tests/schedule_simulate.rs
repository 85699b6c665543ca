//! Plans executed on bytes by an executor that shares no code with the planner, and broken plans caught by
//! it and by the checker alike.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "tests, with measured figures in their output")]

mod schedule_support;

use schedule_support::{Random, Style, buffer, dispatch, hash_kernel, mix, random_program};
use tallow_ir::schedule::simulate::{Device, SimulateError, replay, run_sequential, sequential_memory};
use tallow_ir::schedule::{BufferKind, Command, Limits, Plan, Program, Slot, Violation, check, plan};

const RUNS: usize = 3;
const LIMITS: Limits = Limits { alignment: 4, max_buffer_bytes: u64::MAX };

/// Everything that can be seen: what each dispatch read (as hashes, sorted, because the order inside a
/// level is free) and what the host reads in the end.
#[derive(PartialEq, Eq, Debug)]
struct Seen {
    reads: Vec<(usize, u64)>,
    host: Vec<Vec<u8>>,
}

fn digest(reads: &[Vec<u8>]) -> u64 {
    reads.iter().flatten().fold(1, |hash, &byte| mix(hash ^ u64::from(byte)).wrapping_add(1))
}

/// A kernel that gives other values in every run, so that a value of the run before is never right.
fn counting_kernel(dispatches: usize) -> impl FnMut(usize, &[Vec<u8>], &mut [Vec<u8>]) {
    let mut launches = vec![0; dispatches];
    move |dispatch, reads, writes| {
        launches[dispatch] += 1;
        hash_kernel(dispatch + dispatches * launches[dispatch], reads, writes);
    }
}

fn host_buffers(p: &Program) -> Vec<usize> {
    (0..p.buffers.len()).filter(|&b| !p.buffers[b].kind.is_in_arena()).collect()
}

/// The initial bytes of a buffer outside the arena, the same for both executors.
fn initial(p: &Program, buffer: usize) -> Vec<u8> {
    (0..p.buffers[buffer].bytes).map(|i| mix(i ^ (buffer as u64) << 32) as u8).collect()
}

fn sequentially(p: &Program) -> Seen {
    let mut memory = sequential_memory(p);
    for buffer in host_buffers(p) {
        memory[buffer] = initial(p, buffer);
    }
    let mut reads = Vec::new();
    let mut kernel = counting_kernel(p.dispatches.len());
    for _ in 0..RUNS {
        run_sequential(p, &mut memory, &mut |d, r, w| {
            reads.push((d, digest(r)));
            kernel(d, r, w);
        })
        .unwrap();
    }
    reads.sort_unstable();
    Seen { reads, host: host_buffers(p).iter().map(|&b| memory[b].clone()).collect() }
}

fn planned(p: &Program, plan: &Plan, seed: u64) -> Result<Seen, SimulateError> {
    let mut device = Device::new(p, plan, seed)?;
    for buffer in host_buffers(p) {
        device.write(buffer, &initial(p, buffer))?;
    }
    let mut reads = Vec::new();
    let mut kernel = counting_kernel(p.dispatches.len());
    replay(p, plan, &mut device, RUNS, seed, &mut |d, r, w| {
        reads.push((d, digest(r)));
        kernel(d, r, w);
    })?;
    reads.sort_unstable();
    Ok(Seen { reads, host: host_buffers(p).iter().map(|&b| device.read(b).to_vec()).collect() })
}

/// Whether any of `seeds` device behaviours gives another result than the program means.
fn differs(p: &Program, plan: &Plan, right: &Seen, seeds: u64) -> bool {
    (0..seeds).any(|seed| planned(p, plan, seed).unwrap() != *right)
}

/// Whether the checker sees a hazard, as opposed to a wrong figure or an incomplete list.
fn is_hazardous(p: &Program, plan: &Plan) -> bool {
    check(p, plan, &LIMITS).is_err_and(|found| {
        found.iter().any(|violation| match violation {
            Violation::Unordered { .. }
            | Violation::Shared { .. }
            | Violation::PhysicalConflict { .. }
            | Violation::UnorderedRuns { .. } => true,
            Violation::Program(_)
            | Violation::Recorded { .. }
            | Violation::UnknownDispatch { .. }
            | Violation::LevelMismatch { .. }
            | Violation::Slot { .. }
            | Violation::Misplaced { .. }
            | Violation::WindowTooLarge { .. }
            | Violation::HeadUncovered { .. }
            | Violation::TailUncovered { .. }
            | Violation::Figure { .. } => false,
        })
    })
}

/// The plan without its `number`-th barrier.
fn without_barrier(plan: &Plan, number: usize) -> Plan {
    let mut plan = plan.clone();
    let is_barrier = |command: &Command| matches!(command, Command::Barrier { .. });
    let mut barriers = plan.commands.iter().enumerate().filter(|(_, c)| is_barrier(c)).map(|(i, _)| i);
    let position = barriers.nth(number).unwrap();
    plan.commands.remove(position);
    plan
}

/// The plan with levels `level` and `level + 1` exchanged.
fn with_swapped_levels(plan: &Plan, level: usize) -> Plan {
    let mut plan = plan.clone();
    plan.levels.swap(level, level + 1);
    plan.commands.clear();
    for (index, dispatches) in plan.levels.iter().enumerate() {
        if index > 0 {
            plan.commands.push(Command::Barrier { reasons: Vec::new() });
        }
        plan.commands.extend(dispatches.iter().map(|&d| Command::Dispatch(d)));
    }
    plan
}

/// The plan with one buffer at another offset, the window made large enough.
fn with_offset(p: &Program, plan: &Plan, buffer: usize, offset: u64) -> Plan {
    let mut plan = plan.clone();
    let slot = plan.arena.slots[buffer].unwrap();
    plan.arena.slots[buffer] = Some(Slot { offset, ..slot });
    let window = &mut plan.arena.windows[slot.window];
    *window = (*window).max(offset + p.buffers[buffer].bytes);
    plan.arena.bytes = plan.arena.windows.iter().sum();
    plan
}

#[test]
fn plans_mean_what_the_program_means() {
    for seed in 0..400 {
        let mut random = Random(seed);
        let style = if random.once_in(2) { Style::Free } else { Style::EveryByteMatters };
        let count = 1 + random.below(14);
        let p = random_program(&mut random, count, style);
        let max_buffer_bytes = [64, 100, u64::MAX][random.below(3)];
        let limits = Limits { alignment: [1, 4, 16][random.below(3)], max_buffer_bytes };
        let plan = plan(&p, &limits).unwrap();
        assert_eq!(check(&p, &plan, &limits), Ok(()), "seed {seed}\n{}", plan.text(&p));
        let right = sequentially(&p);
        for device in 0..8 {
            assert_eq!(planned(&p, &plan, device).unwrap(), right, "seed {seed}\n{}", plan.text(&p));
        }
    }
}

#[test]
fn every_deleted_barrier_is_detected() {
    let mut mutants = 0;
    for seed in 0..150 {
        let mut random = Random(seed ^ 0x1111);
        let count = 2 + random.below(10);
        let p = random_program(&mut random, count, Style::EveryByteMatters);
        let plan = plan(&p, &LIMITS).unwrap();
        let right = sequentially(&p);
        for number in 0..plan.barriers() {
            let mutant = without_barrier(&plan, number);
            assert!(is_hazardous(&p, &mutant), "seed {seed}, barrier {number}\n{}", plan.text(&p));
            assert!(differs(&p, &mutant, &right, 64), "seed {seed}, barrier {number}\n{}", plan.text(&p));
            mutants += 1;
        }
    }
    println!("{mutants} deleted barriers, all detected by checker and simulator");
    assert!(mutants > 500);
}

#[test]
fn every_swap_of_levels_is_detected() {
    let mut mutants = 0;
    for seed in 0..100 {
        let mut random = Random(seed ^ 0x2222);
        let count = 2 + random.below(10);
        let p = random_program(&mut random, count, Style::EveryByteMatters);
        let plan = plan(&p, &LIMITS).unwrap();
        let right = sequentially(&p);
        for level in 0..plan.barriers() {
            let mutant = with_swapped_levels(&plan, level);
            assert!(is_hazardous(&p, &mutant), "seed {seed}, level {level}");
            assert!(differs(&p, &mutant, &right, 16), "seed {seed}, level {level}\n{}", plan.text(&p));
            mutants += 1;
        }
    }
    assert!(mutants > 300);
}

/// Every buffer at every offset: the checker calls hazardous exactly what can give a wrong result.
#[test]
fn shifted_offsets_are_detected_exactly_when_illegal() {
    let (mut illegal, mut legal) = (0, 0);
    for seed in 0..60 {
        let mut random = Random(seed ^ 0x3333);
        let count = 2 + random.below(8);
        let p = random_program(&mut random, count, Style::EveryByteMatters);
        let plan = plan(&p, &LIMITS).unwrap();
        let right = sequentially(&p);
        for buffer in 0..p.buffers.len() {
            let Some(slot) = plan.arena.slots[buffer] else { continue };
            for offset in (0..=plan.arena.windows[slot.window]).step_by(8) {
                let mutant = with_offset(&p, &plan, buffer, offset);
                let hazardous = is_hazardous(&p, &mutant);
                let wrong = differs(&p, &mutant, &right, if hazardous { 64 } else { 6 });
                assert_eq!(hazardous, wrong, "seed {seed}: buffer {buffer} at {offset}\n{}", mutant.text(&p));
                *if hazardous { &mut illegal } else { &mut legal } += 1;
            }
        }
    }
    println!("{illegal} illegal offsets detected, {legal} legal ones accepted");
    assert!(illegal > 1000 && legal > 200);
}

/// Programs with dead values and partial reads: the checker may be stricter than results show, never laxer.
#[test]
fn what_changes_results_is_rejected() {
    let mut wrong = 0;
    for seed in 0..150 {
        let mut random = Random(seed ^ 0x4444);
        let count = 2 + random.below(10);
        let p = random_program(&mut random, count, Style::Free);
        let plan = plan(&p, &LIMITS).unwrap();
        let right = sequentially(&p);
        let mut mutants: Vec<Plan> = (0..plan.barriers()).map(|n| without_barrier(&plan, n)).collect();
        mutants.extend((0..plan.barriers()).map(|level| with_swapped_levels(&plan, level)));
        for buffer in 0..p.buffers.len() {
            if plan.arena.slots[buffer].is_some() {
                mutants.push(with_offset(&p, &plan, buffer, 4 * random.below(20) as u64));
            }
        }
        let mut headless = plan.clone();
        headless.head.clear();
        mutants.push(headless);
        for mutant in mutants {
            if differs(&p, &mutant, &right, 12) {
                wrong += 1;
                assert!(is_hazardous(&p, &mutant), "seed {seed}\n{}", mutant.text(&p));
            }
        }
    }
    assert!(wrong > 500, "{wrong}");
}

/// Without the head barrier two runs meet: hazardous exactly when their boundary can give a wrong result.
#[test]
fn a_missing_head_is_detected() {
    let (mut illegal, mut legal) = (0, 0);
    for seed in 0..200 {
        let mut random = Random(seed ^ 0x5555);
        let count = 1 + random.below(6);
        let p = random_program(&mut random, count, Style::EveryByteMatters);
        let mut plan = plan(&p, &LIMITS).unwrap();
        let right = sequentially(&p);
        plan.head.clear();
        let found = check(&p, &plan, &LIMITS).unwrap_err();
        assert!(found.iter().any(|violation| matches!(violation, Violation::HeadUncovered { .. })));
        let hazardous = is_hazardous(&p, &plan);
        assert_eq!(hazardous, differs(&p, &plan, &right, 96), "seed {seed}\n{}", plan.text(&p));
        *if hazardous { &mut illegal } else { &mut legal } += 1;
    }
    println!("{illegal} boundaries need the head in replay, {legal} only for other executables");
    assert!(illegal > 50);
}

#[test]
fn a_missing_tail_is_detected() {
    let mut p = Program::default();
    let x = buffer(&mut p, "x", 16, BufferKind::Input(0));
    let y = buffer(&mut p, "y", 16, BufferKind::Output(0));
    dispatch(&mut p, "k", &[x], &[y]);
    let mut plan = plan(&p, &LIMITS).unwrap();
    let right = sequentially(&p);
    assert!(!differs(&p, &plan, &right, 32));
    plan.tail.clear();
    assert_eq!(check(&p, &plan, &LIMITS), Err(vec![Violation::TailUncovered { buffer: y }]));
    assert!(differs(&p, &plan, &right, 32));
}

#[test]
fn a_plan_outside_its_memory_is_an_error() {
    let mut p = Program::default();
    let x = buffer(&mut p, "x", 16, BufferKind::Input(0));
    let t = buffer(&mut p, "t", 16, BufferKind::Arena);
    dispatch(&mut p, "k", &[x], &[t]);
    let plan = plan(&p, &LIMITS).unwrap();
    let mut outside = plan.clone();
    outside.arena.slots[t] = Some(Slot { window: 0, offset: 4 });
    assert_eq!(planned(&p, &outside, 0), Err(SimulateError::OutsideMemory { buffer: t, start: 0, end: 16 }));
    let mut device = Device::new(&p, &plan, 0).unwrap();
    assert_eq!(device.write(t, &[0; 16]), Err(SimulateError::HostAccess { buffer: t, bytes: 16 }));
    assert_eq!(device.write(x, &[0; 4]), Err(SimulateError::HostAccess { buffer: x, bytes: 4 }));
    let shrink = &mut |_: usize, _: &[Vec<u8>], w: &mut [Vec<u8>]| w[0].clear();
    assert_eq!(replay(&p, &plan, &mut device, 1, 0, shrink), Err(SimulateError::WriteLength { dispatch: 0 }));
}
