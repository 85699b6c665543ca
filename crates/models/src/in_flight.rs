//! Decode steps submitted ahead of the host, with batched host wake-ups.
//!
//! A thread that waits for the device wakes up after every submission, which costs it more than all its other work for
//! a step. Where steps are short, the host therefore sleeps on a timer until several are done and collects them at
//! once. Meanwhile the device runs the next step.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// Maximum steps in flight: six that the host collects at once, and one that keeps the device busy meanwhile.
pub const MAX_IN_FLIGHT: usize = 7;

/// Latency budget per host wake-up: up to 25 ms of steps are collected at once. A reader does not notice text that
/// arrives in 40 updates per second (a film has 24 pictures). An 8B model in F16 takes this long for six steps on a
/// device of 4 TB/s.
const LATENCY_BUDGET: Duration = Duration::from_millis(25);

/// Shortest sleep that pays off: a host may wake up 0.2 ms late.
const MIN_SLEEP: Duration = Duration::from_millis(1);

/// One in this many timed sleeps ends before the steps do, in order to measure when they end.
const MEASURED: usize = 4;

/// Steps that can be submitted before the previous ones are done.
pub trait Steps {
    /// A step in flight.
    type Run;
    /// The output of a step.
    type Output;
    /// The error of a step.
    type Error;

    /// Maximum steps that can be in flight; at least one.
    fn most(&self) -> usize;

    /// Submits the step of this index. Steps come in order, and at most `min(most(), MAX_IN_FLIGHT)` are in flight: the
    /// step that many before this one was waited for.
    ///
    /// # Errors
    /// When it cannot be submitted.
    fn submit(&mut self, index: usize) -> Result<Self::Run, Self::Error>;

    /// Waits for a step; may block.
    ///
    /// # Errors
    /// When it failed.
    fn wait(&mut self, run: Self::Run) -> Result<Self::Output, Self::Error>;
}

/// Runs `count` steps, or until `on_output` breaks; it receives the outputs in order. At the end no step is in flight.
/// If `on_output` broke or a step failed, the steps submitted after it, fewer than [`MAX_IN_FLIGHT`], are discarded.
///
/// # Errors
/// That of the first step that failed.
pub fn follow<S: Steps>(
    steps: &mut S,
    count: usize,
    on_output: &mut dyn FnMut(S::Output) -> ControlFlow<()>,
) -> Result<(), S::Error> {
    follow_by(&System, steps, count, on_output)
}

/// Time source and sleep, replaced in tests.
trait Clock {
    fn now(&self) -> Instant;
    fn sleep(&self, time: Duration);
}

struct System;

impl Clock for System {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

fn follow_by<S: Steps>(
    clock: &impl Clock,
    steps: &mut S,
    count: usize,
    on_output: &mut dyn FnMut(S::Output) -> ControlFlow<()>,
) -> Result<(), S::Error> {
    let most = steps.most().clamp(1, MAX_IN_FLIGHT);
    let mut pace = Pace::new(most, clock.now());
    let mut runs: [Option<Result<S::Run, S::Error>>; MAX_IN_FLIGHT] = [const { None }; MAX_IN_FLIGHT];
    let (mut submitted, mut taken, mut stuck) = (0, 0, false);
    let mut ended = Ok(ControlFlow::Continue(()));
    while taken < count && matches!(ended, Ok(ControlFlow::Continue(()))) {
        // One more than the next batch, and not more: these are discarded when the text ends.
        while !stuck && submitted < count.min(taken + most.min(pace.batch_size() + 1)) {
            let run = steps.submit(submitted);
            stuck = run.is_err();
            runs[submitted % MAX_IN_FLIGHT] = Some(run);
            submitted += 1;
        }
        if let Some(rest) = pace.rest(taken, submitted - taken, clock.now()) {
            clock.sleep(rest);
        }
        let wait_start = clock.now();
        // `taken < submitted`, unless a submission failed, and that ended the loop.
        let Some(run) = runs[taken % MAX_IN_FLIGHT].take() else { break };
        let output = run.and_then(|run| steps.wait(run));
        taken += 1;
        pace.took(taken, wait_start, clock.now());
        ended = output.map(&mut *on_output);
    }
    // Their buffers must not be reused before they are done. Device errors are reported again by the next use.
    for run in runs.into_iter().flatten().flatten() {
        let _ = steps.wait(run);
    }
    ended.map(|_| ())
}

/// Decides when the host wakes up.
#[derive(Debug)]
struct Pace {
    most: usize,
    /// When the device last finished a step as measured, and how many steps were done then.
    seen: (Instant, usize),
    /// Device time per step, once measured.
    period: Option<Duration>,
    /// Timed sleeps since the device time last differed from the estimate.
    rests: usize,
    /// Number of steps that are done at the end of the current batch.
    until: usize,
    /// Whether the host wakes up before the batch is done, and so measures when it is.
    sees: bool,
    /// Whether the last measurement was longer than the estimate.
    longer: bool,
}

impl Pace {
    fn new(most: usize, now: Instant) -> Pace {
        Pace { most, seen: (now, 0), period: None, rests: 0, until: 0, sees: true, longer: false }
    }

    /// Batch size: steps to collect at once.
    fn batch_size(&self) -> usize {
        let in_that_time = |period: Duration| (LATENCY_BUDGET.as_nanos() / period.as_nanos().max(1)) as usize;
        self.period.map_or(1, in_that_time).clamp(1, (self.most - 1).max(1))
    }

    /// How long to sleep before waiting for step `taken`, with `under_way` steps in flight; `None` for not at all.
    fn rest(&mut self, taken: usize, under_way: usize, now: Instant) -> Option<Duration> {
        if taken < self.until {
            return None;
        }
        let steps = self.batch_size().min(under_way);
        (self.until, self.sees) = (taken + steps, true);
        let period = self.period.filter(|_| steps > 1)?;
        self.sees = self.rests.is_multiple_of(MEASURED);
        self.rests += 1;
        let (at, done) = self.seen;
        let end = at + period * (self.until - done) as u32;
        // An eighth of a step too late costs nothing while the device runs the next step, and avoids a second sleep.
        let due = if self.sees { end - period / 2 } else { end + period / 8 };
        let rest = due.saturating_duration_since(now);
        // Without a sleep each step is waited for, so the last one is measured.
        self.sees |= rest < MIN_SLEEP;
        (rest >= MIN_SLEEP).then_some(rest)
    }

    /// Records that `taken` steps are done; the last one was waited for from `wait_start` to `now`.
    fn took(&mut self, taken: usize, wait_start: Instant, now: Instant) {
        if taken < self.until || !self.sees {
            return;
        }
        let (at, done) = std::mem::replace(&mut self.seen, (now, taken));
        let period = (now - at) / (taken - done) as u32;
        let longer = self.period.is_some_and(|before| period > before * 9 / 8);
        let once = !std::mem::replace(&mut self.longer, longer) && longer;
        self.period = if done == 0 {
            // The first step began when it was submitted, not when a previous one was done.
            None
        } else if (now - wait_start) * 4 < period {
            // The host hardly waited: the device got faster or the host is the bottleneck, and sleeping would slow it
            // down.
            self.rests = 0;
            self.period.map(|period| period / 2)
        } else if once {
            // Perhaps an outlier, on the device or on the host: it must be measured twice to count.
            self.rests = 0;
            self.period
        } else {
            Some(period)
        };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const STEP: Duration = Duration::from_micros(1600);

    /// A device whose steps take `period(index)`, and a host whose clock advances only while it waits.
    struct Simulated<'a> {
        start: Instant,
        now: &'a Cell<Duration>,
        most: usize,
        period: &'a dyn Fn(usize) -> Duration,
        /// When the device finishes all that was submitted.
        busy_until: Duration,
        /// Time for which the device was idle.
        idle: Duration,
        fails_at: Option<usize>,
        submitted: usize,
        waited: usize,
        /// Waits that found a step unfinished.
        blocked: usize,
    }

    struct Clocked<'a>(Instant, &'a Cell<Duration>, &'a Cell<usize>);

    impl Clock for Clocked<'_> {
        fn now(&self) -> Instant {
            self.0 + self.1.get()
        }

        fn sleep(&self, time: Duration) {
            // An OS wakes a thread late.
            self.1.set(self.1.get() + time + Duration::from_micros(60));
            self.2.set(self.2.get() + 1);
        }
    }

    impl Steps for Simulated<'_> {
        type Run = (usize, Duration);
        type Output = usize;
        type Error = usize;

        fn most(&self) -> usize {
            self.most
        }

        fn submit(&mut self, index: usize) -> Result<Self::Run, usize> {
            assert_eq!(index, self.submitted);
            assert!(self.submitted - self.waited < self.most);
            if self.fails_at == Some(index) {
                return Err(index);
            }
            self.idle += self.now.get().saturating_sub(self.busy_until);
            self.submitted += 1;
            self.busy_until = self.busy_until.max(self.now.get()) + (self.period)(index);
            Ok((index, self.busy_until))
        }

        fn wait(&mut self, (index, done): Self::Run) -> Result<usize, usize> {
            self.waited += 1;
            if done > self.now.get() {
                self.now.set(done + Duration::from_micros(30));
                self.blocked += 1;
            }
            Ok(index)
        }
    }

    struct Seen {
        took: Duration,
        idle: Duration,
        slept: usize,
        blocked: usize,
        submitted: usize,
        latest: Duration,
        result: Result<(), usize>,
    }

    /// Collects `taken` of `count` steps, with a host that needs `host` for each.
    fn run(
        period: &dyn Fn(usize) -> Duration,
        most: usize,
        host: &dyn Fn(usize) -> Duration,
        count: usize,
        taken: usize,
    ) -> Seen {
        run_failing(period, most, host, count, taken, None)
    }

    fn run_failing(
        period: &dyn Fn(usize) -> Duration,
        most: usize,
        host: &dyn Fn(usize) -> Duration,
        count: usize,
        taken: usize,
        fails_at: Option<usize>,
    ) -> Seen {
        let (now, slept, start) = (Cell::new(Duration::ZERO), Cell::new(0), Instant::now());
        let mut steps = Simulated {
            start,
            now: &now,
            most,
            period,
            busy_until: Duration::ZERO,
            idle: Duration::ZERO,
            fails_at,
            submitted: 0,
            waited: 0,
            blocked: 0,
        };
        let (mut expected, mut ends, mut latest) = (0, Duration::ZERO, Duration::ZERO);
        let clock = Clocked(steps.start, &now, &slept);
        let result = follow_by(&clock, &mut steps, count, &mut |index| {
            assert_eq!(index, expected);
            expected += 1;
            ends += period(index);
            latest = latest.max(now.get().saturating_sub(ends));
            now.set(now.get() + host(index));
            if expected == taken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!(steps.waited, steps.submitted, "none is left under way");
        assert_eq!(expected, fails_at.unwrap_or(count).min(taken).min(count));
        let Simulated { idle, submitted, blocked, .. } = steps;
        Seen { took: now.get(), idle, slept: slept.get(), blocked, submitted, latest, result }
    }

    #[test]
    fn short_steps_are_taken_six_at_a_time() {
        let seen = run(&|_| STEP, MAX_IN_FLIGHT, &|_| Duration::from_micros(20), 300, 300);
        assert!(seen.idle < STEP / 4, "the device waited {:?}", seen.idle);
        assert!(seen.took < STEP * 301, "{:?}", seen.took);
        // Two single steps, then six at a time; a quarter of the sleeps are followed by a wait.
        assert!((48..=54).contains(&seen.slept), "slept {} times", seen.slept);
        assert!(seen.blocked <= 2 + 50 / MEASURED + 3, "blocked {} times", seen.blocked);
        assert!(seen.latest < LATENCY_BUDGET, "a token came {:?} late", seen.latest);
        // As many as the latency budget allows.
        let step = Duration::from_millis(6);
        let seen = run(&|_| step, MAX_IN_FLIGHT, &|_| Duration::from_micros(20), 300, 300);
        assert!((70..=80).contains(&seen.slept), "slept {} times", seen.slept);
        assert!(
            seen.latest < LATENCY_BUDGET && seen.latest > step * 2,
            "a token came {:?} late",
            seen.latest
        );
    }

    #[test]
    fn long_steps_are_taken_one_by_one() {
        let seen = run(&|_| Duration::from_millis(50), MAX_IN_FLIGHT, &|_| Duration::ZERO, 20, 7);
        assert_eq!((seen.slept, seen.submitted, seen.blocked), (0, 8, 8), "one is thrown away");
        assert!(seen.latest < Duration::from_millis(1), "a token came {:?} late", seen.latest);
    }

    #[test]
    fn what_there_is_memory_for_is_enough() {
        for most in 1..MAX_IN_FLIGHT {
            let seen = run(&|_| STEP, most, &|_| Duration::ZERO, 40, 40);
            assert_eq!(seen.submitted, 40);
            assert!(most == 1 || seen.idle < STEP / 4, "{most}: the device waited {:?}", seen.idle);
        }
        // One at a time: no step is discarded.
        assert_eq!(run(&|_| STEP, 1, &|_| Duration::ZERO, 40, 7).submitted, 7);
    }

    #[test]
    fn steps_that_get_longer_keep_the_device_busy() {
        for period in [
            |i| if i < 50 { STEP } else { STEP * 3 },
            |i| STEP + Duration::from_micros(10) * i as u32,
            |i| if i == 0 { STEP * 5 } else { STEP },
        ] {
            let seen = run(&period, MAX_IN_FLIGHT, &|_| Duration::from_micros(20), 200, 200);
            assert!(seen.idle < STEP, "the device waited {:?}", seen.idle);
        }
    }

    /// The host notices a faster device at its next early wake-up: up to three sleeps later.
    #[test]
    fn steps_that_get_shorter_are_noticed() {
        for at in 40..64 {
            let period = |i| if i < at { STEP * 3 } else { STEP };
            let seen = run(&period, MAX_IN_FLIGHT, &|_| Duration::from_micros(20), 300, 300);
            // During each of these sleeps the device is busy for a third of the time.
            let most = LATENCY_BUDGET * 2 / 3 * MEASURED as u32;
            assert!(seen.idle < most, "from {at} on: the device waited {:?}", seen.idle);
        }
    }

    /// Occasional slow steps or slow callbacks do not change the estimate.
    #[test]
    fn what_comes_between_is_not_believed() {
        let stall = Duration::from_millis(20);
        for (at, apart) in (20..33).flat_map(|at| (30..49).map(move |apart| (at, apart))) {
            let stalls = |i: usize| i >= at && (i - at).is_multiple_of(apart);
            let host = |i| if stalls(i) { stall } else { Duration::from_micros(20) };
            let seen = run(&|_| STEP, MAX_IN_FLIGHT, &host, 150, 150);
            // The device is idle during a host stall, and for up to one sleep more.
            let most = (stall + STEP * 3) * (150usize - at).div_ceil(apart) as u32;
            assert!(seen.idle < most, "the host at {at}, every {apart}: the device waited {:?}", seen.idle);
            let device = |i| if stalls(i) { stall } else { STEP };
            let seen = run(&device, MAX_IN_FLIGHT, &|_| Duration::from_micros(20), 150, 150);
            assert!(seen.idle < STEP * 3, "the device at {at}, every {apart}: it waited {:?}", seen.idle);
        }
    }

    #[test]
    fn a_host_that_is_slower_than_the_device_is_not_slowed_down() {
        for micros in [500, 1000, 1500, 1700, 4000] {
            let host = Duration::from_micros(micros);
            let seen = run(&|_| STEP, MAX_IN_FLIGHT, &|_| host, 200, 200);
            let least = host.max(STEP) * 200;
            assert!(seen.took < least + STEP * 6, "{host:?}: {:?}", seen.took);
        }
        // A host that was fast before.
        let slow = Duration::from_millis(4);
        let host = |i| if i < 20 { Duration::ZERO } else { slow };
        let seen = run(&|_| STEP, MAX_IN_FLIGHT, &host, 200, 200);
        assert!(seen.took < STEP * 20 + slow * 180 + STEP * 12, "{:?}", seen.took);
    }

    #[test]
    fn very_short_steps_are_waited_for() {
        let step = Duration::from_micros(150);
        let seen = run(&|_| step, MAX_IN_FLIGHT, &|_| Duration::from_micros(5), 200, 200);
        assert_eq!(seen.slept, 0);
        assert!(seen.idle < step, "the device waited {:?}", seen.idle);
    }

    #[test]
    fn the_first_error_ends_it() {
        for at in [0, 1, 5, 9] {
            let seen = run_failing(&|_| STEP, MAX_IN_FLIGHT, &|_| Duration::ZERO, 10, 10, Some(at));
            assert_eq!((seen.result, seen.submitted), (Err(at), at));
        }
        assert_eq!(run(&|_| STEP, MAX_IN_FLIGHT, &|_| Duration::ZERO, 0, 0).submitted, 0);
        let ended = run(&|_| STEP, MAX_IN_FLIGHT, &|_| Duration::ZERO, 40, 6);
        assert!(ended.result.is_ok() && ended.submitted < 6 + MAX_IN_FLIGHT, "{}", ended.submitted);
    }
}
