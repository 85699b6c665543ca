//! The sizes that subgroups have, and those that a pipeline may require.

use super::DeviceCaps;

/// Lanes that kernels prefer: what NVIDIA, RDNA and Intel execute natively (Intel as two halves of 16).
const PREFERRED: u32 = 32;

impl DeviceCaps {
    /// Whether all subgroups have [`DeviceCaps::subgroup_size`] invocations, whatever the kernel.
    pub fn subgroups_of_one_size(&self) -> bool {
        self.subgroup_size_min == self.subgroup_size_max
    }

    /// The subgroup sizes that a kernel can rely on, from the smallest: the powers of two of the range where a pipeline
    /// may require one for a workgroup of any size, else the single size where there is one.
    pub fn requestable_subgroup_sizes(&self) -> Vec<u32> {
        let range = self.subgroup_size_min..=self.subgroup_size_max;
        match (self.subgroups_of_one_size(), self.subgroup_size_control) {
            (true, _) => vec![self.subgroup_size],
            (false, true) => {
                let is_available = |size: &u32| {
                    let most = u64::from(*size) * u64::from(self.max_workgroup_subgroups);
                    most >= u64::from(self.max_workgroup_invocations)
                };
                let sizes = (0..u32::BITS).map(|bit| 1 << bit).filter(|size| range.contains(size));
                sizes.filter(is_available).collect()
            }
            (false, false) => Vec::new(),
        }
    }

    /// The subgroup size that kernels which rely on one should require: the smallest of at least 32 lanes, else the
    /// largest; `None` where no size can be relied on.
    ///
    /// 32 lanes are native on NVIDIA, RDNA and Intel, 64 on Adreno (which has no fewer) and GCN. More lanes than
    /// native ones only run a kernel's instructions several times.
    pub fn preferred_subgroup_size(&self) -> Option<u32> {
        let sizes = self.requestable_subgroup_sizes();
        sizes.iter().find(|size| **size >= PREFERRED).or(sizes.last()).copied()
    }

    /// Whether kernels can rely on subgroups of [`DeviceCaps::scheduled_subgroup_size`] invocations: all subgroups have that
    /// size, or pipelines require it.
    pub fn has_fixed_subgroup_size(&self) -> bool {
        self.preferred_subgroup_size().is_some()
    }

    /// The subgroup size that kernels are scheduled for; where none can be relied on, what the device reports.
    pub fn scheduled_subgroup_size(&self) -> u32 {
        self.preferred_subgroup_size().unwrap_or(self.subgroup_size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::caps::{self, OptionalFeature, PROFILES};

    fn sizes(make: fn() -> DeviceCaps) -> (Vec<u32>, Option<u32>) {
        (make().requestable_subgroup_sizes(), make().preferred_subgroup_size())
    }

    #[test]
    fn profiles_prefer_their_native_width() {
        let expected: [(&str, &[u32], u32); 7] = [
            ("minimum", &[1], 1),
            ("lavapipe", &[8], 8),
            ("h200", &[32], 32),
            ("rdna3", &[32, 64], 32),
            ("intel", &[16, 32], 32),
            ("mali", &[16], 16),
            ("adreno", &[64, 128], 64),
        ];
        for ((name, make), (profile, all, preferred)) in PROFILES.into_iter().zip(expected) {
            assert_eq!((name, sizes(make)), (profile, (all.to_vec(), Some(preferred))));
        }
    }

    #[test]
    fn no_size_can_be_relied_on_without_control_where_sizes_vary() {
        for (name, make) in PROFILES {
            let (full, mut caps) = (make(), make());
            caps.without(OptionalFeature::SubgroupSize);
            let range =
                |caps: &DeviceCaps| (caps.subgroup_size_min, caps.subgroup_size, caps.subgroup_size_max);
            assert_eq!(range(&caps), range(&full), "{name}");
            assert!(!caps.subgroup_size_control, "{name}");
            let single = full.subgroups_of_one_size().then_some(full.subgroup_size);
            assert_eq!(caps.preferred_subgroup_size(), single, "{name}");
            assert_eq!(caps.requestable_subgroup_sizes(), Vec::from_iter(single), "{name}");
        }
    }

    #[test]
    fn only_powers_of_two_can_be_required() {
        let few = DeviceCaps { max_workgroup_subgroups: 16, ..caps::rdna3() };
        assert_eq!(few.requestable_subgroup_sizes(), [64]);
        let odd = DeviceCaps { subgroup_size_min: 24, subgroup_size_max: 130, ..caps::rdna3() };
        assert_eq!(odd.requestable_subgroup_sizes(), [32, 64, 128]);
        let small = DeviceCaps { subgroup_size_min: 4, subgroup_size_max: 16, ..caps::intel() };
        assert_eq!(small.preferred_subgroup_size(), Some(16));
    }
}
