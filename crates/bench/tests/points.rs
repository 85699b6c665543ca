//! The committed lists of what sweeps measure. They are fixed before kernels are tuned for them.

use tallow_bench::networks::{Scale, generate};
use tallow_bench::sweep::points;

/// A point may be added at the end of its family; none may be dropped or changed.
#[test]
fn points_of_the_sweep_are_those_of_the_list() {
    let listed: Vec<&str> = include_str!("../../../benches/sweep/points.txt").lines().collect();
    let points = points();
    let names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
    assert_eq!(names, listed);
}

#[test]
fn fixed_networks_are_those_of_the_list() {
    let listed = include_str!("../../../benches/sweep/networks.txt").lines();
    let mut count = 0;
    for name in listed {
        let seed = name.rsplit('/').next().and_then(|seed| seed.parse().ok()).unwrap();
        assert_eq!(generate(seed, Scale::Full).name, name);
        count += 1;
    }
    assert_eq!(count, 10);
}
